// Where the tile of each device, or of each group of equal devices, is drawn. World units are CSS pixels at zoom 1.

import type { Value } from "../shared/recording.ts";
import { parseDevices } from "../shared/recording.ts";
import type { LoadedRecording } from "./loaded_recording.ts";
import { meshGrid, placeDevice, type MeshAxes, type MeshGrid } from "./mesh_grid.ts";

export type LayoutMode = "mesh" | "groups";

export interface LayoutOptions {
  minimumHeight?: number;
  /** Width and height that the picture may use. */
  stage?: [width: number, height: number];
}

export interface Tile {
  x: number;
  y: number;
  /** The group of equal values; -1 if it is none of them. */
  group: number;
  devices: number[];
  /** The name of a tile of several devices that are no group. */
  label?: string;
}

export interface TileLayout {
  mode: LayoutMode;
  tiles: Tile[];
  tileWidth: number;
  tileHeight: number;
  headerHeight: number;
  width: number;
  height: number;
  grid: MeshGrid | null;
  /** Offsets of blocks, for the labels of mesh axes. */
  blockWidth: number;
  blockHeight: number;
  marginLeft: number;
  marginTop: number;
}

const GAP = 10;
const BLOCK_GAP = 30;
const HEADER = 18;
const LABEL_WIDTH = 76;

/** Rows and columns of the numbers that are drawn for a value. */
export function pictureShape(value: Value): [rows: number, columns: number] {
  const shape = value.groups.find((group) => group.cells)?.cells?.shape ?? [];
  return [shape.length > 1 ? shape[shape.length - 2]! : 1, shape.length > 0 ? shape[shape.length - 1]! : 1];
}

/**
 * The size of a tile's picture. A number needs 44 by 22 pixels; where so many do not fit `room`, the width that one tile
 * may have, cells shrink to colors alone, and numbers appear when the reader zooms in. A tile is never a needle.
 */
export function tileSize(value: Value, room = 360, minimumHeight = 30): [width: number, height: number] {
  const [rows, columns] = pictureShape(value);
  const widest = Math.min(360, Math.max(96, room));
  const width = Math.min(widest, Math.max(84, columns * 44));
  const cellWidth = width / columns;
  const cellHeight = cellWidth >= 25 ? 22 : Math.max(3, Math.min(14, cellWidth));
  return [width, Math.min(300, Math.max(minimumHeight, rows * cellHeight))];
}

/**
 * The layout of a value. With the size of the stage, tiles grow in height where the stage has room:
 * meshes are usually wider than high, and the stage is not.
 */
export function tileLayout(recording: LoadedRecording, value: Value, mode: LayoutMode, options: LayoutOptions = {}): TileLayout {
  const size = tileSize(value, tileRoom(recording, value, mode, options), options.minimumHeight);
  const build = (picture: [number, number]) =>
    mode === "mesh" ? meshLayout(recording, value, picture, options.stage) : groupLayout(value, picture, options.stage ?? [600, 480]);
  const layout = build(size);
  if (options.stage === undefined) return layout;
  const [width, height] = options.stage;
  const scale = Math.min(1.5, width / layout.width);
  const tileRows = new Set(layout.tiles.map((tile) => tile.y)).size;
  const extra = (height / scale - layout.height) / tileRows;
  return extra <= 0 ? layout : build([size[0], size[1] + Math.min(extra, size[1] * 1.5)]);
}

/** The width for one tile if all stand beside each other as the layout wants it, at full size. */
function tileRoom(recording: LoadedRecording, value: Value, mode: LayoutMode, options: LayoutOptions): number {
  const [width] = options.stage ?? [1200, 800];
  if (mode === "groups") return value.groups.length <= 32 ? width / 3 : width / 8;
  const grid = meshGrid(recording.mesh);
  const across = (wrappedColumns(recording.mesh, grid) ?? grid.columns) * grid.blockColumns;
  return (width - (grid.rowAxis === null ? 0 : LABEL_WIDTH) - (grid.blockColumns - 1) * BLOCK_GAP) / across - GAP;
}

