// An array of rank 3 as an isometric block: dimension 0 goes back, dimension 1 down, dimension 2 to the right.

import type { Layout } from "../shared/mesh.ts";
import { rangeText, dimensionText, summaryNote, type SceneParts } from "./array_scene.ts";
import { LABEL_SIZE, addHeading, makeBins, ShardColors, type Bin, type Face, type Scene, type SceneStyle } from "./scene.ts";

const COS = Math.cos(Math.PI / 6);
const SIN = 0.5;
const MAX_BINS = 16; // along each dimension: 16 x 16 x 16 blocks
const GAP = 0.14; // of a shard, so that the block is seen to be made of parts

interface Edges {
  readonly depth: number;
  readonly rows: number;
  readonly columns: number;
}

/** Builds the block; each shard is a cuboid, drawn from the back to the front. */
export function blockScene(layout: Layout, width: number, height: number, style: SceneStyle): Scene {
  const parts: SceneParts = { cells: [], texts: [], swatches: [], isSummary: false };
  for (const dim of [0, 1, 2]) {
    const direction = ["back, ", "down, ", "right, "][dim];
    addHeading(parts, 2, 16 + 20 * dim, direction + dimensionText(layout, dim), layout.axesOf(dim), layout.mesh, style);
  }
  const top = 74;
  const edges = fitEdges(layout, width - 150, Math.max(180, height - top - 40));
  const project = projection(edges, width, top);
  const bins = [0, 1, 2].map((dim) => {
    const length = [edges.depth, edges.rows, edges.columns][dim]!;
    return makeBins(layout.shardCounts[dim]!, length, length / MAX_BINS, 0);
  }) as [Bin[], Bin[], Bin[]];
  const colors = new ShardColors(layout, style.dark);
  const ordered = [[...bins[0]].reverse(), [...bins[1]].reverse(), bins[2]] as const;
  for (const back of ordered[0]) {
    for (const down of ordered[1]) {
      for (const right of ordered[2]) addCuboid(layout, [back, down, right], bins, project, style, colors, parts);
    }
  }
  addEdgeLabels(layout, bins, edges, project, parts);
  const used = top + edges.rows + (edges.columns + edges.depth) * SIN + 30;
  return { width, height: used, ...parts, isHatched: layout.nReplicas > 1, note: summaryNote(layout, parts) };
}

type Project = (back: number, down: number, right: number) => [number, number];

function projection(edges: Edges, width: number, top: number): Project {
  const total = (edges.columns + edges.depth) * COS;
  const x0 = Math.max(78, (width - total) / 2);
  const y0 = top + edges.depth * SIN;
  return (back, down, right) => [x0 + (right + back) * COS, y0 + down + (right - back) * SIN];
}

/** Edge lengths in pixels: the square root of the sizes, so that a long dimension does not hide the others. */
function fitEdges(layout: Layout, width: number, height: number): Edges {
  const roots = layout.shape.map((size) => Math.sqrt(Number(size) || 1));
  const largest = Math.max(...roots);
  const [depth, rows, columns] = roots.map((root) => Math.max(0.42, Number.isFinite(root / largest) ? root / largest : 1)) as [
    number,
    number,
    number,
  ];
  const scale = Math.min(width / ((columns + depth) * COS), height / (rows + (columns + depth) * SIN), 330);
  return { depth: depth * scale, rows: rows * scale, columns: columns * scale };
}

function addCuboid(
  layout: Layout,
  [back, down, right]: readonly [Bin, Bin, Bin],
  all: readonly [Bin[], Bin[], Bin[]],
  project: Project,
  style: SceneStyle,
  colors: ShardColors,
  parts: SceneParts,
): void {
  const coordinates = [back.first, down.first, right.first];
  const count = back.count * down.count * right.count;
  if (count > 1) parts.isSummary = true;
  const [b0, b1] = extent(back, all[0].length);
  const [d0, d1] = extent(down, all[1].length);
  const [r0, r1] = extent(right, all[2].length);
  // The seven corners that can be seen; the eighth is behind the block.
  const frontUpperLeft = project(b0, d0, r0);
  const frontUpperRight = project(b0, d0, r1);
  const frontLowerRight = project(b0, d1, r1);
  const frontLowerLeft = project(b0, d1, r0);
  const backUpperLeft = project(b1, d0, r0);
  const backUpperRight = project(b1, d0, r1);
  const backLowerRight = project(b1, d1, r1);
  const front: Face = { points: quad(frontUpperLeft, frontUpperRight, frontLowerRight, frontLowerLeft), light: 0 };
  const lid: Face = { points: quad(frontUpperLeft, backUpperLeft, backUpperRight, frontUpperRight), light: style.dark ? 0.1 : 0.3 };
  const side: Face = { points: quad(frontUpperRight, backUpperRight, backLowerRight, frontLowerRight), light: -0.16 };
  const [x0] = frontUpperLeft;
  const [x1] = backUpperRight;
  const [, y0] = backUpperLeft;
  const [, y1] = frontLowerRight;
  parts.cells.push({
    id: layout.shardNumber(coordinates),
    count,
    x: x0,
    y: y0,
    width: x1 - x0,
    height: y1 - y0,
    faces: [lid, side, front],
    isHidden: back.first > 0 && down.first > 0 && right !== all[2].at(-1),
    colors: colors.ofShard(coordinates),
    label: "",
  });
}

type Point = readonly [number, number];

function quad(a: Point, b: Point, c: Point, d: Point): number[] {
  return [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]];
}

function extent(bin: Bin, count: number): [number, number] {
  const gap = count > 1 ? Math.min(bin.size * GAP, 8) : 0;
  return [bin.start + gap / 2, bin.start + bin.size - gap / 2];
}

function addEdgeLabels(layout: Layout, bins: readonly [Bin[], Bin[], Bin[]], edges: Edges, project: Project, parts: SceneParts): void {
  const put = (dim: number, place: (middle: number) => [number, number], align: CanvasTextAlign, space: number) => {
    const step = bins[dim]!.length > 1 ? bins[dim]![1]!.start : Infinity;
    const every = Math.max(1, Math.ceil(space / step));
    bins[dim]!.forEach((bin, index) => {
      if (index % every) return;
      const [x, y] = place(bin.start + bin.size / 2);
      parts.texts.push({ x, y, text: rangeText(layout, dim, bin), align, color: "faint", size: LABEL_SIZE });
    });
  };
  put(1, (middle) => shift(project(0, middle, 0), -8, 4), "right", 15);
  put(2, (middle) => shift(project(0, edges.rows, middle), -6, 16), "right", 30);
  put(0, (middle) => shift(project(middle, edges.rows, edges.columns), 8, 14), "left", 30);
  const name = (dim: number, at: [number, number], align: CanvasTextAlign) =>
    parts.texts.push({ x: at[0], y: at[1], text: `dim ${dim}`, align, color: "ink", size: LABEL_SIZE, weight: 600 });
  name(1, shift(project(0, 0, 0), -8, -6), "right");
  name(2, shift(project(0, edges.rows, edges.columns), 0, 26), "center");
  name(0, shift(project(edges.depth, edges.rows, edges.columns), 10, 0), "left");
}

function shift([x, y]: [number, number], dx: number, dy: number): [number, number] {
  return [x + dx, y + dy];
}

