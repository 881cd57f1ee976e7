// The matrix of a collective with many participants: one row for each device, one column for each chunk.
//
// Drawn as an image of one pixel per cell and scaled up, so that 512 devices take as long as 16.

import { chunkCount, contributionCount, hasResultBuffer, hopTransfers, permutationPairs, resultSlot, scheduleOf } from "../shared/hop_schedule.ts";
import { AXIS_HUES, axisColor, neutralColor } from "../shared/palette.ts";
import type { Collective } from "../shared/recording.ts";
import type { CanvasTheme } from "./canvas_theme.ts";
import { chunkOf, collectiveKind } from "./hop_state.ts";
import type { LoadedRecording } from "./loaded_recording.ts";
import { deviceCoordinates } from "./mesh_grid.ts";

/** The color of a device's data: its coordinate along the axis of the collective. */
export function originColor(run: LoadedRecording, collective: Collective, group: number[], position: number, isDark: boolean): string {
  const axis = run.axisIndex(collective.axes[collective.axes.length - 1] ?? "");
  const device = group[position];
  if (axis < 0 || device === undefined) return neutralColor(position, collective.group_size, isDark);
  // Over several axes, positions of the group share coordinates: shade by the position itself.
  if (collective.axes.length > 1) return axisColor(axis, position, collective.group_size, isDark);
  return axisColor(axis, deviceCoordinates(run.mesh, device)[axis]!, run.mesh[axis]![1], isDark);
}

/**
 * The color of a sum that has the shares of `count` of `total` devices: the hue of the mesh axis, from paper to its
 * strongest shade. A complete sum is a step stronger than all others, because "63 of 64" is still wrong.
 */
export function sumColor(run: LoadedRecording, collective: Collective, count: number, isDark: boolean): string {
  const axis = Math.max(0, run.axisIndex(collective.axes[collective.axes.length - 1] ?? ""));
  const hue = AXIS_HUES[axis % AXIS_HUES.length]![0];
  const total = collective.group_size;
  if (count >= total) return isDark ? `oklch(0.82 0.1 ${hue})` : `oklch(0.38 0.12 ${hue})`;
  const fraction = count / total;
  const [lightness, chroma] = isDark ? [0.27 + 0.31 * fraction, 0.03 + 0.1 * fraction] : [0.96 - 0.33 * fraction, 0.015 + 0.12 * fraction];
  return `oklch(${lightness.toFixed(3)} ${chroma.toFixed(3)} ${hue})`;
}

export interface MatrixRequest {
  run: LoadedRecording;
  collective: Collective;
  group: number[];
  theme: CanvasTheme;
  /** Hops that have happened. */
  hops: number;
}

/** What rows, columns and cells of the matrix are. */
export interface MatrixLabels {
  rows: string;
  columns: string;
}

export function matrixLabels(collective: Collective): MatrixLabels {
  switch (collectiveKind(collective.op)) {
    case "permute":
      return { rows: "sender", columns: "receiver" };
    case "all_to_all":
      return { rows: "device", columns: "received from" };
    case "all_gather":
      return { rows: "device", columns: "chunk of device" };
    default:
      return { rows: "device", columns: "chunk" };
  }
}

/** The number of columns: chunks, or in an all-to-all and a permutation the devices of the group. */
export function matrixColumns(collective: Collective): number {
  const kind = collectiveKind(collective.op);
  return kind === "permute" || kind === "all_to_all" ? collective.group_size : chunkCount(collective);
}

/** One number per cell: 0 is nothing, and the rest an index of `matrixColors`. */
export function matrixCells(collective: Collective, hops: number): Uint16Array {
  const n = collective.group_size;
  const columns = matrixColumns(collective);
  const cells = new Uint16Array(n * columns);
  const kind = collectiveKind(collective.op);
  if (kind === "permute") {
    const isChain = scheduleOf(collective) === "broadcast";
    const pairs = isChain ? Array.from({ length: n - 1 }, (_, at): [number, number] => [at, at + 1]) : permutationPairs(collective);
    pairs.slice(0, isChain ? hops : undefined).forEach(([from, to]) => (cells[from * n + to] = (isChain ? 0 : from) + 1));
    return cells;
  }
  const isResult = hasResultBuffer(collective);
  const isSum = kind === "reduce" || kind === "reduce_scatter";
  for (let row = 0; row < n; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const count = isResult ? resultSlot(collective, hops, row, column).length : contributionCount(collective, hops, row, column);
      cells[row * columns + column] = isSum ? count : count > 0 ? column + 1 : 0;
    }
  }
  return cells;
}

/** The color of each number of `matrixCells`: of a sum by how many shares it has, of other data by its origin. */
function matrixColors({ run, collective, group, theme }: MatrixRequest): string[] {
  const n = collective.group_size;
  const kind = collectiveKind(collective.op);
  const isSum = kind === "reduce" || kind === "reduce_scatter";
  return Array.from({ length: n + 1 }, (_, index) => {
    if (index === 0) return theme.sunken;
    return isSum ? sumColor(run, collective, index, theme.isDark) : originColor(run, collective, group, index - 1, theme.isDark);
  });
}

/** The matrix as an image of one pixel per cell. */
export function matrixImage(request: MatrixRequest): HTMLCanvasElement {
  const n = request.collective.group_size;
  const palette = document.createElement("canvas");
  const colors = matrixColors(request);
  palette.width = colors.length;
  palette.height = 1;
  const brush = palette.getContext("2d", { willReadFrequently: true })!;
  colors.forEach((color, index) => {
    brush.fillStyle = color;
    brush.fillRect(index, 0, 1, 1);
  });
  const levels = new Uint32Array(brush.getImageData(0, 0, colors.length, 1).data.buffer);
  const image = document.createElement("canvas");
  const columns = matrixColumns(request.collective);
  image.width = columns;
  image.height = n;
  const context = image.getContext("2d")!;
  const pixels = context.createImageData(columns, n);
  const target = new Uint32Array(pixels.data.buffer);
  matrixCells(request.collective, request.hops).forEach((cell, index) => (target[index] = levels[cell]!));
  context.putImageData(pixels, 0, 0);
  return image;
}

