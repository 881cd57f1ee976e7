// The stage: every device's local value at the current step, on the mesh, in groups or as a table.

import { useSignalEffect, useSignal, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { parseDevices, type Value } from "../shared/recording.ts";
import { readTheme, themeVersion, type CanvasTheme } from "./canvas_theme.ts";
import { CollectiveOverview } from "./collective_overview.tsx";
import { cellIndex } from "./cells.ts";
import { DeviceTable } from "./device_table.tsx";
import { TilePainter, type View } from "./device_painter.ts";
import { formatNumber, plural } from "./format.ts";
import { HopPainter } from "./hop_painter.ts";
import { collectiveKind, type CollectiveKind } from "./hop_state.ts";
import { coordinateText } from "./mesh_grid.ts";
import { equalDevicesText, replicaSource } from "./loaded_recording.ts";
import { Minimap } from "./minimap.tsx";
import { resultHop } from "./navigation.ts";
import { LARGE_GROUP, MANY_DEVICES, prefersReducedMotion, useDebugger, type DebuggerState } from "./state.ts";
import { collectiveLayout, tileLayout, waitingLayout, type Tile, type TileLayout } from "./tile_layout.ts";
import { ValueHeader } from "./value_header.tsx";
import { Predict } from "../shared/predict.tsx";
import { predictionFor } from "./prediction.ts";

const MARGIN = 20;

export interface Viewport {
  /** Zoom relative to the size at which everything fits. */
  zoom: number;
  centerX: number;
  centerY: number;
}

const FITTED: Viewport = { zoom: 1, centerX: 0, centerY: 0 };

/** Whether hops are drawn now: between the state before a collective and its result. */
function isMidCollective(state: DebuggerState): boolean {
  const step = state.step.value;
  const hop = state.position.value.hop;
  return step?.collective != null && hop >= 1 && hop < resultHop(step) && state.shown.value.kind === "follow";
}

/** Whether the hops are drawn as a matrix: in tiles, a chunk would be a line of a few pixels. */
function showsOverview(state: DebuggerState): boolean {
  const collective = state.step.value?.collective;
  return collective != null && isMidCollective(state) && collective.group_size > LARGE_GROUP;
}

export function effectiveMode(state: DebuggerState): "mesh" | "groups" | "table" {
  const mode = state.mode.value;
  if (mode !== "auto") return mode;
  if ((state.run.value?.deviceCount ?? 0) <= MANY_DEVICES) return "mesh";
  // As many groups as tiles of a large mesh say nothing together, and the mesh has a pattern. Waiting devices have states.
  const groupCount = state.value.value?.n_groups ?? 0;
  return groupCount > MANY_DEVICES && state.step.value?.waiting == null ? "mesh" : "groups";
}

function currentLayout(state: DebuggerState, value: Value, [width, height]: [number, number]): TileLayout | null {
  const run = state.run.value;
  if (run === null) return null;
  const collective = state.step.value?.collective ?? null;
  if (collective !== null && isMidCollective(state) && state.showsOneGroup.value) {
    return collectiveLayout(run, value, state.collectiveGroup.value, [width - 2 * MARGIN, height - 2 * MARGIN]);
  }
  const waiting = state.step.value?.waiting ?? null;
  if (waiting !== null && run.deviceCount > MANY_DEVICES && effectiveMode(state) === "groups") {
    return waitingLayout(run, value, waiting, [width - 2 * MARGIN, height - 2 * MARGIN]);
  }
  const mode = isMidCollective(state) ? "mesh" : effectiveMode(state) === "groups" ? "groups" : "mesh";
  return tileLayout(run, value, mode, {
    stage: [width - 2 * MARGIN, height - 2 * MARGIN],
    ...(collective === null ? {} : { minimumHeight: 56 }),
  });
}

export function viewFor(layout: TileLayout, viewport: Viewport, width: number, height: number): View {
  const fit = Math.min((width - 2 * MARGIN) / layout.width, (height - 2 * MARGIN) / layout.height, 1.5);
  const scale = Math.max(0.02, fit) * viewport.zoom;
  const centerX = viewport.zoom <= 1 ? layout.width / 2 : viewport.centerX;
  const centerY = viewport.zoom <= 1 ? layout.height / 2 : viewport.centerY;
  return { scale, width, height, offsetX: width / 2 - centerX * scale, offsetY: height / 2 - centerY * scale };
}

export function DeviceView() {
  const state = useDebugger();
  const run = state.run.value;
  const value = state.value.value;
  const leading = useSignal<number[]>([]);
  if (run === null) return null;
  if (run.steps.length === 0) return <EmptyRun line={run.recording.failure?.line ?? 0} />;
  if (state.isHidden.value) return <PredictStage state={state} />;
  return (
    <>
      <ValueHeader leading={leading} />
      {value === null ? (
        <p class="dbg-empty">This step writes no array.</p>
      ) : effectiveMode(state) === "table" ? (
        <DeviceTable run={run} value={value} divergent={state.divergent.value} />
      ) : showsOverview(state) ? (
        <>
          <CollectiveOverview />
          <div class="dbg-stage-foot"><DeviceLegend state={state} /></div>
        </>
      ) : (
        <DeviceCanvas leading={leading} />
      )}
    </>
  );
}

function EmptyRun({ line }: { line: number }) {
  return <p class="dbg-empty">Nothing ran, so there is nothing to step through.{line > 0 && <><br />Line {line} is marked in the program.</>}</p>;
}

function PredictStage({ state }: { state: DebuggerState }) {
  const prediction = predictionFor(state.run.value!, state.position.value.step);
  return (
    <div class="dbg-predict">
      <Predict key={state.position.value.step} level={2} {...prediction} onDone={() => state.reveal()} />
    </div>
  );
}

function DeviceCanvas({ leading }: { leading: Signal<number[]> }) {
  const state = useDebugger();
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const size = useSignal<[number, number]>([0, 0]);
  const viewport = useSignal<Viewport>(FITTED);
  const hover = useSignal<{ x: number; y: number; text: string[] } | null>(null);
  const theme = useRef<{ version: number; theme: CanvasTheme } | null>(null);

  useEffect(() => {
    const element = frame.current!;
    const observer = new ResizeObserver(() => (size.value = [element.clientWidth, element.clientHeight]));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const layoutShape = useRef("");
  useSignalEffect(() => {
    const [width, height] = size.value;
    const [run, value, element] = [state.run.value, state.value.value, canvas.current];
    if (run === null || value === null || element === null || width === 0) return;
    const layout = currentLayout(state, value, size.value);
    if (layout === null || layout.tiles.length === 0) return;
    // Another number of tiles is another picture: an old zoom would show nothing of it.
    const shape = `${layout.mode}:${layout.tiles.length}`;
    if (layoutShape.current !== shape && viewport.peek().zoom !== 1) viewport.value = FITTED;
    layoutShape.current = shape;
    if (theme.current?.version !== themeVersion.value) theme.current = { version: themeVersion.value, theme: readTheme(element) };
    paint(state, element, layout, viewFor(layout, viewport.value, width, height), theme.current.theme, leading.value);
  });

  const viewNow = (): [TileLayout, View] | null => {
    const value = state.value.value;
    const layout = value === null ? null : currentLayout(state, value, size.value);
    return layout === null ? null : [layout, viewFor(layout, viewport.value, size.value[0], size.value[1])];
  };
  const zoomBy = (factor: number, x = size.value[0] / 2, y = size.value[1] / 2) => {
    const now = viewNow();
    if (now !== null) viewport.value = zoomedViewport(now[0], now[1], viewport.value, factor, x, y);
  };
  const pointer = usePointer({ state, viewport, viewNow, zoomBy, hover, leading });

  const layout = viewNow();
  return (
    <>
      <div class="dbg-canvas" ref={frame}>
        <canvas ref={canvas} role="img" aria-label={describeValue(state)} {...pointer} />
        {hover.value !== null && <Tooltip at={hover.value} width={size.value[0]} />}
        {viewport.value.zoom > 1 && layout !== null && <Minimap layout={layout[0]} view={layout[1]} viewport={viewport} />}
      </div>
      <DeviceCard state={state} />
      <div class="dbg-stage-foot">
        <DeviceLegend state={state} />
        <ZoomButtons viewport={viewport} zoomBy={zoomBy} />
      </div>
    </>
  );
}

function ZoomButtons({ viewport, zoomBy }: { viewport: Signal<Viewport>; zoomBy: (factor: number) => void }) {
  const isFitted = viewport.value.zoom <= 1;
  return (
    <div class="dbg-zoom" role="group" aria-label="Zoom of the device view">
      <button type="button" aria-label="Zoom in" onClick={() => zoomBy(1.6)}>+</button>
      <button type="button" aria-label="Zoom out" disabled={isFitted} onClick={() => zoomBy(1 / 1.6)}>{"\u2212"}</button>
      <button type="button" disabled={isFitted} onClick={() => (viewport.value = FITTED)}>Fit</button>
    </div>
  );
}

/** Zoom about a point of the stage, which stays where it is. */
function zoomedViewport(layout: TileLayout, view: View, viewport: Viewport, factor: number, x: number, y: number): Viewport {
  // Closer than this, one number fills the stage.
  const closest = Math.max(1, (4 * viewport.zoom) / view.scale);
  const zoom = Math.max(1, Math.min(closest, viewport.zoom * factor));
  const ratio = viewport.zoom / zoom;
  const [worldX, worldY] = [(x - view.offsetX) / view.scale, (y - view.offsetY) / view.scale];
  const centerX = (view.width / 2 - view.offsetX) / view.scale;
  const centerY = (view.height / 2 - view.offsetY) / view.scale;
  return {
    zoom,
    centerX: clamp(worldX + (centerX - worldX) * ratio, 0, layout.width),
    centerY: clamp(worldY + (centerY - worldY) * ratio, 0, layout.height),
  };
}

function paint(
  state: DebuggerState,
  canvas: HTMLCanvasElement,
  layout: TileLayout,
  view: View,
  theme: CanvasTheme,
  leading: number[],
): void {
  const ratio = Math.min(3, globalThis.devicePixelRatio || 1);
  if (canvas.width !== Math.round(view.width * ratio) || canvas.height !== Math.round(view.height * ratio)) {
    canvas.width = Math.round(view.width * ratio);
    canvas.height = Math.round(view.height * ratio);
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const run = state.run.value!;
  const step = state.step.value!;
  const marks = {
    divergent: state.divergent.value,
    waiting: new Set(step.waiting ? parseDevices(step.waiting.devices) : []),
    missing: new Set(step.waiting ? parseDevices(step.waiting.missing) : []),
    selectedDevice: state.selectedDevice.value,
    groupMates: state.groupMates.value,
  };
  const request = { context, theme, run, value: state.value.value!, layout, view, leading, marks };
  const collective = step.collective;
  if (collective === null || !isMidCollective(state)) {
    new TilePainter(request).paint();
    return;
  }
  const groups = state.showsOneGroup.value ? [state.collectiveGroup.value] : collective.groups;
  const hops = new HopPainter({
    context, theme, run, collective, layout, groups,
    hop: state.position.value.hop,
    progress: state.hopProgress.value,
    isStatic: prefersReducedMotion(),
  });
  new TilePainter({ ...request, paintPicture: (tile: Tile) => hops.paintTile(tile) }).paint();
  context.save();
  context.translate(view.offsetX, view.offsetY);
  context.scale(view.scale, view.scale);
  hops.paintTransfers();
  context.restore();
}

interface PointerOptions {
  state: DebuggerState;
  viewport: Signal<Viewport>;
  viewNow: () => [TileLayout, View] | null;
  zoomBy: (factor: number, x?: number, y?: number) => void;
  hover: Signal<{ x: number; y: number; text: string[] } | null>;
  leading: Signal<number[]>;
}

/** Hover names a cell, a drag moves the view, a click selects a device, ctrl and wheel zoom. */
function usePointer({ state, viewport, viewNow, zoomBy, hover, leading }: PointerOptions) {
  const drag = useRef<{ x: number; y: number; moved: boolean } | null>(null);
  const tileAt = (x: number, y: number): [Tile, TileLayout, number, number] | null => {
    const now = viewNow();
    if (now === null) return null;
    const [layout, view] = now;
    const [worldX, worldY] = [(x - view.offsetX) / view.scale, (y - view.offsetY) / view.scale];
    const tile = layout.tiles.find(
      (candidate) => worldX >= candidate.x && worldX < candidate.x + layout.tileWidth && worldY >= candidate.y && worldY < candidate.y + layout.tileHeight,
    );
    return tile === undefined ? null : [tile, layout, worldX, worldY];
  };
  return {
    onPointerDown: (event: PointerEvent) => {
      drag.current = { x: event.offsetX, y: event.offsetY, moved: false };
      (event.currentTarget as Element).setPointerCapture(event.pointerId);
    },
    onPointerMove: (event: PointerEvent) => {
      const [x, y] = [event.offsetX, event.offsetY];
      const start = drag.current;
      const now = viewNow();
      if (start !== null && now !== null && viewport.value.zoom > 1) {
        const [dx, dy] = [x - start.x, y - start.y];
        if (Math.hypot(dx, dy) > 3 || start.moved) {
          drag.current = { x, y, moved: true };
          const { zoom, centerX, centerY } = viewport.value;
          const [layout, view] = now;
          viewport.value = {
            zoom,
            centerX: clamp(centerX - dx / view.scale, 0, layout.width),
            centerY: clamp(centerY - dy / view.scale, 0, layout.height),
          };
        }
      }
      const hit = tileAt(x, y);
      hover.value = hit === null ? null : { x, y, text: tooltipText(state, leading.value, ...hit) };
    },
    onPointerUp: (event: PointerEvent) => {
      const moved = drag.current?.moved ?? false;
      drag.current = null;
      if (moved) return;
      const device = tileAt(event.offsetX, event.offsetY)?.[0].devices[0] ?? null;
      state.selectDevice(state.selectedDevice.value === device ? null : device);
    },
    onPointerLeave: () => (hover.value = null),
    onWheel: (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoomBy(Math.exp(-event.deltaY * 0.01), event.offsetX, event.offsetY);
    },
  };
}

function tooltipText(state: DebuggerState, leading: number[], tile: Tile, layout: TileLayout, x: number, y: number): string[] {
  const [run, value] = [state.run.value!, state.value.value!];
  const group = value.groups[tile.group];
  const device = tile.devices[0]!;
  const lines = [tile.devices.length === 1 ? `device ${device}: ${coordinateText(run.mesh, device)}` : group === undefined ? plural(tile.devices.length, "device") : `devices ${group.devices}`];
  const grid = tile.group < 0 ? null : run.groupGrid(value, tile.group, leading);
  if (grid !== null && y > tile.y + layout.headerHeight && !isMidCollective(state)) {
    const row = Math.floor(((y - tile.y - layout.headerHeight) / (layout.tileHeight - layout.headerHeight)) * grid.rows);
    const column = Math.floor(((x - tile.x) / layout.tileWidth) * grid.columns);
    const number = grid.numbers[row * grid.columns + column];
    const kind = group?.cells?.of === "block mean" ? "block mean " : "";
    const index = cellIndex(value.shape, grid, row, column);
    const place = index === null || index.length === 0 ? "" : `[${index.join(", ")}] `;
    if (number !== undefined) lines.push(`${kind}${place}${formatNumber(number, 12)}`);
  }
  if (group?.slice) lines.push(`holds [${group.slice.map(([start, stop]) => `${start}:${stop}`).join(", ")}] of the full array`);
  if (group && group.n > 1 && tile.devices.length === 1) lines.push(equalDevicesText(run, value, device));
  if (group && group.n_nan > 0) lines.push(`${group.n_nan} values are nan`);
  if (state.divergent.value.has(device)) lines.push("differs from run A");
  return lines;
}

function Tooltip({ at, width }: { at: { x: number; y: number; text: string[] }; width: number }) {
  const isRight = at.x > width * 0.6;
  return (
    <div class={`dbg-tooltip${isRight ? " is-left" : ""}`} style={{ left: `${at.x}px`, top: `${at.y}px` }} aria-hidden="true">
      {at.text.map((line) => <div key={line}>{line}</div>)}
    </div>
  );
}

/** What the selected device holds, and with whom it communicates. */
function DeviceCard({ state }: { state: DebuggerState }) {
  const [run, value, device] = [state.run.value, state.value.value, state.selectedDevice.value];
  if (run === null || value === null || device === null || device >= run.deviceCount) return null;
  const group = value.groups[run.groupOf(value, device)];
  const mates = [...state.groupMates.value];
  return (
    <p class="dbg-device-card" role="status">
      <strong>Device {device}</strong>
      <span>{coordinateText(run.mesh, device)}</span>
      {group && <span>{equalDevicesText(run, value, device)}</span>}
      {group && group.mean !== null && value.shape.length > 0 && <span>{formatNumber(Number(group.min))} to {formatNumber(Number(group.max))}, mean {formatNumber(Number(group.mean))}</span>}
      {group?.slice && <span>[{group.slice.map(([start, stop]) => `${start}:${stop}`).join(", ")}] of the full array</span>}
      {mates.length > 0 && <span>with {mates.length <= 7 ? `devices ${mates.join(", ")}` : `${mates.length} other devices`} in this collective</span>}
      <button type="button" class="link" onClick={() => state.selectDevice(null)}>Close</button>
    </p>
  );
}

const HOP_LEGENDS: Record<CollectiveKind, string> = {
  reduce: "Each bar is one chunk, with one band for each device whose share is in the sum. A full bar with a dark edge is complete.",
  reduce_scatter: "Each bar is one chunk, with one band for each device whose share is in the sum. A full bar with a dark edge is complete.",
  all_gather: "Each bar is one chunk in the color of the device that it comes from.",
  all_to_all: "Above the chunks to send, below the chunks received, in the color of the device that they come from.",
  permute: "Above the value of each device, below what it receives, in the color of the device that it comes from.",
};

const OVERVIEW_LEGENDS: Record<CollectiveKind, string> = {
  reduce: "The stronger a cell, the more devices' shares are in its sum; the strongest is complete. Cells with a dot change in this hop.",
  reduce_scatter: "The stronger a cell, the more devices' shares are in its sum; the strongest is complete. Cells with a dot change in this hop.",
  all_gather: "A cell is filled once the chunk is there, in the color of the device that it comes from. Cells with a dot arrive in this hop.",
  all_to_all: "A cell is filled once the chunk is there, in the color of the device that it comes from. Cells with a dot arrive in this hop.",
  permute: "A filled cell is a message, in the color of the device that it comes from.",
};

function DeviceLegend({ state }: { state: DebuggerState }) {
  const value = state.value.value;
  const step = state.step.value;
  if (value === null) return null;
  if (showsOverview(state)) return <p class="dbg-legend">{OVERVIEW_LEGENDS[collectiveKind(step!.collective!.op)]}</p>;
  if (isMidCollective(state)) {
    return <p class="dbg-legend">{HOP_LEGENDS[collectiveKind(step!.collective!.op)]}</p>;
  }
  return (
    <ul class="dbg-legend">
      {effectiveMode(state) === "groups" && step?.waiting == null && value.groups.length < value.n_groups && <li><strong>{value.groups.length} of {value.n_groups} groups shown</strong></li>}
      {value.shape.length > 2 && <li>rows: dims 0 to {value.shape.length - 2}, columns: dim {value.shape.length - 1}</li>}
      {value.partial_over.length > 0 && <li><i class="swatch texture-partial" />partial sum over {value.partial_over.join(", ")}</li>}
      {effectiveMode(state) === "mesh" && hasReplicas(state, value) && <li><i class="swatch texture-replica" />copy of another device</li>}
      {value.disagrees && <li><i class="swatch is-bad" />copies that must agree but differ</li>}
      {state.divergent.value.size > 0 && <li><i class="swatch is-bad" />differs from run A</li>}
      {step?.waiting && <li><i class="swatch is-bad" />waits forever</li>}
      <li class="heat-key"><i class="swatch heat" />{"\u2212"}{formatNumber(state.run.value!.scaleOf(value), 5)} to {formatNumber(state.run.value!.scaleOf(value), 5)}</li>
    </ul>
  );
}

function hasReplicas(state: DebuggerState, value: Value): boolean {
  const run = state.run.value!;
  return value.groups.some((group) => group.n > 1 && replicaSource(run, value, parseDevices(group.devices)[1]!) !== null);
}

function describeValue(state: DebuggerState): string {
  const [run, value] = [state.run.value, state.value.value];
  if (run === null || value === null) return "No value";
  const differences = value.disagrees ? ", the copies disagree" : "";
  const partial = value.partial_over.length ? `, a partial sum over ${value.partial_over.join(", ")}` : "";
  return `${value.name ?? "Value"} ${value.type} on ${run.deviceCount} devices: ${value.n_groups} different values${partial}${differences}. Choose Table for the numbers.`;
}

function clamp(value: number, low: number, high: number): number {
  return Math.max(low, Math.min(high, value));
}
