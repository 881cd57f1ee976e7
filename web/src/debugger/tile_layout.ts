// Where the tile of each device, or of each group of equal devices, is drawn. World units are CSS pixels at zoom 1.

import type { Value } from "../shared/recording.ts";
import { parseDevices } from "../shared/recording.ts";
import type { LoadedRecording } from "./loaded_recording.ts";
import { meshGrid, placeDevice, type MeshGrid } from "./mesh_grid.ts";

export type LayoutMode = "mesh" | "groups";

export interface LayoutOptions {
  minimumHeight?: number;
  /** Width and height that the picture may use. */
  stage?: [width: number, height: number];
}

export interface Tile {
  x: number;
  y: number;
  group: number;
  devices: number[];
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

/** Rows and columns of the numbers that are drawn for a value. */
export function pictureShape(value: Value): [rows: number, columns: number] {
  const shape = value.groups.find((group) => group.cells)?.cells?.shape ?? [];
  return [shape.length > 1 ? shape[shape.length - 2]! : 1, shape.length > 0 ? shape[shape.length - 1]! : 1];
}

/** A tile is wide enough for numbers if there are few, and never a needle. */
export function tileSize(value: Value, count: number, minimumHeight = 30): [width: number, height: number] {
  const [rows, columns] = pictureShape(value);
  const isSmall = rows * columns <= 64 && columns <= 8 && rows <= 16 && count <= 32;
  const cellWidth = isSmall ? 44 : Math.max(4, Math.min(14, 168 / columns));
  const cellHeight = isSmall ? 22 : Math.max(4, Math.min(14, 168 / rows));
  const width = Math.min(360, Math.max(84, columns * cellWidth));
  const height = Math.min(300, Math.max(minimumHeight, rows * cellHeight));
  return [width, height];
}

/**
 * The layout of a value. With the size of the stage, tiles grow in height where the stage has room:
 * meshes are usually wider than high, and the stage is not.
 */
export function tileLayout(recording: LoadedRecording, value: Value, mode: LayoutMode, options: LayoutOptions = {}): TileLayout {
  const size = tileSize(value, mode === "mesh" ? recording.deviceCount : value.groups.length, options.minimumHeight);
  const build = (picture: [number, number]) =>
    mode === "mesh" ? meshLayout(recording, value, picture) : groupLayout(value, picture, options.stage ?? [600, 480]);
  const layout = build(size);
  if (options.stage === undefined) return layout;
  const [width, height] = options.stage;
  const scale = Math.min(1.5, width / layout.width);
  const tileRows = new Set(layout.tiles.map((tile) => tile.y)).size;
  const extra = (height / scale - layout.height) / tileRows;
  return extra <= 0 ? layout : build([size[0], size[1] + Math.min(extra, size[1] * 1.5)]);
}

function meshLayout(recording: LoadedRecording, value: Value, [tileWidth, pictureHeight]: [number, number]): TileLayout {
  const tileHeight = pictureHeight + HEADER;
  const mesh = recording.mesh;
  let grid = meshGrid(mesh);
  // One long axis is wrapped: a row of 16 devices does not fit any screen.
  const wrap = mesh.length === 1 && grid.columns > 8 ? wrapColumns(grid.columns) : null;
  if (wrap !== null) grid = { ...grid, columns: wrap, rows: Math.ceil(grid.columns / wrap) };
  const marginLeft = grid.rowAxis === null ? 0 : 76;
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
export function collectiveLayout(recording: LoadedRecording, value: Value, group: number[]): TileLayout {
  const columns = group.length <= 8 ? group.length : wrapColumns(group.length);
  const [tileWidth, tileHeight] = [148, 76 + HEADER];
  // Rows run to the right and back in turns, so that neighbors on the ring stay neighbors in the picture.
  const tiles = group.map((device, index): Tile => {
    const row = Math.floor(index / columns);
    const column = row % 2 === 0 ? index % columns : columns - 1 - (index % columns);
    return { x: column * (tileWidth + 26), y: row * (tileHeight + 30), group: recording.groupOf(value, device), devices: [device] };
  });
  return {
    ...groupLayout(value, [tileWidth, tileHeight], [600, 480]),
    mode: "mesh",
    tiles,
    tileWidth,
    tileHeight,
    width: columns * (tileWidth + 26) - 26,
    height: Math.ceil(group.length / columns) * (tileHeight + 30) - 30,
  };
}

/** The number of columns with which the tiles are largest on the stage. */
function bestColumns(count: number, width: number, height: number, [stageWidth, stageHeight]: [number, number]): number {
  let best = 1;
  let bestScale = 0;
  for (let columns = 1; columns <= count; columns += 1) {
    const scale = Math.min(stageWidth / (columns * width), stageHeight / (Math.ceil(count / columns) * height), 1.5);
    if (scale > bestScale) [best, bestScale] = [columns, scale];
  }
  return best;
}

function wrapColumns(count: number): number {
  for (let columns = Math.ceil(Math.sqrt(count * 1.6)); columns > 1; columns -= 1) if (count % columns === 0) return columns;
  return Math.ceil(Math.sqrt(count));
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
