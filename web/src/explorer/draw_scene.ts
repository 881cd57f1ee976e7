// Draws a scene on a canvas, and finds the cell under the pointer.

import { FAINT, INK, LINE, PAPER, TEXTURES } from "../shared/palette.ts";
import { LABEL_SIZE, lighten, type Scene, type SceneCell, type SceneStyle } from "./scene.ts";

export interface Highlight {
  /** The cell that is pointed at, or that follows from it. */
  readonly main: ReadonlySet<number>;
  /** Further cells with the same content, framed with a dashed line. */
  readonly others: ReadonlySet<number>;
}

const FONT = '"Inter", system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

export function fontOf(size: number, weight = 400): string {
  return `${weight} ${size}px ${FONT}`;
}

/** Draws everything; cells that are not highlighted are faint while there is a highlight. */
export function drawScene(
  context: CanvasRenderingContext2D,
  scene: Scene,
  style: SceneStyle,
  highlight: Highlight | null,
): void {
  const theme = style.dark ? 1 : 0;
  const hatch = scene.isHatched ? hatchPattern(context, style.dark) : null;
  const isMarked = (cell: SceneCell) => highlight === null || highlight.main.has(cell.id) || highlight.others.has(cell.id);
  const visible = scene.cells.filter((cell) => !cell.isHidden);
  context.lineWidth = 1;
  if (highlight) {
    context.globalAlpha = 0.28;
    drawCells(context, visible.filter((cell) => !isMarked(cell)), style, hatch);
    context.globalAlpha = 1;
    // Blocks at the back are hidden by others: the marked ones are drawn last, on top.
    const marked = scene.cells.filter(isMarked);
    drawCells(context, marked, style, hatch);
    for (const cell of marked) frameCell(context, cell, theme, highlight.main.has(cell.id));
  } else {
    drawCells(context, visible, style, hatch);
  }
  for (const swatch of scene.swatches) {
    context.fillStyle = swatch.color;
    context.fillRect(swatch.x, swatch.y, swatch.size, swatch.size);
  }
  drawTexts(context, scene.texts, theme);
}

function drawTexts(context: CanvasRenderingContext2D, texts: Scene["texts"], theme: 0 | 1): void {
  let font = "";
  for (const text of texts) {
    const wanted = fontOf(text.size, text.weight);
    // The browser parses a font each time it is set.
    if (wanted !== font) context.font = font = wanted;
    context.fillStyle = text.color === "ink" ? INK[theme] : text.color === "faint" ? FAINT[theme] : text.color;
    context.textAlign = text.align;
    if (text.isVertical) {
      context.save();
      context.translate(text.x, text.y);
      context.rotate(-Math.PI / 2);
      context.fillText(text.text, 0, 0);
      context.restore();
    } else {
      context.fillText(text.text, text.x, text.y);
    }
  }
}

/** Draws cells in passes (fills, hatching, bands, borders, labels): one path for all is much faster than one for each. */
function drawCells(context: CanvasRenderingContext2D, cells: readonly SceneCell[], style: SceneStyle, hatch: CanvasPattern | null): void {
  const theme = style.dark ? 1 : 0;
  if (cells[0]?.faces) {
    for (const cell of cells) drawBlock(context, cell, theme, hatch);
    return;
  }
  for (const { x, y, width, height, colors } of cells) {
    context.fillStyle = colors[0]!;
    context.fillRect(x, y, width, height);
  }
  if (hatch) {
    context.beginPath();
    for (const { x, y, width, height } of cells) context.rect(x, y, width, height);
    context.fillStyle = hatch;
    context.fill();
  }
  for (const cell of cells) drawBands(context, cell, theme);
  context.beginPath();
  for (const { x, y, width, height } of cells) {
    if (width > 8 && height > 8) context.rect(x + 0.5, y + 0.5, width - 1, height - 1);
  }
  context.strokeStyle = LINE[theme];
  context.stroke();
  drawLabels(context, cells, style, hatch !== null);
}

function bandHeight(cell: SceneCell): number {
  return Math.min(6, cell.height / (cell.colors.length + 1));
}

function drawBands(context: CanvasRenderingContext2D, cell: SceneCell, theme: 0 | 1): void {
  const { x, y, width, height, colors } = cell;
  const band = bandHeight(cell);
  for (let index = 1; index < colors.length; index++) {
    const top = y + height - band * (colors.length - index);
    context.fillStyle = colors[index]!;
    context.fillRect(x, top, width, band);
    if (band <= 3) continue;
    context.fillStyle = PAPER[theme];
    context.fillRect(x, top, width, 0.8);
  }
}

