// Draws tiles of devices on a canvas: header, numbers, textures, and the state marks of the visual language.

import { axisColor, cellColors, TEXTURES } from "../shared/palette.ts";
import type { DeviceGroup, Value } from "../shared/recording.ts";
import { heatIndex, needsLightText, type CanvasTheme } from "./canvas_theme.ts";
import { differingCells, rowsPerSlice, type Grid } from "./cells.ts";
import { formatNumber } from "./format.ts";
import { groupLabel, replicaSource, type LoadedRecording } from "./loaded_recording.ts";
import { deviceCoordinates, type MeshGrid } from "./mesh_grid.ts";
import type { Tile, TileLayout } from "./tile_layout.ts";

export interface View {
  scale: number;
  offsetX: number;
  offsetY: number;
  width: number;
  height: number;
}

export interface TileMarks {
  /** Devices that differ from run A. */
  divergent: ReadonlySet<number>;
  waiting: ReadonlySet<number>;
  missing: ReadonlySet<number>;
  selectedDevice: number | null;
  /** Devices in the group of the selected one. */
  groupMates: ReadonlySet<number>;
}

export interface PaintRequest {
  context: CanvasRenderingContext2D;
  theme: CanvasTheme;
  run: LoadedRecording;
  value: Value;
  layout: TileLayout;
  view: View;
  leading: number[];
  marks: TileMarks;
  /** Draw the picture of a tile instead of its numbers, for the hops of a collective. */
  paintPicture?: (tile: Tile, index: number) => void;
}

/** Below this width in pixels a tile is one flat square. */
const FLAT_TILE = 30;
/** Below this width in pixels a flat tile has no outline. */
const LINED_TILE = 14;
/** The part of a flat tile that has the colors of its shard. */
const FLAT_BAND = 0.3;

export class TilePainter {
  private readonly differing: boolean[];
  private readonly magnitude: number;
  private readonly images = new Map<number, HTMLCanvasElement>();
  private readonly patterns = new Map<string, CanvasPattern>();

  constructor(private readonly request: PaintRequest) {
    const { run, value, leading } = request;
    this.magnitude = run.scaleOf(value);
    const grids = value.disagrees ? value.groups.map((_, index) => run.groupGrid(value, index, leading)) : [];
    this.differing = differingCells(grids.filter((grid): grid is Grid => grid !== null));
  }

  paint(): void {
    const { context, view, layout, theme } = this.request;
    context.save();
    context.clearRect(0, 0, view.width, view.height);
    context.translate(view.offsetX, view.offsetY);
    context.scale(view.scale, view.scale);
    if (layout.grid !== null) this.paintAxisLabels(layout.grid);
    context.font = `500 11px ${theme.textFont}`;
    layout.tiles.forEach((tile, index) => {
      if (this.isVisible(tile)) this.paintTile(tile, index);
    });
    context.restore();
  }

  private isVisible(tile: Tile): boolean {
    const { view, layout } = this.request;
    const left = tile.x * view.scale + view.offsetX;
    const top = tile.y * view.scale + view.offsetY;
    return left < view.width && top < view.height && left + layout.tileWidth * view.scale > 0 && top + layout.tileHeight * view.scale > 0;
  }

  private paintTile(tile: Tile, index: number): void {
    const { layout, view, value } = this.request;
    const isFlat = layout.tileWidth * view.scale < FLAT_TILE;
    if (isFlat) this.paintFlatTile(tile);
    else {
      this.paintPictureArea(tile, index);
      this.paintHeader(tile);
    }
    this.paintState(tile, value.disagrees);
  }

  /**
   * Far away: the mean in the colors of the heat map, below a band of the shard's colors. Among hundreds of devices the
   * one that holds other numbers stands out, and the pattern on the mesh still shows.
   */
  private paintFlatTile(tile: Tile): void {
    const { context, layout, theme } = this.request;
    const mean = this.tileMean(tile);
    this.fillShardColors(tile, mean === null ? layout.tileHeight : layout.tileHeight * FLAT_BAND);
    if (mean !== null) {
      const band = layout.tileHeight * FLAT_BAND;
      context.fillStyle = Number.isNaN(mean) ? theme.bad : theme.heat[heatIndex(mean, this.magnitude)]!;
      context.fillRect(tile.x, tile.y + band, layout.tileWidth, layout.tileHeight - band);
    }
    // Around tiles of a few pixels lines would hide the colors; there the gaps are enough.
    if (layout.tileWidth * this.request.view.scale < LINED_TILE) return;
    context.strokeStyle = theme.line;
    context.lineWidth = 1 / this.request.view.scale;
    context.strokeRect(tile.x, tile.y, layout.tileWidth, layout.tileHeight);
  }