/** One long axis is wrapped: a row of 16 devices does not fit any screen. */
function wrappedColumns(mesh: MeshAxes, grid: MeshGrid): number | null {
  return mesh.length === 1 && grid.columns > 8 ? wrapColumns(grid.columns) : null;
}

function meshLayout(recording: LoadedRecording, value: Value, [tileWidth, pictureHeight]: [number, number], stage?: [number, number]): TileLayout {
  const tileHeight = pictureHeight + HEADER;
  const mesh = recording.mesh;
  let grid = meshGrid(mesh);
  let wrap = wrappedColumns(mesh, grid);
  if (wrap !== null && stage !== undefined) wrap = bestDivisor(grid.columns, tileWidth + GAP, tileHeight + GAP, stage) ?? wrap;
  if (wrap !== null) grid = { ...grid, columns: wrap, rows: Math.ceil(grid.columns / wrap) };
  const marginLeft = grid.rowAxis === null ? 0 : LABEL_WIDTH;
  const marginTop = (grid.columnAxis === null || wrap !== null ? 0 : 24) + (grid.blockColumnAxes.length ? 24 : 0);
  const blockWidth = grid.columns * (tileWidth + GAP) + BLOCK_GAP;
  const blockHeight = grid.rows * (tileHeight + GAP) + BLOCK_GAP;
  const tiles: Tile[] = [];
  for (let device = 0; device < recording.deviceCount; device += 1) {
    const place = placeDevice(mesh, grid, device);
    const row = wrap === null ? place.row : Math.floor(device / wrap);
    const column = wrap === null ? place.column : device % wrap;
    tiles.push({
      x: marginLeft + place.blockColumn * blockWidth + column * (tileWidth + GAP),
      y: marginTop + place.blockRow * blockHeight + row * (tileHeight + GAP),
      group: recording.groupOf(value, device),
      devices: [device],
    });
  }
  return {
    mode: "mesh",
    tiles,
    tileWidth,
    tileHeight,
    headerHeight: HEADER,
    width: marginLeft + grid.blockColumns * blockWidth - BLOCK_GAP - GAP,
    height: marginTop + grid.blockRows * blockHeight - BLOCK_GAP - GAP,
    grid: wrap === null ? grid : null,
    blockWidth,
    blockHeight,
    marginLeft,
    marginTop,
  };
}

/** The devices of one group of a collective, for meshes too large to show every group. */
export function collectiveLayout(recording: LoadedRecording, value: Value, group: number[], stage: [number, number]): TileLayout {
  const [tileWidth, tileHeight] = [148, 76 + HEADER];
  const [places, columns, rows] = loopPlaces(group.length, tileWidth + 26, tileHeight + 30, stage);
  const tiles = group.map((device, index): Tile => {
    const [column, row] = places[index]!;
    return { x: column * (tileWidth + 26), y: row * (tileHeight + 30), group: recording.groupOf(value, device), devices: [device] };
  });
  return {
    ...groupLayout(value, [tileWidth, tileHeight], [600, 480]),
    mode: "mesh",
    tiles,
    tileWidth,
    tileHeight,
    width: columns * (tileWidth + 26) - 26,
    height: rows * (tileHeight + 30) - 30,
  };
}

/**
 * Columns and rows of a closed loop through a grid, so that every device of a ring stands beside both of its neighbors:
 * in snakes to the bottom over all columns but the first, and back up in the first. Two rows always work.
 */
