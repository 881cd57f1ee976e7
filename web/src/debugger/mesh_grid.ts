// Where each device stands in the picture: the first mesh axis gives the row, the second the column, further axes give
// blocks, alternately below and beside each other.

export type MeshAxes = [name: string, size: number][];

export interface GridPlace {
  row: number;
  column: number;
  blockRow: number;
  blockColumn: number;
}

export interface MeshGrid {
  /** Devices below and beside each other inside one block. */
  rows: number;
  columns: number;
  blockRows: number;
  blockColumns: number;
  /** Index in the mesh of the axis that rows and columns stand for; null if the mesh has none for it. */
  rowAxis: number | null;
  columnAxis: number | null;
  blockRowAxes: number[];
  blockColumnAxes: number[];
}

export function countDevices(mesh: MeshAxes): number {
  return mesh.reduce((product, [, size]) => product * size, 1);
}

/** Coordinates of a device along each mesh axis; device numbers are row-major over the axes. */
export function deviceCoordinates(mesh: MeshAxes, device: number): number[] {
  const coordinates = new Array<number>(mesh.length);
  let rest = device;
  for (let axis = mesh.length - 1; axis >= 0; axis -= 1) {
    const size = mesh[axis]![1];
    coordinates[axis] = rest % size;
    rest = Math.floor(rest / size);
  }
  return coordinates;
}

/** How the mesh is laid out. A mesh of one axis is a row, wrapped into several rows only by the caller. */
export function meshGrid(mesh: MeshAxes): MeshGrid {
  const isSingle = mesh.length <= 1;
  const rowAxis = isSingle ? null : 0;
  const columnAxis = mesh.length === 0 ? null : isSingle ? 0 : 1;
  const blockRowAxes: number[] = [];
  const blockColumnAxes: number[] = [];
  for (let axis = 2; axis < mesh.length; axis += 1) (axis % 2 === 0 ? blockColumnAxes : blockRowAxes).push(axis);
  const product = (axes: number[]) => axes.reduce((size, axis) => size * mesh[axis]![1], 1);
  return {
    rows: rowAxis === null ? 1 : mesh[rowAxis]![1],
    columns: columnAxis === null ? 1 : mesh[columnAxis]![1],
    blockRows: product(blockRowAxes),
    blockColumns: product(blockColumnAxes),
    rowAxis,
    columnAxis,
    blockRowAxes,
    blockColumnAxes,
  };
}

export function placeDevice(mesh: MeshAxes, grid: MeshGrid, device: number): GridPlace {
  const coordinates = deviceCoordinates(mesh, device);
  const combine = (axes: number[]) => axes.reduce((index, axis) => index * mesh[axis]![1] + coordinates[axis]!, 0);
  return {
    row: grid.rowAxis === null ? 0 : coordinates[grid.rowAxis]!,
    column: grid.columnAxis === null ? 0 : coordinates[grid.columnAxis]!,
    blockRow: combine(grid.blockRowAxes),
    blockColumn: combine(grid.blockColumnAxes),
  };
}

/** "data=1, model=3" */
export function coordinateText(mesh: MeshAxes, device: number): string {
  const coordinates = deviceCoordinates(mesh, device);
  return mesh.map(([name], axis) => `${name}=${coordinates[axis]}`).join(", ");
}

/** Parse "data=4,model=2"; an empty text has no axes. Returns the axes, or a sentence that says what is wrong. */
export function parseMesh(text: string): MeshAxes | string {
  const axes: MeshAxes = [];
  if (text.trim() === "") return axes;
  for (const part of text.split(",")) {
    const match = /^\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*$/.exec(part);
    if (match === null) return `'${part.trim()}' is not a mesh axis. Write name=size, such as data=4,model=2.`;
    const [, name, size] = match as unknown as [string, string, string];
    if (axes.some(([other]) => other === name)) return `The mesh axis '${name}' appears twice.`;
    if (Number(size) < 1) return `The mesh axis '${name}' needs a size of at least 1.`;
    axes.push([name, Number(size)]);
  }
  return axes;
}

export function meshText(mesh: MeshAxes): string {
  return mesh.map(([name, size]) => `${name}=${size}`).join(",");
}
