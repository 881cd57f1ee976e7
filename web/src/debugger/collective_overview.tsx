// A collective with many participants. Drawn as tiles it would be too fine to read, so the stage shows two things:
// the matrix of what every device holds, and beside it one device with the neighbors that it receives from and sends to.

import { useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { chunkCount, contributionCount, hopTransfers, operandSlot, resultSlot, hasResultBuffer, type Slot } from "../shared/hop_schedule.ts";
import type { Collective, Transfer } from "../shared/recording.ts";
import { readTheme, themeVersion } from "./canvas_theme.ts";
import { LENS_SIDE, matrixColumns, matrixImage, matrixLabels, originColor, paintChunkBars, paintLens, paintMatrix } from "./holdings_matrix.ts";
import { chunkName, chunkOf, collectiveKind } from "./hop_state.ts";
import { coordinateText } from "./mesh_grid.ts";
import { useDebugger, type DebuggerState } from "./state.ts";

const MATRIX_MARGIN = 22;

export function CollectiveOverview() {
  const state = useDebugger();
  const collective = state.step.value!.collective!;
  const group = state.collectiveGroup.value;
  const focus = focusPosition(state, group, collective);
  return (
    <div class="dbg-overview">
      <HoldingsMatrix collective={collective} group={group} focus={focus} />
      <Neighbors collective={collective} group={group} focus={focus} />
    </div>
  );
}

/**
 * The place in the group of the selected device. Without one it is the second, which has a neighbor on both sides, or
 * the sender of the hop if that one is idle: a chunk that goes along the ring alone leaves all other devices idle.
 */
function focusPosition(state: DebuggerState, group: number[], collective: Collective): number {
  const device = state.selectedDevice.value;
  const position = device === null ? -1 : group.indexOf(device);
  if (position >= 0) return position;
  const second = Math.min(1, group.length - 1);
  const transfers = hopTransfers(collective, state.position.value.hop);
  return transfers.some((transfer) => transfer[0] === second) ? second : (transfers[0]?.[0] ?? second);
}

interface PartProps {
  collective: Collective;
  group: number[];
  focus: number;
}

function HoldingsMatrix({ collective, group, focus }: PartProps) {
  const state = useDebugger();
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const lens = useRef<HTMLCanvasElement>(null);
  const size = useSignal(0);
  const hover = useSignal<{ row: number; column: number } | null>(null);
  useEffect(() => {
    const element = frame.current!;
    const measure = () => (size.value = Math.max(0, Math.floor(Math.min(element.clientWidth, element.clientHeight) - MATRIX_MARGIN)));
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const { hop } = state.position.value;
  const hops = state.hopProgress.value >= 1 ? hop : hop - 1;
  const version = themeVersion.value;
  const [theme, image] = useMemo(() => {
    const colors = readTheme(document.documentElement);
    return [colors, matrixImage({ run: state.run.value!, collective, group, theme: colors, hops })];
  }, [collective, group, hops, version]);
  useEffect(() => {
    const element = canvas.current;
    if (element === null || size.value === 0) return;
    const context = scaledContext(element, size.value, size.value);
    paintMatrix({ context, theme, collective, image, size: size.value, hop, focus });
    const place = hover.value;
    if (place !== null && lens.current !== null) paintLens(scaledContext(lens.current, LENS_SIDE, LENS_SIDE), theme, image, place.row, place.column);
  });
  const labels = matrixLabels(collective);
  const n = collective.group_size;
  const columns = matrixColumns(collective);
  const placeAt = (event: PointerEvent) => {
    const clampIndex = (at: number, count: number) => Math.max(0, Math.min(count - 1, Math.floor((at / size.value) * count)));
    return { row: clampIndex(event.offsetY, n), column: clampIndex(event.offsetX, columns) };
  };
  return (
    <figure class="dbg-matrix" ref={frame}>
      <div class="dbg-matrix-plot" style={{ width: `${size.value + MATRIX_MARGIN}px`, gridTemplateColumns: `${MATRIX_MARGIN}px ${size.value}px` }}>
        <span class="dbg-matrix-top"><b>0</b><b>{labels.columns}</b><b>{columns > 1 ? columns - 1 : ""}</b></span>
        <span class="dbg-matrix-left"><b>0</b><b>{labels.rows}</b><b>{n - 1}</b></span>
        <canvas
          ref={canvas}
          role="img"
          aria-label={matrixText(collective, hops)}
          style={{ width: `${size.value}px`, height: `${size.value}px` }}
          onPointerMove={(event) => (hover.value = placeAt(event))}
          onPointerLeave={() => (hover.value = null)}
          onClick={(event) => state.selectDevice(group[placeAt(event as unknown as PointerEvent).row] ?? null)}
        />
      </div>
      {hover.value !== null && (
        <div
          class={`dbg-tooltip dbg-lens${hover.value.column + 0.5 > columns * 0.55 ? " is-left" : ""}${hover.value.row > n * 0.5 ? " is-above" : ""}`}
          style={{ left: `${MATRIX_MARGIN + ((hover.value.column + 0.5) / columns) * size.value}px`, top: `${MATRIX_MARGIN + ((hover.value.row + 0.5) / n) * size.value}px` }}
          aria-hidden="true"
        >
          <canvas ref={lens} style={{ width: `${LENS_SIDE}px`, height: `${LENS_SIDE}px` }} />
          <div>{cellText(collective, group, hops, hover.value.row, hover.value.column)}</div>
        </div>
      )}
    </figure>
  );
}

function Neighbors({ collective, group, focus }: PartProps) {
  const state = useDebugger();
  const { hop } = state.position.value;
  const transfers = hopTransfers(collective, hop);
  const incoming = transfers.find((transfer) => transfer[1] === focus);
  const outgoing = transfers.find((transfer) => transfer[0] === focus);
  const select = (offset: number) => state.selectDevice(group[(focus + offset + group.length) % group.length] ?? null);
  return (
    <div class="dbg-neighbors">
      <div class="dbg-neighbor-choice" role="group" aria-label="Device in focus">
        <button type="button" aria-label="Previous device" onClick={() => select(-1)}>{"\u2039"}</button>
        <label>
          <span>Device</span>
          <select value={focus} onChange={(event) => state.selectDevice(group[Number(event.currentTarget.value)] ?? null)}>
            {group.map((device, position) => <option key={device} value={position}>{device}</option>)}
          </select>
        </label>
        <button type="button" aria-label="Next device" onClick={() => select(1)}>{"\u203a"}</button>
      </div>
      {incoming === undefined ? (
        <p class="dbg-idle">Device {group[focus]} receives nothing in this hop.</p>
      ) : (
        <>
          <DeviceStrip collective={collective} group={group} position={incoming[0]} />
          <Delivery collective={collective} group={group} transfer={incoming} />
        </>
      )}
      <DeviceStrip collective={collective} group={group} position={focus} isFocus />
      {outgoing === undefined ? (
        <p class="dbg-idle">Device {group[focus]} sends nothing in this hop.</p>
      ) : (
        <>
          <Delivery collective={collective} group={group} transfer={outgoing} />
          <DeviceStrip collective={collective} group={group} position={outgoing[1]} />
        </>
      )}
    </div>
  );
}

function DeviceStrip({ collective, group, position, isFocus = false }: { collective: Collective; group: number[]; position: number; isFocus?: boolean }) {
  const state = useDebugger();
  const run = state.run.value!;
  const canvas = useRef<HTMLCanvasElement>(null);
  const box = useSignal<[number, number]>([0, 0]);
  useEffect(() => {
    const element = canvas.current!;
    const observer = new ResizeObserver(() => (box.value = [element.clientWidth, element.clientHeight]));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const version = themeVersion.value;
  const theme = useMemo(() => readTheme(document.documentElement), [version]);
  const { hop } = state.position.value;
  const hops = state.hopProgress.value >= 1 ? hop : hop - 1;
  useEffect(() => {
    const [width, height] = box.value;
    if (width === 0 || canvas.current === null) return;
    const transfers = hopTransfers(collective, hop);
    const sent = transfers.find((transfer) => transfer[0] === position);
    const received = transfers.find((transfer) => transfer[1] === position);
    paintChunkBars(scaledContext(canvas.current, width, height), {
      run, collective, group, theme, hops, position, width, height,
      sends: sent === undefined || hasResultBuffer(collective) ? null : chunkOf(sent),
      receives: received === undefined ? null : receivedSlot(collective, received),
    });
  });
  const device = group[position]!;
  return (
    <div class={`dbg-strip${isFocus ? " is-focus" : ""}`}>
      <p>
        <i class="swatch" style={{ backgroundColor: originColor(run, collective, group, position, theme.isDark) }} />
        <strong>Device {device}</strong> {run.mesh.length > 1 && <span>{coordinateText(run.mesh, device)}</span>}
        <span class="dbg-strip-count">{progressText(collective, hops, position)}</span>
      </p>
      <canvas ref={canvas} aria-hidden="true" />
    </div>
  );
}

/** The arrow between two devices, with what it carries. */
function Delivery({ collective, group, transfer }: { collective: Collective; group: number[]; transfer: Transfer }) {
  const state = useDebugger();
  const { hop } = state.position.value;
  const progress = state.hopProgress.value;
  const line = useRef<HTMLSpanElement>(null);
  useSignalEffect(() => line.current?.style.setProperty("--progress", String(state.hopProgress.value)));
  const slot = operandSlot(collective, hop - 1, transfer[0], chunkOf(transfer));
  return (
    <p class="dbg-delivery">
      <span class={`dbg-delivery-arrow${progress < 1 ? " is-moving" : ""}`} ref={line} aria-hidden="true" />
      <span><strong>{chunkName(collective, transfer)}</strong>{payloadText(collective, group, slot)}{transfer[3] === "add" ? ", added" : ""}</span>
    </p>
  );
}

function receivedSlot(collective: Collective, transfer: Transfer): number {
  const kind = collectiveKind(collective.op);
  return kind === "all_to_all" ? transfer[0] : kind === "permute" ? 0 : chunkOf(transfer);
}

/** ": share of device 3" or ": sum of 17 devices" */
function payloadText(collective: Collective, group: number[], slot: Slot): string {
  if (chunkCount(collective) === 1 && !isSum(collective)) return "";
  if (slot.length === 1) return `: ${isSum(collective) ? "share of" : "from"} device ${group[slot[0]!]}`;
  if (slot.length === collective.group_size) return ": complete";
  return `: sum of ${sumText(group, slot)}`;
}

function sumText(group: number[], slot: Slot): string {
  return slot.length <= 3 ? `devices ${slot.map((position) => group[position]).join(", ")}` : `${slot.length} devices`;
}

function isSum(collective: Collective): boolean {
  const kind = collectiveKind(collective.op);
  return kind === "reduce" || kind === "reduce_scatter";
}

/** How many chunks of a device are done. */
function progressText(collective: Collective, hops: number, position: number): string {
  const n = chunkCount(collective);
  if (n === 1 && !isSum(collective)) return resultSlot(collective, hops, position, 0).length > 0 ? "has received" : "";
  let complete = 0;
  const target = isSum(collective) ? collective.group_size : 1;
  for (let chunk = 0; chunk < n; chunk += 1) {
    const count = hasResultBuffer(collective) ? resultSlot(collective, hops, position, chunk).length : contributionCount(collective, hops, position, chunk);
    if (count >= target) complete += 1;
  }
  return `${complete} of ${n} ${isSum(collective) ? "complete" : "here"}`;
}

function cellText(collective: Collective, group: number[], hops: number, row: number, column: number): string {
  const device = `device ${group[row]}`;
  switch (collectiveKind(collective.op)) {
    case "permute":
      return `${device} to device ${group[column]}`;
    case "all_to_all":
      return `${device}, chunk of device ${group[column]}: ${resultSlot(collective, hops, row, column).length > 0 ? "received" : "not yet"}`;
    case "all_gather":
      return `${device}, chunk of device ${group[column]}: ${contributionCount(collective, hops, row, column) > 0 ? "here" : "not yet"}`;
    default: {
      const slot = operandSlot(collective, hops, row, column);
      const content = slot.length === 1 ? "only its own share" : slot.length === group.length ? "complete" : `the sum of ${sumText(group, slot)}`;
      return `${device}, chunk ${column}: ${content}`;
    }
  }
}

function matrixText(collective: Collective, hops: number): string {
  const labels = matrixLabels(collective);
  return `Matrix after hop ${hops}: one row for each ${labels.rows}, one column for each ${labels.columns}, ${collective.group_size} by ${matrixColumns(collective)}.`;
}

/** What the hops do now: an all-reduce on a ring has two phases. */
export function phaseText(collective: Collective, hop: number): string {
  const n = collective.group_size;
  switch (collectiveKind(collective.op)) {
    case "reduce":
      if (chunkCount(collective) === 1) {
        return hop <= n - 1
          ? "Phase 1 of 2, reduce: one element cannot be split, so the partial result passes from device to device."
          : "Phase 2 of 2, broadcast: the result passes from device to device.";
      }
      return hop <= n - 1
        ? "Phase 1 of 2, reduce-scatter: each device passes one chunk on, and the next adds its share."
        : "Phase 2 of 2, all-gather: complete chunks travel around the ring.";
    case "reduce_scatter":
      return "Each device passes one chunk on, and the next adds its share.";
    case "all_gather":
      return "Each device passes on the chunk that it received last.";
    case "all_to_all":
      return `In hop ${hop} every device sends to the one ${hop} further.`;
    default:
      return "Each sender has one receiver.";
  }
}

function scaledContext(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = Math.min(3, globalThis.devicePixelRatio || 1);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
