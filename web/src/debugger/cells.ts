// The numbers of one device's value: decode them, slice them, compare them.

import type { Cells } from "../shared/recording.ts";

/** One picture of a value: a grid of numbers, after leading dimensions are fixed to an index. */
export interface Grid {
  rows: number;
  columns: number;
  numbers: ArrayLike<number>;
}

const ITEM_BYTES: Record<string, number> = { f4: 4, f8: 8, i4: 4, u4: 4, i8: 8, u8: 8, u1: 1, i1: 1, i2: 2, u2: 2, f2: 2, b1: 1 };

/** Decode base64 little-endian numbers. 64-bit integers become doubles, exact to 2**53. */
export function decodeCells(cells: Cells): ArrayLike<number> {
  const text = atob(cells.data);
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index += 1) bytes[index] = text.charCodeAt(index);
  const view = new DataView(bytes.buffer);
  const kind: string = cells.as;
  const itemBytes = ITEM_BYTES[kind];
  if (itemBytes === undefined) throw new Error(`Cells have the unknown number type '${kind}'.`);
  const numbers = new Float64Array(Math.floor(bytes.length / itemBytes));
  for (let index = 0; index < numbers.length; index += 1) {
    numbers[index] = readItem(view, index * itemBytes, kind);
  }
  return numbers;
}

function readItem(view: DataView, offset: number, kind: string): number {
  switch (kind) {
    case "f4":
      return view.getFloat32(offset, true);
    case "f8":
      return view.getFloat64(offset, true);
    case "i4":
      return view.getInt32(offset, true);
    case "u4":
      return view.getUint32(offset, true);
    case "i8":
      return Number(view.getBigInt64(offset, true));
    case "u8":
      return Number(view.getBigUint64(offset, true));
    case "i2":
      return view.getInt16(offset, true);
    case "u2":
      return view.getUint16(offset, true);
    case "i1":
      return view.getInt8(offset);
    default:
      return view.getUint8(offset);
  }
}

/** How many rows one index of the leading dimensions takes where a recording folds them into rows; 0 if it does not. */
export function rowsPerSlice(shape: number[], grid: Grid): number {
  const folded = shape.slice(0, -1).reduce((product, size) => product * size, 1);
  return shape.length > 2 && grid.rows === folded ? shape[shape.length - 2]! : 0;
}

/** "[1, 0, 2, 5]": the index of a cell in the array. Null if its rows are blocks of several. */
export function cellIndex(shape: number[], grid: Grid, row: number, column: number): number[] | null {
  if (shape.length === 0) return [];
  if (shape.length === 1) return [column];
  if (shape.length === 2) return [row, column];
  if (rowsPerSlice(shape, grid) === 0) return null;
  const index: number[] = [column];
  let rest = row;
  for (let dim = shape.length - 2; dim >= 0; dim -= 1) {
    index.unshift(rest % shape[dim]!);
    rest = Math.floor(rest / shape[dim]!);
  }
  return index;
}

/** The last two dimensions as rows and columns, at one index of each leading dimension. */
export function sliceGrid(numbers: ArrayLike<number>, shape: number[], leading: number[] = []): Grid {
  const columns = shape.length > 0 ? shape[shape.length - 1]! : 1;
  const rows = shape.length > 1 ? shape[shape.length - 2]! : 1;
  let offset = 0;
  let stride = rows * columns;
  for (let dim = shape.length - 3; dim >= 0; dim -= 1) {
    const size = shape[dim]!;
    offset += Math.min(leading[dim] ?? 0, size - 1) * stride;
    stride *= size;
  }
  const grid = new Float64Array(rows * columns);
  for (let index = 0; index < grid.length; index += 1) grid[index] = numbers[offset + index] ?? NaN;
  return { rows, columns, numbers: grid };
}

/** Mark the cells at which one of the grids has another number than the first grid. NaN equals NaN here. */
export function differingCells(grids: Grid[]): boolean[] {
  const first = grids[0];
  if (first === undefined) return [];
  return Array.from({ length: first.numbers.length }, (_, index) =>
    grids.some((grid) => !Object.is(grid.numbers[index], first.numbers[index]) && grid.numbers[index] !== first.numbers[index]),
  );
}

/** The symmetric range of a color scale: the largest finite magnitude, at least a tiny number. */
export function largestMagnitude(arrays: ArrayLike<number>[]): number {
  let largest = 0;
  for (const numbers of arrays) {
    for (let index = 0; index < numbers.length; index += 1) {
      const magnitude = Math.abs(numbers[index]!);
      if (Number.isFinite(magnitude) && magnitude > largest) largest = magnitude;
    }
  }
  return largest || 1;
}
