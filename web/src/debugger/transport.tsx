// Play, pause, step, speed, and the track: phases, loops and collectives of the program, with the scrubber on top.

import { useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { axisColor } from "../shared/palette.ts";
import { readTheme, themeVersion } from "./canvas_theme.ts";
import { Icon } from "./icons.tsx";
import { resultHop, stepRuns, stepSentence } from "./navigation.ts";
import { useDebugger, type DebuggerState } from "./state.ts";

const SPEEDS = [0.25, 0.5, 1, 2, 4];
/** Half the width of the range's thumb: the track's first and last positions are that far from its ends. */
const THUMB_HALF = 8;

export function Transport() {
  const state = useDebugger();
  const run = state.run.value;
  if (run === null) return null;
  const hasLoops = run.steps.some((step) => step.loop.length > 0);
  const total = state.stops.value.length;
  return (
    <div class="dbg-transport">
      <div class="dbg-buttons" role="group" aria-label="Playback">
        <button type="button" aria-label="First step" title="First step (Home)" onClick={() => state.goTo(state.stops.value[0] ?? 0, 0)}><Icon name="first" /></button>
        <button type="button" aria-label="Step back" title="Step back (left arrow)" onClick={() => state.previous()}><Icon name="back" /></button>
        <button type="button" class="dbg-play" aria-label={state.isPlaying.value ? "Pause" : "Play"} title="Play or pause (space)" onClick={() => state.togglePlay()}>
          <Icon name={state.isPlaying.value ? "pause" : "play"} />
        </button>
        <button type="button" aria-label="Step forward" title="Step forward (right arrow)" onClick={() => state.next()}><Icon name="forward" /></button>
        <button type="button" aria-label="Last step" title="Last step (End)" onClick={() => state.goTo(run.steps.length - 1)}><Icon name="last" /></button>
      </div>
      <p class="dbg-step-text" aria-live="polite">{positionText(state)}</p>
      <div class="dbg-options">
        <label class="dbg-select">
          <span>Step by</span>
          <select value={state.granularity.value} onChange={(event) => (state.granularity.value = event.currentTarget.value as "line" | "operation")}>
            <option value="line">line</option>
            <option value="operation">operation</option>
          </select>
        </label>
        <label class="dbg-select">
          <span>Speed</span>
          <select value={state.speed.value} onChange={(event) => (state.speed.value = Number(event.currentTarget.value))}>
            {SPEEDS.map((speed) => <option key={speed} value={speed}>{speed}{"\u00d7"}</option>)}
          </select>
        </label>
        <Toggle label="Hops" title="Stop at every hop of a collective" value={state.throughHops} />
        {hasLoops && <Toggle label="Over loops" title="Show the first iteration of each loop only" value={state.overLoops} />}
        <Toggle label="Predict" title="Guess each collective before it is shown" value={state.isPredicting} />
      </div>
      <Track total={total} />
    </div>
  );
}

function Toggle({ label, title, value }: { label: string; title: string; value: DebuggerState["throughHops"] }) {
  return <button type="button" class="dbg-toggle" title={title} aria-pressed={value.value} onClick={() => (value.value = !value.value)}>{label}</button>;
}

export function positionText(state: DebuggerState): string {
  const step = state.step.value;
  if (step === null) return "";
  const place = `Step ${state.stopIndex.value + 1} of ${state.stops.value.length}: `;
  if (state.isHidden.value) return `${place}make a prediction`;
  const { hop } = state.position.value;
  const last = resultHop(step);
  const hopText = last === 0 ? "" : hop === 0 ? ", before the first hop" : hop === last ? ", result" : `, hop ${hop} of ${last - 1}`;
  return `${place}${stepSentence(step)}${hopText}`;
}

function Track({ total }: { total: number }) {
  const state = useDebugger();
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  useEffect(() => {
    const observer = new ResizeObserver(() => (width.value = canvas.current?.clientWidth ?? 0));
    observer.observe(canvas.current!);
    return () => observer.disconnect();
  }, []);
  useSignalEffect(() => {
    themeVersion.value;
    if (canvas.current !== null && width.value > 0) paintTrack(state, canvas.current, width.value);
  });
  return (
    <div class="dbg-track">
      <canvas ref={canvas} aria-hidden="true" />
      <input
        type="range"
        aria-label="Step of the program"
        aria-valuetext={positionText(state)}
        min={0}
        max={Math.max(0, total - 1)}
        value={state.stopIndex.value}
        onInput={(event) => state.goTo(state.stops.value[Number(event.currentTarget.value)] ?? 0)}
      />
    </div>
  );
}

function paintTrack(state: DebuggerState, canvas: HTMLCanvasElement, width: number): void {
  const run = state.run.value;
  if (run === null) return;
  const height = 48;
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d")!;
  context.scale(ratio, ratio);
  const theme = readTheme(canvas);
  const stops = state.stops.value;
  const span = Math.max(1, stops.length - 1);
  const xOf = (index: number) => THUMB_HALF + (index / span) * (width - 2 * THUMB_HALF);
  const half = Math.min(12, (width - 2 * THUMB_HALF) / span / 2);
  const steps = stops.map((stop) => run.steps[stop]!);

  for (const phase of stepRuns(steps, (step) => step.phase)) {
    const left = Math.max(0, xOf(phase.first) - half);
    const right = Math.min(width, xOf(phase.last) + half);
    context.fillStyle = phase.key === "backward" ? theme.line : theme.sunken;
    context.fillRect(left, 20, right - left, 14);
    context.fillStyle = theme.muted;
    context.font = `500 10.5px ${theme.textFont}`;
    context.textBaseline = "alphabetic";
    if (right - left > 70) context.fillText(phase.key, left + 1, 46);
  }
  for (const loop of stepRuns(steps, (step) => (step.loop[0] ? `${step.loop[0][0]}:${step.loop[0][1]}` : ""))) {
    if (loop.key === "") continue;
    context.strokeStyle = theme.muted;
    context.lineWidth = 1;
    context.strokeRect(xOf(loop.first) - half + 0.5, 18.5, xOf(loop.last) - xOf(loop.first) + 2 * half - 1, 17);
  }
  const active = state.activeSteps.value;
  if ((width - 2 * THUMB_HALF) / span >= 5) {
    context.fillStyle = theme.lineStrong;
    stops.forEach((_, index) => context.fillRect(xOf(index) - 0.5, 24, 1, 6));
  }
  stops.forEach((stop, index) => {
    if (!active.has(stop)) return;
    context.fillStyle = theme.accent;
    context.fillRect(xOf(index) - Math.max(1, half), 31, Math.max(2, 2 * half), 3);
  });
  steps.forEach((step, index) => {
    if (step.collective === null && step.waiting === null) return;
    const axis = run.axisIndex(step.collective?.axes[0] ?? "");
    const [x, y] = [xOf(index), 9];
    context.fillStyle = step.waiting ? theme.bad : axis < 0 ? theme.muted : axisColor(axis, 1, 2, theme.isDark);
    context.beginPath();
    context.moveTo(x, y - 6);
    context.lineTo(x + 5, y);
    context.lineTo(x, y + 6);
    context.lineTo(x - 5, y);
    context.fill();
    context.fillRect(x - 0.75, y + 5, 1.5, 20);
  });
}
