// The array: a row for one dimension, a grid for two, an isometric block for three, small multiples beyond.

import type { Layout } from "../shared/mesh.ts";
import { withCommas } from "../shared/python_text.ts";
import { devicesText } from "../shared/units.ts";
import { blockScene } from "./block_scene.ts";
import {
  LABEL_SIZE,
  addHeading,
  fittingLabel,
  labelEvery,
  makeBins,
  planeDimensions,
  ShardColors,
  type Bin,
  type Scene,
  type SceneCell,
  type SceneStyle,
  type SceneText,
  type Swatch,
} from "./scene.ts";

const MIN_CELL = 2.5;
const MAX_PANELS = 12;

export interface SceneParts {
  readonly cells: SceneCell[];
  readonly texts: SceneText[];
  readonly swatches: Swatch[];
  isSummary: boolean;
}

/** Builds the picture of the array in `width` x `height` pixels. */
export function arrayScene(layout: Layout, width: number, height: number, style: SceneStyle): Scene {
  if (layout.shape.length === 3) return blockScene(layout, width, height, style);
  const parts: SceneParts = { cells: [], texts: [], swatches: [], isSummary: false };
  const used = isPlane(layout) ? plane(layout, width, height, style, parts) : multiples(layout, width, height, style, parts);
  return { width, height: used, ...parts, isHatched: layout.nReplicas > 1, note: summaryNote(layout, parts) };
}

export function summaryNote(layout: Layout, parts: { cells: readonly SceneCell[]; isSummary: boolean }): string {
  if (!parts.isSummary) return "";
  return `${withCommas(layout.nShards)} shards: each box stands for several neighbors`;
}

/** Whether one grid shows every shard: at most two dimensions are sharded. */
function isPlane(layout: Layout): boolean {
  return layout.shardCounts.filter((count) => count > 1).length <= 2;
}

function plane(layout: Layout, width: number, height: number, style: SceneStyle, parts: SceneParts): number {
  const rank = layout.shape.length;
  const dims = planeDimensions(layout);
  const [rowDim, columnDim] = dims.length === 2 ? (dims as [number, number]) : [null, dims[0] ?? null];
  const left = rowDim === null ? 2 : 34 + widestRowLabel(layout, rowDim, style);
  const top = columnDim === null ? 8 : 52;
  const innerWidth = width - left - 4;
  const innerHeight = height - top - (rank > 2 ? 28 : 6);
  const size = planeSize(layout, rowDim, columnDim, innerWidth, innerHeight);
  const box = { x: left, y: top, width: size.width, height: size.height };
  const fixed = new Array<number>(rank).fill(0);
  const bins = addGrid(layout, box, rowDim, columnDim, fixed, style, parts);
  if (columnDim !== null) {
    addHeading(parts, left, 16, dimensionText(layout, columnDim), layout.axesOf(columnDim), layout.mesh, style);
    addColumnLabels(layout, columnDim, bins.columns, box, style, parts);
  }
  if (rowDim !== null) {
    addRowHeading(layout, rowDim, box, style, parts);
    addRowLabels(layout, rowDim, bins.rows, box, parts);
  }
  const bottom = top + size.height + 6;
  const hidden = layout.shape.map((_, dim) => dim).filter((dim) => !dims.includes(dim));
  if (hidden.length === 0) return bottom;
  const text = `not drawn, because not sharded: ${hidden.map((dim) => `dim ${dim} of size ${withCommas(layout.shape[dim]!)}`).join(", ")}`;
  parts.texts.push({ x: 2, y: bottom + 12, text, align: "left", color: "faint", size: LABEL_SIZE });
  return bottom + 22;
}

/** The size of the rectangle: the proportions of the array, within limits that keep cells readable. */
function planeSize(layout: Layout, rowDim: number | null, columnDim: number | null, width: number, height: number) {
  if (columnDim === null) return { width: Math.min(220, width), height: 64 };
  if (rowDim === null) return { width, height: Math.min(96, height) };
  const ratio = ratioOf(layout.shape[columnDim]!, layout.shape[rowDim]!);
  const bounded = Math.min(2.2, Math.max(0.75, ratio));
  const fitted = Math.min(height, width / bounded);
  return { width: Math.min(width, fitted * bounded), height: fitted };
}