function drawLabels(context: CanvasRenderingContext2D, cells: readonly SceneCell[], style: SceneStyle, isHatched: boolean): void {
  context.font = fontOf(LABEL_SIZE, 500);
  context.textAlign = "center";
  for (const cell of cells) {
    if (!cell.label) continue;
    const { x, y, width, height, colors } = cell;
    const middle = y + (height - bandHeight(cell) * (colors.length - 1)) / 2 + 4;
    if (isHatched && context.globalAlpha === 1) {
      // Lines through letters are hard to read. On a faint cell the patch would be darker than the cell.
      const textWidth = style.measure(cell.label, LABEL_SIZE) + 6;
      context.fillStyle = colors[0]!;
      context.fillRect(x + (width - textWidth) / 2, middle - 11, textWidth, 15);
    }
    context.fillStyle = INK[style.dark ? 1 : 0];
    context.fillText(cell.label, x + width / 2, middle);
  }
}

function drawBlock(context: CanvasRenderingContext2D, cell: SceneCell, theme: 0 | 1, hatch: CanvasPattern | null): void {
  for (const face of cell.faces!) {
    tracePolygon(context, face.points);
    context.fillStyle = lighten(cell.colors[0]!, face.light);
    context.fill();
    context.strokeStyle = theme ? "rgb(0 0 0 / 0.5)" : "rgb(20 23 28 / 0.32)";
    context.stroke();
    if (hatch && face.light === 0) {
      context.fillStyle = hatch;
      context.fill();
    }
    if (face.light <= 0) drawBlockBands(context, face.points, cell.colors, face.light);
  }
}

/** Bands along the lower edge of an upright face: corners are in the order upper, upper, lower, lower. */
function drawBlockBands(context: CanvasRenderingContext2D, points: readonly number[], colors: readonly string[], light: number): void {
  const height = points[5]! - points[3]!;
  const band = Math.min(7, height / (colors.length + 1));
  for (let index = 1; index < colors.length; index++) {
    const offset = band * (colors.length - index);
    const strip = [points[6]!, points[7]! - offset, points[4]!, points[5]! - offset, points[4]!, points[5]! - offset + band, points[6]!, points[7]! - offset + band];
    tracePolygon(context, strip);
    context.fillStyle = lighten(colors[index]!, light);
    context.fill();
  }
}

function tracePolygon(context: CanvasRenderingContext2D, points: readonly number[]): void {
  context.beginPath();
  context.moveTo(points[0]!, points[1]!);
  for (let index = 2; index < points.length; index += 2) context.lineTo(points[index]!, points[index + 1]!);
  context.closePath();
}

function frameCell(context: CanvasRenderingContext2D, cell: SceneCell, theme: 0 | 1, isMain: boolean): void {
  context.strokeStyle = INK[theme];
  context.lineWidth = isMain ? 2.5 : 1.5;
  context.setLineDash(isMain ? [] : [4, 3]);
  if (cell.faces) {
    for (const face of cell.faces) {
      tracePolygon(context, face.points);
      context.stroke();
    }
  } else {
    context.strokeRect(cell.x + 0.5, cell.y + 0.5, cell.width - 1, cell.height - 1);
  }
  context.setLineDash([]);
  context.lineWidth = 1;
}

const patterns = new Map<string, CanvasPattern | null>();

function hatchPattern(context: CanvasRenderingContext2D, dark: boolean): CanvasPattern | null {
  const key = `${dark}`;
  if (!patterns.has(key)) {
    const { size, path, strokeWidth, opacity } = TEXTURES.replica;
    const scale = 2; // drawn at twice the size, so that it stays sharp on dense screens
    const tile = document.createElement("canvas");
    tile.width = tile.height = size * scale;
    const tileContext = tile.getContext("2d")!;
    tileContext.scale(scale, scale);
    tileContext.strokeStyle = INK[dark ? 1 : 0];
    tileContext.globalAlpha = opacity * 0.8;
    tileContext.lineWidth = strokeWidth;
    tileContext.stroke(new Path2D(path));
    const pattern = context.createPattern(tile, "repeat");
    pattern?.setTransform(new DOMMatrix().scale(1 / scale));
    patterns.set(key, pattern);
  }
  return patterns.get(key)!;
}

/** The cell at a point; of several blocks the one in front. */
export function cellAt(scene: Scene, x: number, y: number): SceneCell | null {
  for (let index = scene.cells.length - 1; index >= 0; index--) {
    const cell = scene.cells[index]!;
    if (cell.isHidden) continue;
    const isInBox = x >= cell.x && x <= cell.x + cell.width + 2 && y >= cell.y && y <= cell.y + cell.height + 2;
    if (isInBox && (!cell.faces || cell.faces.some((face) => isInside(face.points, x, y)))) return cell;
  }
  return null;
}

function isInside(points: readonly number[], x: number, y: number): boolean {
  let inside = false;
  for (let i = 0, j = points.length - 2; i < points.length; j = i, i += 2) {
    const [xi, yi, xj, yj] = [points[i]!, points[i + 1]!, points[j]!, points[j + 1]!];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}
