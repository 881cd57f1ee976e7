// The mesh: the last axis across, the one before it down, the others as panels. Long single rows are wrapped.

import type { Layout } from "../shared/mesh.ts";
import { withCommas } from "../shared/python_text.ts";
import { LABEL_SIZE, addHeading, fittingLabel, makeBins, ShardColors, type Bin, type Scene, type SceneCell, type SceneStyle, type SceneText, type Swatch } from "./scene.ts";

const MIN_CELL = 5;
const MAX_PANELS = 16;
const WRAP = 16; // devices in a row of a mesh with one axis

interface MeshGrid {
  /** Axes of the panels, of the rows and of the columns, as indices of the mesh. */
  readonly panelAxes: readonly number[];
  readonly rowAxis: number | null;
  readonly columnAxis: number | null;
}

interface Parts {
  readonly cells: SceneCell[];
  readonly texts: SceneText[];
  readonly swatches: Swatch[];
  readonly colors: ShardColors;
  isSummary: boolean;
}

/** Builds the picture of the mesh in `width` pixels and at most about `height`. */
export function meshScene(layout: Layout, width: number, height: number, style: SceneStyle): Scene {
  const parts: Parts = { cells: [], texts: [], swatches: [], colors: new ShardColors(layout, style.dark), isSummary: false };
  const { mesh } = layout;
  const nAxes = mesh.sizes.length;
  const grid: MeshGrid = {
    panelAxes: mesh.names.map((_, axis) => axis).slice(0, Math.max(0, nAxes - 2)),
    rowAxis: nAxes > 1 ? nAxes - 2 : null,
    columnAxis: nAxes > 0 ? nAxes - 1 : null,
  };
  let y = 16;
  mesh.names.forEach((name, axis) => {
    const direction = axis === grid.columnAxis ? "across" : axis === grid.rowAxis ? "down" : "panels";
    const width = addHeading(parts, 2, y, `${direction}:`, [name], mesh, style);
    if (mesh.sizes[axis]! > 1 && !layout.spec.meshAxes.includes(name)) {
      parts.texts.push({ x: 2 + width, y, text: "holds copies", align: "left", color: "faint", size: 13 });
    }
    y += 20;
  });
  const isWrapped = nAxes === 1 && mesh.sizes[0]! > WRAP;
  const bottom = isWrapped
    ? addWrappedRow(layout, width, height - y, y, style, parts)
    : addPanels(layout, grid, width, height - y, y, style, parts);
  const note = parts.isSummary ? `${withCommas(layout.nDevices)} devices: each box stands for several neighbors` : "";
  const { cells, texts, swatches } = parts;
  return { width, height: bottom, cells, texts, swatches, isHatched: layout.nReplicas > 1, note };
}

function addPanels(layout: Layout, grid: MeshGrid, width: number, height: number, top: number, style: SceneStyle, parts: Parts): number {
  const { mesh } = layout;
  const nColumns = grid.columnAxis === null ? 1 : mesh.sizes[grid.columnAxis]!;
  const nRows = grid.rowAxis === null ? 1 : mesh.sizes[grid.rowAxis]!;
  const total = grid.panelAxes.reduce((count, axis) => count * mesh.sizes[axis]!, 1);
  const shown = Math.min(total, MAX_PANELS);
  if (shown < total) parts.isSummary = true;
  const hasCaption = grid.panelAxes.length > 0;
  const left = grid.rowAxis === null ? 2 : digitsWidth(nRows, style);
  const perRow = panelsPerRow(shown, nRows, nColumns, width, Math.max(160, height));
  const panelRows = Math.ceil(shown / perRow);
  const innerWidth = (width - 18 * (perRow - 1)) / perRow - left;
  const cell = Math.min(innerWidth / nColumns, 130);
  const rowHeight = Math.max(leastRowHeight(nRows, shown), Math.min(88, (Math.max(160, height) / panelRows - 46) / nRows, cell * 0.8));
  const gridWidth = cell * nColumns;
  const gridHeight = Math.min(rowHeight * nRows, 620);
  const step = gridHeight + (hasCaption ? 46 : 28);
  for (let panel = 0; panel < shown; panel++) {
    const fixed = panelCoordinate(layout, grid, panel);
    const x = (panel % perRow) * (innerWidth + left + 18) + left;
    const y = top + Math.floor(panel / perRow) * step;
    const captionY = y + 8;
    if (hasCaption) {
      const text = grid.panelAxes.map((axis) => `${mesh.names[axis]}=${fixed[axis]}`).join(", ");
      parts.texts.push({ x, y: captionY, text, align: "left", color: "ink", size: LABEL_SIZE, weight: 550 });
    }
    addGrid(layout, grid, fixed, { x, y: y + (hasCaption ? 30 : 12), width: gridWidth, height: gridHeight }, style, parts);
  }
  const bottom = top + panelRows * step;
  if (shown === total) return bottom;
  const text = `the first ${shown} of ${withCommas(total)} panels`;
  parts.texts.push({ x: 2, y: bottom + 8, text, align: "left", color: "faint", size: LABEL_SIZE });
  return bottom + 18;
}

/** Room for the largest label: digits have different widths, and 0 is a wide one. */
function digitsWidth(count: number, style: SceneStyle): number {
  return 12 + style.measure("0".repeat(`${count - 1}`.length), LABEL_SIZE);
}

function leastRowHeight(nRows: number, nPanels: number): number {
  return nRows > 40 ? 6 : nPanels > 4 ? 14 : 18;
}

/**
 * The number of panels side by side: that with the largest cells if all panels fit the height, or else the one that is
 * least high, as long as its cells have room for a number.
 */