function ratioOf(a: bigint, b: bigint): number {
  const ratio = Number(a || 1n) / Number(b || 1n);
  return Number.isFinite(ratio) && ratio > 0 ? ratio : 1;
}

interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

function addGrid(
  layout: Layout,
  box: Box,
  rowDim: number | null,
  columnDim: number | null,
  fixed: readonly number[],
  style: SceneStyle,
  parts: SceneParts,
): { rows: Bin[]; columns: Bin[] } {
  const gap = 2;
  const rows = makeBins(rowDim === null ? 1 : layout.shardCounts[rowDim]!, box.height, MIN_CELL, gap);
  const columns = makeBins(columnDim === null ? 1 : layout.shardCounts[columnDim]!, box.width, MIN_CELL, gap);
  const coordinates = [...fixed];
  const colors = new ShardColors(layout, style.dark);
  const labelOf = shardLabels(layout, columns[0]!.size, rows[0]!.size, style);
  for (const row of rows) {
    if (rowDim !== null) coordinates[rowDim] = row.first;
    for (const column of columns) {
      if (columnDim !== null) coordinates[columnDim] = column.first;
      const count = row.count * column.count;
      if (count > 1) parts.isSummary = true;
      parts.cells.push({
        id: layout.shardNumber(coordinates),
        count,
        x: box.x + column.start,
        y: box.y + row.start,
        width: column.size,
        height: row.size,
        colors: colors.ofShard(coordinates),
        label: count > 1 ? "" : labelOf(coordinates),
      });
    }
  }
  return { rows, columns };
}

/** The label of each shard in boxes of one size: the devices that hold it, or empty if they do not fit. */
function shardLabels(layout: Layout, width: number, height: number, style: SceneStyle): (coordinates: readonly number[]) => string {
  if (width < 18 || height < 15) return () => "";
  if (layout.nShards === 1 && layout.nDevices > 4) {
    const label = fittingLabel([`all ${withCommas(layout.nDevices)} devices`, "all"], width, height, style);
    return () => label;
  }
  // The last shard has the longest ids: if its long label fits, all cells have long ones.
  const last = layout.shardCounts.map((count) => count - 1);
  const isLong = style.measure(devicesText(layout.shardDevices(last), layout.nReplicas), LABEL_SIZE) <= width - 6;
  return (coordinates) => fittingLabel([devicesText(layout.shardDevices(coordinates), layout.nReplicas, !isLong)], width, height, style);
}

export function dimensionText(layout: Layout, dim: number): string {
  const size = `dim ${dim}: ${withCommas(layout.shape[dim]!)}`;
  return layout.axesOf(dim).length ? `${size} over` : `${size}, not sharded`;
}

export function rangeText(layout: Layout, dim: number, bin: Bin): string {
  const size = layout.shardShape[dim]!;
  return `${BigInt(bin.first) * size}:${BigInt(bin.first + bin.count) * size}`;
}

function addColumnLabels(layout: Layout, dim: number, bins: readonly Bin[], box: Box, style: SceneStyle, parts: SceneParts): void {
  const labels = bins.map((bin) => rangeText(layout, dim, bin));
  const every = labelEvery(bins, Math.max(...labels.map((text) => style.measure(text, LABEL_SIZE))));
  bins.forEach((bin, index) => {
    const isOutside = every > 1 && box.x + bin.start + style.measure(labels[index]!, LABEL_SIZE) > box.x + box.width + 4;
    if (index % every || isOutside) return;
    parts.texts.push({
      x: box.x + bin.start + (every > 1 ? 0 : bin.size / 2),
      y: box.y - 8,
      text: labels[index]!,
      align: every > 1 ? "left" : "center",
      color: "faint",
      size: LABEL_SIZE,
    });
  });
}

function addRowLabels(layout: Layout, dim: number, bins: readonly Bin[], box: Box, parts: SceneParts): void {
  const step = bins.length > 1 ? bins[1]!.start - bins[0]!.start : Infinity;
  const every = Math.max(1, Math.ceil(16 / step));
  bins.forEach((bin, index) => {
    if (index % every) return;
    const y = box.y + bin.start + bin.size / 2 + 4;
    parts.texts.push({ x: box.x - 8, y, text: rangeText(layout, dim, bin), align: "right", color: "faint", size: LABEL_SIZE });
  });
}