export interface MatrixView {
  context: CanvasRenderingContext2D;
  theme: CanvasTheme;
  collective: Collective;
  image: HTMLCanvasElement;
  /** CSS pixels of the square. */
  size: number;
  hop: number;
  focus: number;
}

/** The image, the cells that this hop changes, and the row of the device in focus. */
export function paintMatrix({ context, theme, collective, image, size, hop, focus }: MatrixView): void {
  const n = collective.group_size;
  const columns = matrixColumns(collective);
  const [cell, cellWidth] = [size / n, size / columns];
  context.clearRect(0, 0, size, size);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, size, size);
  if (cell >= 5) {
    context.fillStyle = theme.panel;
    for (let index = 1; index < columns; index += 1) context.fillRect(index * cellWidth - 0.5, 0, 1, size);
    for (let index = 1; index < n; index += 1) context.fillRect(0, index * cell - 0.5, size, 1);
  }
  const kind = collectiveKind(collective.op);
  for (const transfer of hopTransfers(collective, hop)) {
    const [from, to] = transfer;
    const [row, column] = kind === "permute" ? [from, to] : [to, kind === "all_to_all" ? from : chunkOf(transfer)];
    // A dot in the cell that changes; where cells are smaller than a pixel, a diagonal line appears by itself.
    const dot = Math.max(0.9, Math.min(4, cell * 0.42));
    const [x, y] = [(column + 0.5) * cellWidth, (row + 0.5) * cell];
    // On a halo of paper, because a complete cell is nearly as dark as ink.
    if (cell >= 3) {
      context.fillStyle = theme.panel;
      context.fillRect(x - dot / 2 - 0.8, y - dot / 2 - 0.8, dot + 1.6, dot + 1.6);
    }
    context.fillStyle = theme.ink;
    context.fillRect(x - dot / 2, y - dot / 2, dot, dot);
  }
  context.strokeStyle = theme.accent;
  context.lineWidth = 1.5;
  const height = Math.max(cell, 4);
  context.strokeRect(0.75, (focus + 0.5) * cell - height / 2, size - 1.5, height);
}

/** Cells around a place, enlarged. */
export function paintLens(context: CanvasRenderingContext2D, theme: CanvasTheme, image: HTMLCanvasElement, row: number, column: number): void {
  const [reach, cell] = [4, 11];
  const side = (2 * reach + 1) * cell;
  context.imageSmoothingEnabled = false;
  context.fillStyle = theme.panel;
  context.fillRect(0, 0, side, side);
  context.drawImage(image, column - reach, row - reach, 2 * reach + 1, 2 * reach + 1, 0, 0, side, side);
  context.fillStyle = theme.panel;
  for (let index = 1; index <= 2 * reach; index += 1) {
    context.fillRect(index * cell - 0.5, 0, 1, side);
    context.fillRect(0, index * cell - 0.5, side, 1);
  }
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.5;
  context.strokeRect(reach * cell, reach * cell, cell, cell);
}

export const LENS_SIDE = 99;

/** The chunks of one device as bars: how full each is, and which one is on its way. */
export function paintChunkBars(
  context: CanvasRenderingContext2D,
  request: MatrixRequest & { position: number; width: number; height: number; sends: number | null; receives: number | null },
): void {
  const { run, collective, group, theme, hops, position, width, height, sends, receives } = request;
  const n = chunkCount(collective);
  const kind = collectiveKind(collective.op);
  const isSum = kind === "reduce" || kind === "reduce_scatter";
  const isResult = hasResultBuffer(collective);
  const step = width / n;
  const gap = step >= 4 ? 1 : 0;
  context.clearRect(0, 0, width, height);
  // Arrow heads into the strip stand above it, those out of it below.
  const top = 7;
  const full = height - 2 * top;
  context.fillStyle = theme.sunken;
  context.fillRect(0, top, width, full);
  for (let chunk = 0; chunk < n; chunk += 1) {
    const count = isResult ? resultSlot(collective, hops, position, chunk).length : contributionCount(collective, hops, position, chunk);
    if (count === 0) continue;
    const fraction = isSum ? count / collective.group_size : 1;
    const origin = isResult ? (resultSlot(collective, hops, position, chunk)[0] ?? 0) : chunk;
    context.fillStyle = isSum ? sumColor(run, collective, count, theme.isDark) : originColor(run, collective, group, origin, theme.isDark);
    // One share of 64 is still a mark.
    const bar = Math.max(2, full * fraction);
    context.fillRect(chunk * step, top + full - bar, Math.max(0.6, step - gap), bar);
  }
  const mark = (chunk: number, isIncoming: boolean) => {
    const x = (chunk + 0.5) * step;
    context.fillStyle = theme.ink;
    context.beginPath();
    const edge = isIncoming ? 0 : height - 6;
    [[x - 4, edge], [x + 4, edge], [x, edge + 6]].forEach(([px, py]) => context.lineTo(px!, py!));
    context.fill();
    context.strokeStyle = theme.ink;
    context.lineWidth = 1;
    context.strokeRect(chunk * step - 0.5, top + 0.5, Math.max(2, step - gap) + 1, full - 1);
  };
  if (sends !== null) mark(sends, false);
  if (receives !== null) mark(receives, true);
}
