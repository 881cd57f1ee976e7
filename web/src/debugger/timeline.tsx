// The timeline: one lane for compute and one for each mesh axis. Exposed communication is solid, overlapped is pale.

import { useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { axisColor, neutralColor } from "../shared/palette.ts";
import type { TimelineBar } from "../shared/recording.ts";
import { readTheme, themeVersion, type CanvasTheme } from "./canvas_theme.ts";
import { formatBytes, formatSeconds } from "./format.ts";
import type { LoadedRecording } from "./loaded_recording.ts";
import { useDebugger, type DebuggerState } from "./state.ts";
import { timeTicks, timeToX, xToTime, zoomScale, type TimeScale } from "./timeline_scale.ts";

const LANE_HEIGHT = 18;
const LANE_GAP = 4;
const AXIS_HEIGHT = 18;

interface Lane {
  name: string;
  bars: TimelineBar[];
}

export function Timeline() {
  const state = useDebugger();
  const timeline = state.run.value?.recording.timeline ?? null;
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  const range = useSignal<[number, number] | null>(null);
  const hover = useSignal<{ x: number; y: number; text: string } | null>(null);
  const total = timelineEnd(state.run.value);
  const isBlocked = (bar: TimelineBar) => state.run.value?.steps[bar.step]?.waiting != null;
  const lanes = shownLanes(timeline?.lanes ?? []);

  useEffect(() => {
    range.value = null;
    width.value = 0; // so that another recording is painted even at the same width
    if (canvas.current === null) return;
    const observer = new ResizeObserver(() => (width.value = canvas.current?.clientWidth ?? 0));
    observer.observe(canvas.current);
    return () => observer.disconnect();
  }, [timeline]);
  const scaleNow = (): TimeScale => ({ start: range.value?.[0] ?? 0, end: range.value?.[1] ?? timelineEnd(state.run.value), width: width.value });
  useSignalEffect(() => {
    themeVersion.value;
    const current = state.run.value?.recording.timeline;
    if (canvas.current !== null && width.value > 0 && current) paintTimeline(state, canvas.current, shownLanes(current.lanes), scaleNow());
  });
  if (timeline === null || total <= 0) return <p class="dbg-no-timeline">No timeline: choose a chip to estimate times.</p>;

  const showBar = (event: PointerEvent) => {
    const bar = findBar(lanes, scaleNow(), event.offsetX, event.offsetY, isBlocked);
    state.hoveredStep.value = bar?.step ?? null;
    hover.value = bar === null ? null : { x: event.offsetX, y: event.offsetY, text: barText(state, bar) };
  };
  const selectBar = (event: MouseEvent) => {
    const bar = findBar(lanes, scaleNow(), event.offsetX, event.offsetY, isBlocked);
    if (bar !== null) state.goTo(bar.step);
  };
  const zoom = (event: WheelEvent) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const zoomed = zoomScale(scaleNow(), Math.exp(-event.deltaY * 0.01), xToTime(scaleNow(), event.offsetX), total);
    range.value = [zoomed.start, zoomed.end];
  };
  const leave = () => (state.hoveredStep.value = hover.value = null);
  const listeners = { onPointerMove: showBar, onPointerLeave: leave, onClick: selectBar, onWheel: zoom, onDblClick: () => (range.value = null) };
  return (
    <div class="dbg-timeline">
      <ul class="dbg-lanes" aria-hidden="true">{lanes.map((lane) => <li key={lane.name}>{lane.name}</li>)}</ul>
      <div class="dbg-timeline-canvas">
        <canvas ref={canvas} style={{ height: `${lanesHeight(lanes)}px` }} role="img" aria-label={timelineSummary(state)} {...listeners} />
        {hover.value !== null && (
          <div class={`dbg-tooltip above${hover.value.x > width.value * 0.6 ? " is-left" : ""}`} style={{ left: `${hover.value.x}px`, top: `${hover.value.y}px` }} aria-hidden="true">{hover.value.text}</div>
        )}
      </div>
    </div>
  );
}

/** Where the time axis ends: after the last bar, with room for a collective that never completes. */
function timelineEnd(run: LoadedRecording | null): number {
  const total = run?.recording.timeline?.total_s ?? 0;
  const blocked = (run?.recording.timeline?.lanes ?? []).flatMap((lane) => lane.bars).filter((bar) => run!.steps[bar.step]?.waiting);
  if (blocked.length === 0) return total;
  const start = Math.max(...blocked.map((bar) => bar.start_s));
  // Earlier recordings give it a duration.
  return Math.max(start * 1.6, Math.min(total, start) || 1e-6);
}

/** Mesh axes without communication have no lane. */
function shownLanes(lanes: Lane[]): Lane[] {
  return lanes.filter((lane) => lane.bars.length > 0 || lane.name === "compute");
}

function lanesHeight(lanes: Lane[]): number {
  return lanes.length * (LANE_HEIGHT + LANE_GAP) + AXIS_HEIGHT;
}

/** The bar under a point; thin bars may be missed by three pixels. */
function findBar(lanes: Lane[], scale: TimeScale, x: number, y: number, isBlocked: (bar: TimelineBar) => boolean): TimelineBar | null {
  const bars = lanes[Math.floor(y / (LANE_HEIGHT + LANE_GAP))]?.bars ?? [];
  const time = xToTime(scale, x);
  const endOf = (bar: TimelineBar) => (isBlocked(bar) ? Infinity : bar.start_s + bar.duration_s);
  const within = (slack: number) => bars.find((bar) => time >= bar.start_s - slack && time <= endOf(bar) + slack);
  return within(0) ?? within(xToTime(scale, 3) - scale.start) ?? null;
}