function addRowHeading(layout: Layout, dim: number, box: Box, style: SceneStyle, parts: SceneParts): void {
  const axes = layout.axesOf(dim);
  const names = axes.map((name) => `${name} ${layout.mesh.size(name)}`).join(" × ");
  const text = `${dimensionText(layout, dim)}${names ? ` ${names}` : ""}`;
  const length = style.measure(text, 13);
  // Longer than the picture: only the number, because the slot above the picture has the rest.
  const fits = length <= box.height + 30;
  parts.texts.push({
    x: 14,
    y: box.y + box.height / 2,
    text: fits ? text : `dim ${dim}`,
    align: "center",
    color: "ink",
    size: 13,
    weight: 550,
    isVertical: true,
  });
}

function widestRowLabel(layout: Layout, dim: number, style: SceneStyle): number {
  const last = { first: layout.shardCounts[dim]! - 1, count: 1, start: 0, size: 0 };
  return style.measure(rangeText(layout, dim, last), LABEL_SIZE);
}

/** Four or more dimensions: a grid of two dimensions for each shard of the others. */
function multiples(layout: Layout, width: number, height: number, style: SceneStyle, parts: SceneParts): number {
  const [rowDim, columnDim] = planeDimensions(layout) as [number, number];
  const others = layout.shape.map((_, dim) => dim).filter((dim) => dim !== rowDim && dim !== columnDim);
  const sharded = others.filter((dim) => layout.shardCounts[dim]! > 1);
  const total = sharded.reduce((count, dim) => count * layout.shardCounts[dim]!, 1);
  const shown = Math.min(total, MAX_PANELS);
  if (total > shown) parts.isSummary = true;
  let y = 16;
  const dims = layout.shape.map((_, dim) => dim).filter((dim) => layout.axesOf(dim).length || dim === rowDim || dim === columnDim);
  for (const dim of dims) {
    const side = dim === rowDim ? "down, " : dim === columnDim ? "across, " : "panels, ";
    addHeading(parts, 2, y, side + dimensionText(layout, dim), layout.axesOf(dim), layout.mesh, style);
    y += 20;
  }
  const perRow = Math.min(shown, Math.max(1, Math.min(4, Math.floor(width / 150))));
  const panelRows = Math.ceil(shown / perRow);
  const panelWidth = (width - 14 * (perRow - 1)) / perRow;
  const available = Math.max(70, (height - y) / panelRows - 30);
  const ratio = Math.min(2.4, Math.max(0.8, ratioOf(layout.shape[columnDim]!, layout.shape[rowDim]!)));
  const panelHeight = Math.min(available, panelWidth / ratio, 300);
  for (let panel = 0; panel < shown; panel++) {
    const fixed = panelCoordinates(layout, sharded, panel);
    const x = (panel % perRow) * (panelWidth + 14);
    const panelTop = y + Math.floor(panel / perRow) * (panelHeight + 30);
    const caption = panelCaption(layout, sharded, fixed);
    if (caption) parts.texts.push({ x, y: panelTop + 10, text: caption, align: "left", color: "faint", size: LABEL_SIZE });
    addGrid(layout, { x, y: panelTop + 16, width: panelWidth, height: panelHeight }, rowDim, columnDim, fixed, style, parts);
  }
  const bottom = y + panelRows * (panelHeight + 30);
  if (total <= shown) return bottom;
  const text = `the first ${shown} of ${withCommas(total)} panels`;
  parts.texts.push({ x: 2, y: bottom + 12, text, align: "left", color: "faint", size: LABEL_SIZE });
  return bottom + 20;
}

function panelCoordinates(layout: Layout, dims: readonly number[], panel: number): number[] {
  const coordinates = layout.shape.map(() => 0);
  let rest = panel;
  for (const dim of [...dims].reverse()) {
    coordinates[dim] = rest % layout.shardCounts[dim]!;
    rest = Math.floor(rest / layout.shardCounts[dim]!);
  }
  return coordinates;
}

function panelCaption(layout: Layout, dims: readonly number[], fixed: readonly number[]): string {
  return dims
    .map((dim) => `dim ${dim}: ${rangeText(layout, dim, { first: fixed[dim]!, count: 1, start: 0, size: 0 })}`)
    .join(", ");
}