export function loopPlaces(count: number, width: number, height: number, [stageWidth, stageHeight]: [number, number]): [places: [number, number][], columns: number, rows: number] {
  let [rows, best] = [1, 0];
  for (const candidate of [1, 2, 4, 6]) {
    if (candidate > 2 && (count % candidate !== 0 || count / candidate < 2)) continue;
    if (candidate === 1 && count > 2) continue;
    const scale = Math.min(stageWidth / (Math.ceil(count / candidate) * width), stageHeight / (candidate * height), 1.5);
    if (scale > best) [rows, best] = [candidate, scale];
  }
  const columns = Math.ceil(count / rows);
  const places: [number, number][] = [];
  if (rows <= 2) {
    for (let index = 0; index < count; index += 1) places.push(index < columns ? [index, 0] : [count - 1 - index, 1]);
    return [places, columns, rows];
  }
  places.push([0, 0]);
  for (let row = 0; row < rows; row += 1) {
    for (let step = 1; step < columns; step += 1) places.push([row % 2 === 0 ? step : columns - step, row]);
  }
  for (let row = rows - 1; row > 0; row -= 1) places.push([0, row]);
  return [places, columns, rows];
}

/** The number of columns with which the tiles are largest on the stage. */
function bestColumns(count: number, width: number, height: number, [stageWidth, stageHeight]: [number, number], candidates = Array.from({ length: count }, (_, index) => index + 1)): number {
  let best = 1;
  let bestScale = 0;
  for (const columns of candidates) {
    const scale = Math.min(stageWidth / (columns * width), stageHeight / (Math.ceil(count / columns) * height), 1.5);
    if (scale > bestScale) [best, bestScale] = [columns, scale];
  }
  return best;
}

/** The same among the column counts that fill every row; null if there are none but 1 and all in one row. */
function bestDivisor(count: number, width: number, height: number, stage: [number, number]): number | null {
  const divisors = Array.from({ length: count - 2 }, (_, index) => index + 2).filter((columns) => count % columns === 0);
  return divisors.length === 0 ? null : bestColumns(count, width, height, stage, divisors);
}

function wrapColumns(count: number): number {
  for (let columns = Math.ceil(Math.sqrt(count * 1.6)); columns > 1; columns -= 1) if (count % columns === 0) return columns;
  return Math.ceil(Math.sqrt(count));
}

/** Of hundreds of devices of which some wait forever: one tile for each state. */
export function waitingLayout(recording: LoadedRecording, value: Value, waiting: { devices: string; missing: string }, stage: [number, number]): TileLayout {
  const [waits, missing] = [parseDevices(waiting.devices), parseDevices(waiting.missing)];
  const named = new Set([...waits, ...missing]);
  const others = Array.from({ length: recording.deviceCount }, (_, device) => device).filter((device) => !named.has(device));
  const states: [devices: number[], label: string][] = [[waits, waiting.devices], [missing, waiting.missing], [others, "the others"]];
  const [tileWidth, tileHeight] = [200, 60 + HEADER];
  const tiles = states
    .filter(([devices]) => devices.length > 0)
    .map(([devices, label], index): Tile => ({ x: 0, y: index * (tileHeight + GAP), group: -1, devices, label }));
  return { ...groupLayout(value, [tileWidth, tileHeight - HEADER], stage), tiles, width: tileWidth, height: tiles.length * (tileHeight + GAP) - GAP };
}

function groupLayout(value: Value, [tileWidth, pictureHeight]: [number, number], stage: [number, number]): TileLayout {
  const tileHeight = pictureHeight + HEADER;
  const count = Math.max(1, value.groups.length);
  const columns = bestColumns(count, tileWidth + GAP, tileHeight + GAP, stage);
  const tiles = value.groups.map((group, index): Tile => ({
    x: (index % columns) * (tileWidth + GAP),
    y: Math.floor(index / columns) * (tileHeight + GAP),
    group: index,
    devices: parseDevices(group.devices),
  }));
  return {
    mode: "groups",
    tiles,
    tileWidth,
    tileHeight,
    headerHeight: HEADER,
    width: columns * (tileWidth + GAP) - GAP,
    height: Math.ceil(count / columns) * (tileHeight + GAP) - GAP,
    grid: null,
    blockWidth: 0,
    blockHeight: 0,
    marginLeft: 0,
    marginTop: 0,
  };
}