function timelineSummary(state: DebuggerState): string {
  const totals = state.run.value!.recording.totals;
  return `Timeline: ${formatSeconds(totals.step_s)} per step, ${formatSeconds(totals.compute_s)} compute, ${formatSeconds(totals.communication_s)} communication. The list of collectives has the same times.`;
}

function barText(state: DebuggerState, bar: TimelineBar): string {
  const step = state.run.value!.steps[bar.step];
  if (step === undefined) return formatSeconds(bar.duration_s);
  if (step.waiting !== null) return `${step.collective?.op ?? step.op}: blocked, never completes${step.line > 0 ? `, line ${step.line}` : ""}`;
  if (state.unrevealed.value.has(bar.step)) return `a collective over ${step.collective!.axes.join(", ")}: predict it first`;
  const what = step.collective ? `${step.collective.op} over ${step.collective.axes.join(", ")}, ${formatBytes(step.collective.wire_bytes)}` : step.op;
  const overlap = step.collective ? (bar.exposed ? ", exposed" : ", overlapped") : "";
  return `${what}: ${formatSeconds(bar.duration_s)}${overlap}${step.line > 0 ? `, line ${step.line}` : ""}`;
}

function paintTimeline(state: DebuggerState, canvas: HTMLCanvasElement, lanes: Lane[], scale: TimeScale): void {
  const ratio = globalThis.devicePixelRatio || 1;
  const height = lanesHeight(lanes);
  canvas.width = scale.width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d")!;
  context.scale(ratio, ratio);
  const theme = readTheme(canvas);
  paintTicks(context, theme, scale, height);
  const run = state.run.value!;
  const active = state.activeSteps.value;
  const current = state.position.value.step;
  lanes.forEach((lane, index) => {
    const y = index * (LANE_HEIGHT + LANE_GAP);
    context.fillStyle = theme.sunken;
    context.fillRect(0, y, scale.width, LANE_HEIGHT);
    const axis = run.axisIndex(lane.name);
    const color = axis < 0 ? neutralColor(2, 3, theme.isDark) : axisColor(axis, 1, 2, theme.isDark);
    for (const bar of lane.bars) {
      const x = timeToX(scale, bar.start_s);
      const width = Math.max(1, timeToX(scale, bar.start_s + bar.duration_s) - x);
      if (x > scale.width || x + width < 0) continue;
      if (run.steps[bar.step]?.waiting) {
        paintBlocked(context, theme, x, y, scale.width - x);
        continue;
      }
      context.globalAlpha = axis >= 0 && !bar.exposed ? 0.45 : 1;
      context.fillStyle = color;
      context.fillRect(x, y + 2, Math.max(1, width - 0.5), LANE_HEIGHT - 4);
      context.globalAlpha = 1;
      if (active.has(bar.step) || state.hoveredStep.value === bar.step) {
        context.fillStyle = theme.accent;
        context.fillRect(x, y + LANE_HEIGHT - 2.5, Math.max(2, width), 2.5);
      }
      if (bar.step === current) {
        context.strokeStyle = theme.ink;
        context.lineWidth = 1.5;
        context.strokeRect(x - 0.5, y + 0.75, Math.max(3, width + 1), LANE_HEIGHT - 1.5);
      }
    }
  });
}

/** A collective that never completes: hatched, and open at the end. */
function paintBlocked(context: CanvasRenderingContext2D, theme: CanvasTheme, x: number, y: number, width: number): void {
  context.save();
  context.beginPath();
  context.rect(x, y + 2, width, LANE_HEIGHT - 4);
  context.clip();
  context.fillStyle = theme.badSoft;
  context.fillRect(x, y, width, LANE_HEIGHT);
  context.strokeStyle = theme.bad;
  context.globalAlpha = 0.35;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let at = x - LANE_HEIGHT; at < x + width; at += 9) {
    context.moveTo(at, y + LANE_HEIGHT);
    context.lineTo(at + LANE_HEIGHT, y);
  }
  context.stroke();
  context.globalAlpha = 1;
  context.fillStyle = theme.bad;
  context.fillRect(x, y, 2, LANE_HEIGHT);
  context.font = `600 11px ${theme.textFont}`;
  context.textBaseline = "middle";
  const text = "blocked, never completes";
  const room = context.measureText(text).width + 12;
  if (room < width) {
    context.fillStyle = theme.badSoft;
    context.fillRect(x + 4, y + 2, room, LANE_HEIGHT - 4);
    context.fillStyle = theme.bad;
    context.fillText(text, x + 10, y + LANE_HEIGHT / 2 + 0.5);
  }
  context.restore();
}

function paintTicks(context: CanvasRenderingContext2D, theme: CanvasTheme, scale: TimeScale, height: number): void {
  context.font = `500 10.5px ${theme.textFont}`;
  context.textBaseline = "alphabetic";
  for (const tick of timeTicks(scale, Math.max(2, Math.floor(scale.width / 110)))) {
    const x = timeToX(scale, tick);
    context.fillStyle = theme.line;
    context.fillRect(x, 0, 1, height - 12);
    context.fillStyle = theme.muted;
    const text = formatSeconds(tick);
    const room = context.measureText(text).width;
    context.fillText(text, Math.max(0, Math.min(scale.width - room, x - room / 2)), height - 2);
  }
}