  private fillShardColors(tile: Tile, height: number): void {
    const { context, layout, run, value, theme } = this.request;
    const coordinates = deviceCoordinates(run.mesh, tile.devices[0] ?? 0);
    const axes = value.varies_over;
    const colors = cellColors(run.mesh, coordinates, axes, theme.isDark);
    context.fillStyle = colors[0]!;
    context.fillRect(tile.x, tile.y, layout.tileWidth, height);
    const bandHeight = Math.max(3, height * 0.22);
    colors.slice(1).forEach((color, band) => {
      context.fillStyle = color;
      const width = layout.tileWidth / (colors.length - 1);
      context.fillRect(tile.x + band * width, tile.y + height - bandHeight, width, bandHeight);
    });
  }

  private paintHeader(tile: Tile): void {
    const { context, layout, theme, value, view, run } = this.request;
    this.fillShardColors(tile, layout.headerHeight);
    const group = value.groups[tile.group];
    const source = layout.mode === "mesh" && group !== undefined && group.n > 1 ? replicaSource(run, value, tile.devices[0]!) : null;
    const isCopy = source !== null && source !== tile.devices[0];
    if (isCopy) this.fillTexture("replica", tile.x, tile.y, layout.tileWidth, layout.headerHeight);
    context.fillStyle = theme.ink;
    context.textBaseline = "middle";
    context.textAlign = "left";
    // Zoomed out, labels stay readable as long as the header has room for them.
    if (layout.headerHeight * view.scale < 9) return;
    const size = Math.min(layout.headerHeight - 2, Math.max(11, 9.5 / view.scale));
    context.font = `600 ${size}px ${theme.textFont}`;
    const middle = tile.y + layout.headerHeight / 2 - 0.5;
    const label = layout.mode === "mesh" ? String(tile.devices[0]) : group ? shortDevices(groupLabel(run, value, group)) : shortDevices(tile.label ?? "");
    context.fillText(label, tile.x + 6, middle, layout.tileWidth - 44);
    if (group === undefined) return;
    const room = layout.tileWidth - 18 - context.measureText(label).width;
    context.textAlign = "right";
    context.font = `500 ${size - 0.5}px ${theme.textFont}`;
    const badge = this.badges(tile, group, source).find((text) => context.measureText(text).width <= room);
    if (badge !== undefined) context.fillText(badge, tile.x + layout.tileWidth - 6, middle);
  }

  /** What the header says about other devices with these numbers; the first text that fits is drawn. */
  private badges(tile: Tile, group: DeviceGroup, source: number | null): string[] {
    if (this.request.layout.mode !== "mesh") return [`\u00d7${tile.devices.length}`];
    if (group.n === 1) return [];
    if (source === tile.devices[0]) return [`\u00d7${group.n}`];
    if (source !== null) return [`same as device ${source}`, `= device ${source}`, `copy of ${source}`, "copy"];
    return ["equal values", "equal"];
  }

  private paintPictureArea(tile: Tile, index: number): void {
    const { context, layout, theme, value, run, leading, paintPicture } = this.request;
    const top = tile.y + layout.headerHeight;
    const height = layout.tileHeight - layout.headerHeight;
    context.fillStyle = theme.panel;
    context.fillRect(tile.x, top, layout.tileWidth, height);
    if (paintPicture !== undefined) {
      paintPicture(tile, index);
    } else {
      const grid = tile.group >= 0 ? run.groupGrid(value, tile.group, leading) : null;
      if (grid === null) this.paintSummary(tile, top, height);
      else this.paintNumbers(tile, grid, top, height);
    }
    context.strokeStyle = theme.lineStrong;
    context.lineWidth = 1 / Math.max(1, this.request.view.scale);
    context.strokeRect(tile.x, tile.y, layout.tileWidth, layout.tileHeight);
  }

