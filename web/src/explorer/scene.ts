// A scene is what a canvas shows: cells (shards or devices) with their colors, and texts. Building it is separate from
// drawing it, so that hovering only draws again and tests can look at positions.

import { axisColor, neutralColor } from "../shared/palette.ts";
import type { Layout, Mesh } from "../shared/mesh.ts";

export interface Face {
  /** Corners as x, y, x, y, ... */
  readonly points: readonly number[];
  /** Added light: positive is towards white, negative towards black. */
  readonly light: number;
}

export interface SceneCell {
  /** The shard number in array order, or the device id. */
  readonly id: number;
  /** How many shards or devices the cell stands for; more than one in a summary. */
  readonly count: number;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  /** The faces of a block; without them the cell is a rectangle. */
  readonly faces?: readonly Face[];
  /** Behind other blocks: drawn only while it is highlighted. */
  readonly isHidden?: boolean;
  /** The fill, then one band for each further mesh axis that shards the array. */
  readonly colors: readonly string[];
  readonly label: string;
}

export interface SceneText {
  readonly x: number;
  readonly y: number;
  readonly text: string;
  readonly align: CanvasTextAlign;
  readonly color: "ink" | "faint" | string;
  readonly size: number;
  readonly weight?: number;
  /** Turned to read upwards. */
  readonly isVertical?: boolean;
}

export interface Swatch {
  readonly x: number;
  readonly y: number;
  readonly size: number;
  readonly color: string;
}

export interface Scene {
  readonly width: number;
  readonly height: number;
  readonly cells: readonly SceneCell[];
  readonly texts: readonly SceneText[];
  readonly swatches: readonly Swatch[];
  readonly isHatched: boolean;
  /** Says what a cell of a summary stands for; empty if every shard or device is drawn. */
  readonly note: string;
}

/** How a scene is drawn: theme and measured text. */
export interface SceneStyle {
  readonly dark: boolean;
  readonly measure: (text: string, size: number) => number;
}

export const LABEL_SIZE = 11.5;
export const HEADING_SIZE = 13;

/** Consecutive positions along one direction, grouped if there are too many to draw. */
export interface Bin {
  readonly first: number;
  readonly count: number;
  readonly start: number;
  readonly size: number;
}

/** Divides `length` pixels among `count` positions, with boxes of at least `minimum` pixels and a gap between them. */
export function makeBins(count: number, length: number, minimum: number, gap: number): Bin[] {
  const maxBins = Math.max(1, Math.floor(length / minimum));
  const group = Math.ceil(count / maxBins);
  const bins: Bin[] = [];
  const scale = length / count;
  for (let first = 0; first < count; first += group) {
    const size = Math.min(group, count - first);
    const space = size * scale < 4 ? 0.5 : size * scale < 8 ? Math.min(gap, 1) : gap;
    bins.push({ first, count: size, start: first * scale, size: Math.max(0.75, size * scale - space) });
  }
  return bins;
}

/** A mesh axis that shards the array: the dimension, how many shards one step along the axis passes, and its colors. */
interface ShardingAxis {
  readonly axis: number;
  readonly dim: number;
  readonly stride: number;
  readonly size: number;
  readonly colors: AxisColors;
}

/** The color of each coordinate along a mesh axis, computed when it is first needed: an axis can have 2**31 devices. */
type AxisColors = (step: number) => string;

/**
 * The colors of the shards and devices of a layout, as `cellColors` of the palette.
 *
 * A drag asks for those of every device in every frame, so all lookups by name happen once, here.
 */
export class ShardColors {
  private readonly axes: readonly ShardingAxis[];
  private readonly neutral: readonly string[];

  constructor({ mesh, spec }: Layout, dark: boolean) {
    const axes: ShardingAxis[] = [];
    spec.axes.forEach((names, dim) => {
      let stride = 1;
      for (const name of [...names].reverse()) {
        const [axis, size] = [mesh.axisIndex(name), mesh.size(name)];
        if (size > 1) axes.push({ axis, dim, stride, size, colors: axisColors(mesh.hues[axis]!, size, dark) });
        stride *= size;
      }
    });
    this.axes = axes.sort((one, other) => one.axis - other.axis);
    this.neutral = [neutralColor(0, 2, dark)];
  }