function panelsPerRow(shown: number, nRows: number, nColumns: number, width: number, height: number): number {
  let best = { perRow: 1, cell: 0, overflow: Infinity };
  for (let perRow = 1; perRow <= Math.min(shown, 8); perRow++) {
    const cellWidth = (width / perRow - 34) / nColumns;
    const panelRows = Math.ceil(shown / perRow);
    const cellHeight = Math.max((height / panelRows - 46) / nRows, leastRowHeight(nRows, shown));
    const overflow = Math.max(0, panelRows * (cellHeight * nRows + 46) - height);
    const cell = Math.min(cellWidth, cellHeight);
    if (perRow > 1 && cellWidth < Math.min(20, width / nColumns / 2)) break;
    if (overflow < best.overflow - 1 || (overflow < best.overflow + 1 && cell > best.cell)) best = { perRow, cell, overflow };
  }
  return best.perRow;
}

function panelCoordinate(layout: Layout, grid: MeshGrid, panel: number): number[] {
  const coordinate = layout.mesh.sizes.map(() => 0);
  let rest = panel;
  for (const axis of [...grid.panelAxes].reverse()) {
    coordinate[axis] = rest % layout.mesh.sizes[axis]!;
    rest = Math.floor(rest / layout.mesh.sizes[axis]!);
  }
  return coordinate;
}

interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

function addGrid(layout: Layout, grid: MeshGrid, fixed: readonly number[], box: Box, style: SceneStyle, parts: Parts): void {
  const { mesh } = layout;
  const rows = makeBins(grid.rowAxis === null ? 1 : mesh.sizes[grid.rowAxis]!, box.height, MIN_CELL, 3);
  const columns = makeBins(grid.columnAxis === null ? 1 : mesh.sizes[grid.columnAxis]!, box.width, MIN_CELL, 3);
  const coordinate = [...fixed];
  const labelOf = deviceLabels(layout, columns[0]!.size, rows[0]!.size, style);
  for (const row of rows) {
    if (grid.rowAxis !== null) coordinate[grid.rowAxis] = row.first;
    for (const column of columns) {
      if (grid.columnAxis !== null) coordinate[grid.columnAxis] = column.first;
      const count = row.count * column.count;
      if (count > 1) parts.isSummary = true;
      const id = mesh.deviceAt(coordinate);
      const label = count > 1 ? "" : labelOf(id);
      parts.cells.push({ id, count, x: box.x + column.start, y: box.y + row.start, width: column.size, height: row.size, colors: parts.colors.ofDevice(coordinate), label });
    }
  }
  if (grid.columnAxis !== null) addLabels(columns, (bin, text) => ({ x: box.x + bin.start + bin.size / 2, y: box.y - 5, text, align: "center", color: "faint", size: LABEL_SIZE }), 20, parts);
  if (grid.rowAxis !== null) addLabels(rows, (bin, text) => ({ x: box.x - 7, y: box.y + bin.start + bin.size / 2 + 4, text, align: "right", color: "faint", size: LABEL_SIZE }), 15, parts);
}

function addLabels(bins: readonly Bin[], place: (bin: Bin, text: string) => SceneText, space: number, parts: Parts): void {
  const step = bins.length > 1 ? bins[1]!.start : Infinity;
  const every = Math.max(1, Math.ceil(space / step));
  bins.forEach((bin, index) => {
    if (index % every === 0) parts.texts.push(place(bin, `${bin.first}`));
  });
}

/** The label of each device in boxes of one size: long if all long ones fit, empty if it does not fit. */
function deviceLabels(layout: Layout, width: number, height: number, style: SceneStyle): (device: number) => string {
  if (width < 12) return () => "";
  const isLong = style.measure(`device ${layout.nDevices - 1}`, LABEL_SIZE) <= width - 6;
  return (device) => fittingLabel([isLong ? `device ${device}` : `${device}`], width + 4, height, style);
}

/** A mesh with one long axis: lines of 16, 32 or 64 devices. */
function addWrappedRow(layout: Layout, width: number, height: number, top: number, style: SceneStyle, parts: Parts): number {
  const size = layout.mesh.sizes[0]!;
  const perLine = size > 1024 ? 64 : size > 128 ? 32 : WRAP;
  const maxLines = 48;
  const lines = Math.ceil(size / perLine);
  const left = digitsWidth(size, style);
  const cell = (width - left) / perLine;
  const lineHeight = Math.max(8, Math.min(30, cell, Math.max(160, height) / Math.min(lines, maxLines)));
  const shownLines = Math.min(lines, maxLines);
  if (shownLines < lines) parts.isSummary = true;
  const labelOf = deviceLabels(layout, cell - 2, lineHeight - 2, style);
  for (let line = 0; line < shownLines; line++) {
    const y = top + 6 + line * lineHeight;
    if (lineHeight >= 14 || line % 2 === 0) {
      parts.texts.push({ x: left - 7, y: y + lineHeight / 2 + 3, text: `${line * perLine}`, align: "right", color: "faint", size: LABEL_SIZE });
    }
    for (let column = 0; column < perLine && line * perLine + column < size; column++) {
      const id = line * perLine + column;
      parts.cells.push({ id, count: 1, x: left + column * cell, y, width: cell - 2, height: lineHeight - 2, colors: parts.colors.ofDevice([id]), label: labelOf(id) });
    }
  }
  const bottom = top + 6 + shownLines * lineHeight + 8;
  if (shownLines === lines) return bottom;
  const text = `the first ${withCommas(shownLines * perLine)} of ${withCommas(size)} devices`;
  parts.texts.push({ x: 2, y: bottom + 8, text, align: "left", color: "faint", size: LABEL_SIZE });
  return bottom + 18;
}