  /** The mean of a tile's numbers; null if the recording has none, and not a number if one of them is not. */
  private tileMean(tile: Tile): number | null {
    const { value, run } = this.request;
    const recorded = value.groups[tile.group]?.mean ?? run.deviceMean(value, tile.devices[0] ?? -1);
    return recorded === null ? null : Number(recorded);
  }

  private paintSummary(tile: Tile, top: number, height: number): void {
    const { context, layout, theme } = this.request;
    const mean = this.tileMean(tile);
    if (mean !== null) {
      context.fillStyle = theme.heat[heatIndex(mean, this.magnitude)]!;
      context.fillRect(tile.x, top, layout.tileWidth, height);
    }
    context.fillStyle = mean === null ? theme.muted : needsLightText(mean / this.magnitude, theme.isDark) ? "#ffffff" : "#14171c";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `500 11px ${theme.textFont}`;
    const text = mean === null ? "not recorded" : `mean ${formatNumber(mean)}`;
    context.fillText(text, tile.x + layout.tileWidth / 2, top + height / 2, layout.tileWidth - 8);
  }

  private paintNumbers(tile: Tile, grid: Grid, top: number, height: number): void {
    const { context, layout, theme, view, value } = this.request;
    const cellWidth = layout.tileWidth / grid.columns;
    const cellHeight = height / grid.rows;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.heatImage(tile.group, grid), tile.x, top, layout.tileWidth, height);
    if (Math.min(cellWidth, cellHeight) * view.scale >= 10) this.paintCellLines(tile, grid, top, height);
    this.paintSliceLines(tile, grid, top, height);
    // Below the numbers, so that they stay sharp.
    if (value.partial_over.length > 0) this.fillTexture("partial", tile.x, top, layout.tileWidth, height);
    const hasNumbers = cellWidth * view.scale >= 25 && cellHeight * view.scale >= 13;
    const isMarked = this.differing.length === grid.numbers.length;
    if (!hasNumbers && !isMarked) return;
    const size = Math.min(12, cellHeight * 0.56, cellWidth * 0.33);
    context.textAlign = "center";
    context.textBaseline = "middle";
    const characters = Math.max(5, Math.floor(cellWidth / (size * 0.6)));
    for (let index = 0; index < grid.numbers.length; index += 1) {
      const x = tile.x + (index % grid.columns) * cellWidth;
      const y = top + Math.floor(index / grid.columns) * cellHeight;
      const number = grid.numbers[index]!;
      if (isMarked && this.differing[index]) {
        context.strokeStyle = theme.bad;
        context.lineWidth = 1.5;
        context.strokeRect(x + 1.5, y + 1.5, cellWidth - 3, cellHeight - 3);
      }
      if (!hasNumbers) continue;
      context.font = `500 ${size}px ${theme.textFont}`;
      const isBad = !Number.isFinite(number);
      const light = needsLightText(number / this.magnitude, theme.isDark);
      context.fillStyle = isBad ? theme.bad : light ? "#ffffff" : "#14171c";
      context.fillText(formatNumber(number, characters), x + cellWidth / 2, y + cellHeight / 2 + 0.5, cellWidth - 4);
    }
  }

  private paintCellLines(tile: Tile, grid: Grid, top: number, height: number): void {
    const { context, layout, theme, view } = this.request;
    const width = 1 / Math.max(1, view.scale);
    context.fillStyle = theme.panel;
    context.globalAlpha = 0.55;
    for (let column = 1; column < grid.columns; column += 1) {
      context.fillRect(tile.x + (column * layout.tileWidth) / grid.columns - width / 2, top, width, height);
    }
    for (let row = 1; row < grid.rows; row += 1) {
      context.fillRect(tile.x, top + (row * height) / grid.rows - width / 2, layout.tileWidth, width);
    }
    context.globalAlpha = 1;
  }

  /** Arrays of rank 3 and more are drawn as rows: a gap parts one index of the leading dimensions from the next. */
  private paintSliceLines(tile: Tile, grid: Grid, top: number, height: number): void {
    const { context, layout, theme, value, view } = this.request;
    const slice = rowsPerSlice(value.shape, grid);
    if (slice === 0 || ((slice * height) / grid.rows) * view.scale < 6) return;
    const gap = 2 / Math.max(1, view.scale);
    context.fillStyle = theme.panel;
    for (let row = slice; row < grid.rows; row += slice) {
      context.fillRect(tile.x, top + (row * height) / grid.rows - gap / 2, layout.tileWidth, gap);
    }
  }

  /** The heat map of a group as an image of one pixel per number, scaled up by the canvas. */
  private heatImage(group: number, grid: Grid): HTMLCanvasElement {
    let image = this.images.get(group);
    if (image !== undefined) return image;
    image = document.createElement("canvas");
    image.width = grid.columns;
    image.height = grid.rows;
    const context = image.getContext("2d")!;
    const { theme } = this.request;
    for (let index = 0; index < grid.numbers.length; index += 1) {
      const number = grid.numbers[index]!;
      context.fillStyle = Number.isNaN(number) ? theme.badSoft : theme.heat[heatIndex(number, this.magnitude)]!;
      context.fillRect(index % grid.columns, Math.floor(index / grid.columns), 1, 1);
    }
    this.images.set(group, image);
    return image;
  }

  private paintState(tile: Tile, disagrees: boolean): void {
    const { context, layout, theme, marks, view } = this.request;
    const any = (devices: ReadonlySet<number>) => devices.size > 0 && tile.devices.some((device) => devices.has(device));
    const frame = (color: string, width: number, dash: number[] = []) => {
      context.strokeStyle = color;
      context.lineWidth = width / Math.min(1, view.scale * 1.5);
      context.setLineDash(dash);
      context.strokeRect(tile.x - 2, tile.y - 2, layout.tileWidth + 4, layout.tileHeight + 4);
      context.setLineDash([]);
    };
    if (any(marks.waiting) || any(marks.missing)) {
      this.paintWaiting(tile, any(marks.waiting));
      frame(any(marks.waiting) ? theme.bad : theme.muted, 2, any(marks.waiting) ? [] : [5, 4]);
    } else if (any(marks.divergent) || disagrees) frame(theme.bad, 2);
    if (any(marks.groupMates)) frame(theme.accent, 1.5, [2, 3]);
    if (marks.selectedDevice !== null && tile.devices.includes(marks.selectedDevice)) frame(theme.accent, 3);
  }

  private paintWaiting(tile: Tile, isWaiting: boolean): void {
    const { context, layout, theme } = this.request;
    const top = tile.y + layout.headerHeight;
    const height = layout.tileHeight - layout.headerHeight;
    context.fillStyle = isWaiting ? theme.badSoft : theme.sunken;
    context.fillRect(tile.x + 1, top, layout.tileWidth - 2, height - 1);
    context.fillStyle = isWaiting ? theme.bad : theme.muted;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `600 12px ${theme.textFont}`;
    context.fillText(waitingText(isWaiting, tile.devices.length), tile.x + layout.tileWidth / 2, top + height / 2, layout.tileWidth - 6);
  }

  private fillTexture(kind: keyof typeof TEXTURES, x: number, y: number, width: number, height: number): void {
    const { context, theme } = this.request;
    let pattern = this.patterns.get(kind);
    if (pattern === undefined) {
      const texture = TEXTURES[kind];
      const image = document.createElement("canvas");
      image.width = image.height = texture.size * 2;
      const drawing = image.getContext("2d")!;
      drawing.scale(2, 2);
      drawing.strokeStyle = theme.ink;
      drawing.globalAlpha = texture.opacity;
      drawing.lineWidth = texture.strokeWidth;
      drawing.stroke(new Path2D(texture.path));
      pattern = context.createPattern(image, "repeat")!;
      pattern.setTransform(new DOMMatrix().scale(0.5));
      this.patterns.set(kind, pattern);
    }
    context.fillStyle = pattern;
    context.fillRect(x, y, width, height);
  }

  private paintAxisLabels(grid: MeshGrid): void {
    const { context, layout, run, theme, view } = this.request;
    context.textBaseline = "middle";
    if (18 * view.scale < 9) {
      this.paintFarAxisLabels(grid);
      return;
    }
    const fontSize = Math.min(15, Math.max(11, 10.5 / view.scale));
    const chip = (axis: number, coordinate: number, x: number, y: number, width: number, align: CanvasTextAlign) => {
      const [name, size] = run.mesh[axis]!;
      context.fillStyle = axisColor(axis, coordinate, size, theme.isDark);
      roundedRect(context, x, y, width, 18, 4);
      context.fill();
      context.fillStyle = theme.ink;
      context.font = `550 ${fontSize}px ${theme.textFont}`;
      context.textAlign = align;
      context.fillText(`${name} ${coordinate}`, align === "center" ? x + width / 2 : x + 6, y + 9.5, width - 8);
    };
    for (let block = 0; block < grid.blockRows * grid.blockColumns; block += 1) {
      const blockX = (block % grid.blockColumns) * layout.blockWidth;
      const blockY = Math.floor(block / grid.blockColumns) * layout.blockHeight;
      if (grid.columnAxis !== null) {
        for (let column = 0; column < grid.columns; column += 1) {
          const x = layout.marginLeft + blockX + column * (layout.tileWidth + 10);
          chip(grid.columnAxis, column, x, layout.marginTop + blockY - 23, layout.tileWidth, "center");
        }
      }
      if (grid.rowAxis !== null && block % grid.blockColumns === 0) {
        for (let row = 0; row < grid.rows; row += 1) {
          chip(grid.rowAxis, row, 0, layout.marginTop + blockY + row * (layout.tileHeight + 10) + layout.tileHeight / 2 - 9, layout.marginLeft - 10, "left");
        }
      }
    }
    this.paintBlockLabels(grid);
  }

  /** Zoomed out too far for a label at each coordinate: one label for each axis. */
  private paintFarAxisLabels(grid: MeshGrid): void {
    const { context, layout, run, theme, view } = this.request;
    const text = (axis: number) => `${run.mesh[axis]![0]} 0 to ${run.mesh[axis]![1] - 1}`;
    context.fillStyle = theme.muted;
    context.font = `550 ${12 / view.scale}px ${theme.textFont}`;
    if (grid.rowAxis !== null) {
      context.save();
      context.translate(layout.marginLeft - 12 / view.scale, layout.height / 2);
      context.rotate(-Math.PI / 2);
      context.textAlign = "center";
      context.fillText(text(grid.rowAxis), 0, 0);
      context.restore();
    }
    if (grid.columnAxis !== null) {
      context.textAlign = "center";
      context.fillText(text(grid.columnAxis), (layout.marginLeft + layout.width) / 2, layout.marginTop - 8 / view.scale);
    }
  }

  private paintBlockLabels(grid: MeshGrid): void {
    const { context, layout, run, theme } = this.request;
    if (grid.blockColumnAxes.length === 0 && grid.blockRowAxes.length === 0) return;
    context.font = `600 12px ${theme.textFont}`;
    context.fillStyle = theme.muted;
    context.textAlign = "left";
    for (let block = 0; block < grid.blockColumns; block += 1) {
      let rest = block;
      const labels: string[] = [];
      for (const axis of [...grid.blockColumnAxes].reverse()) {
        const [name, size] = run.mesh[axis]!;
        labels.unshift(`${name} ${rest % size}`);
        rest = Math.floor(rest / size);
      }
      context.fillText(labels.join(", "), layout.marginLeft + block * layout.blockWidth, layout.marginTop - 36);
    }
  }
}

export function roundedRect(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number, radius: number): void {
  context.beginPath();
  context.roundRect(x, y, width, height, radius);
}

/** "waits forever", or for several devices in one tile "511 wait forever" */
export function waitingText(isWaiting: boolean, count: number): string {
  if (!isWaiting) return count === 1 ? "never arrives" : `${count} never arrive`;
  return count === 1 ? "waits forever" : `${count} wait forever`;
}

function shortDevices(devices: string): string {
  return devices.length <= 18 ? devices : `${devices.slice(0, 16)}\u2026`;
}