  /** The colors of a device, from its coordinate in the mesh. */
  ofDevice(coordinate: readonly number[]): readonly string[] {
    return this.axes.length ? this.axes.map(({ axis, colors }) => colors(coordinate[axis]!)) : this.neutral;
  }

  /** The colors of a shard, from its coordinates in the array. */
  ofShard(coordinates: readonly number[]): readonly string[] {
    if (!this.axes.length) return this.neutral;
    return this.axes.map(({ dim, stride, size, colors }) => colors(Math.floor(coordinates[dim]! / stride) % size));
  }
}

const axisColorCache = new Map<string, AxisColors>();

function axisColors(hue: number, size: number, dark: boolean): AxisColors {
  const key = `${hue}.${size}.${dark}`;
  let lookUp = axisColorCache.get(key);
  if (lookUp === undefined) {
    const colors = new Map<number, string>();
    lookUp = (step) => {
      let color = colors.get(step);
      if (color === undefined) colors.set(step, (color = axisColor(hue, step, size, dark)));
      return color;
    };
    if (axisColorCache.size > 20) axisColorCache.clear();
    axisColorCache.set(key, lookUp);
  }
  return lookUp;
}

const colorCache = new Map<string, string>();

/** A color with light added (towards white) or taken away (towards black). */
export function lighten(color: string, light: number): string {
  if (light === 0) return color;
  const key = `${color}.${light}`;
  let result = colorCache.get(key);
  if (result === undefined) {
    const target = light > 0 ? 255 : 0;
    const channels = [1, 3, 5].map((start) => Number.parseInt(color.slice(start, start + 2), 16));
    const mixed = channels.map((value) => Math.round(value + (target - value) * Math.abs(light)));
    result = `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
    if (colorCache.size > 20_000) colorCache.clear();
    colorCache.set(key, result);
  }
  return result;
}

/** The strongest shade of an axis, for its name. */
export function axisNameColor(mesh: Mesh, name: string, dark: boolean): string {
  const size = Math.max(2, mesh.size(name));
  return axisColor(mesh.hues[mesh.axisIndex(name)]!, size - 1, size, dark);
}

/** A heading with a swatch for each mesh axis: "dim 1: 16,384 over ■ model". Returns its width. */
export function addHeading(
  parts: { texts: SceneText[]; swatches: Swatch[] },
  x: number,
  y: number,
  lead: string,
  axes: readonly string[],
  mesh: Mesh,
  style: SceneStyle,
): number {
  let cursor = x;
  const put = (text: string, color: string, weight: number) => {
    parts.texts.push({ x: cursor, y, text, align: "left", color, size: HEADING_SIZE, weight });
    cursor += style.measure(text, HEADING_SIZE) + 6;
  };
  put(lead, "ink", 550);
  axes.forEach((name, index) => {
    if (index > 0) put("×", "faint", 400);
    parts.swatches.push({ x: cursor, y: y - 9.5, size: 10, color: axisNameColor(mesh, name, style.dark) });
    cursor += 14;
    put(`${name} ${mesh.size(name)}`, "ink", 550);
  });
  return cursor - x;
}

/** Shows a label for every n-th position, so that labels do not touch. */
export function labelEvery(bins: readonly Bin[], widest: number): number {
  const step = bins.length > 1 ? bins[1]!.start - bins[0]!.start : Infinity;
  const every = Math.ceil((widest + 10) / step);
  return every <= 1 ? 1 : every;
}

/** The short list of devices in a cell; empty if it does not fit. */
export function fittingLabel(candidates: readonly string[], width: number, height: number, style: SceneStyle): string {
  if (height < 15) return "";
  return candidates.find((text) => style.measure(text, LABEL_SIZE) <= width - 8) ?? "";
}

/** Dimensions to draw in the plane: those with most shards, later ones first among equals. */
export function planeDimensions(layout: Layout): number[] {
  const dims = layout.shape.map((_, dim) => dim);
  return dims
    .sort((a, b) => layout.shardCounts[b]! - layout.shardCounts[a]! || b - a)
    .slice(0, 2)
    .sort((a, b) => a - b);
}
