// Meshes, specs and layouts in the browser: a port of the arithmetic of src/shardlab/sharding.
//
// Results and messages are those of the Python code; tests/web/test_layout_port.py compares them on random cases.
// Sizes of arrays are bigint, because a product of sizes passes 2**53 easily; sizes of mesh axes are numbers, because
// XLA counts devices in 32 bits.

import { dtypeBytes, parseDtype, type Dtype } from "./dtype.ts";
import { LabError } from "./lab_error.ts";
import { unknownNameText } from "./nearest.ts";
import { SPACE, isPrintable, repr, shortRepr, stripEnd, truncate, tupleText, withCommas } from "./python_text.ts";
import { Scanner, syntaxError } from "./scanner.ts";
import type { IndexRange } from "./units.ts";

export const MAX_DEVICES = 2 ** 31 - 1;
const SIZE_LIMIT = 1n << 128n;
const MAX_COUNT_IN_ERROR = 10n ** 100n;
const MAX_AXES_IN_ERROR = 20;
const MESH_EXAMPLE = "write name=size pairs, such as data=2,model=4.";
const SPEC_EXAMPLE = "write one entry for each dimension, such as None,model or (data,model),None.";
const ARRAY_EXAMPLE = "write sizes and a dtype, such as 4096x16384:bf16, or bf16[4096,16384].";

/** Named mesh axes in order; devices are numbered with the last axis fastest. */
export class Mesh {
  readonly names: readonly string[];
  readonly sizes: readonly number[];
  readonly nDevices: number;
  private readonly indices: ReadonlyMap<string, number>;

  /** `hues` are the positions of colors in the palette; the sub-axes of a split axis share one. */
  constructor(
    axes: readonly (readonly [string, number])[],
    readonly hues: readonly number[] = axes.map((_, index) => index),
  ) {
    this.names = axes.map(([name]) => name);
    this.sizes = axes.map(([, size]) => size);
    this.nDevices = this.sizes.reduce((product, size) => product * size, 1);
    this.indices = new Map(this.names.map((name, index) => [name, index]));
  }

  get axes(): (readonly [string, number])[] {
    return this.names.map((name, index) => [name, this.sizes[index]!] as const);
  }

  has(name: string): boolean {
    return this.indices.has(name);
  }

  axisIndex(name: string): number {
    return this.indices.get(name) ?? -1;
  }

  size(name: string): number {
    return this.sizes[this.axisIndex(name)]!;
  }

  /** The coordinate of a device: one number for each mesh axis. */
  coordinate(device: number): number[] {
    const steps = new Array<number>(this.sizes.length);
    let rest = device;
    for (let axis = this.sizes.length - 1; axis >= 0; axis--) {
      steps[axis] = rest % this.sizes[axis]!;
      rest = Math.floor(rest / this.sizes[axis]!);
    }
    return steps;
  }

  deviceAt(coordinate: readonly number[]): number {
    return this.sizes.reduce((position, size, axis) => position * size + coordinate[axis]!, 0);
  }

  /** Yields the devices whose coordinates along some mesh axes are fixed, in mesh order. */
  *devicesAlong(fixed: ReadonlyMap<string, number>): Generator<number> {
    const free = this.names.map((_, axis) => axis).filter((axis) => !fixed.has(this.names[axis]!));
    const coordinate = this.names.map((name) => fixed.get(name) ?? 0);
    while (true) {
      yield this.deviceAt(coordinate);
      let position = free.length - 1;
      // An odometer: the last free axis turns fastest.
      while (position >= 0) {
        const axis = free[position]!;
        coordinate[axis]! += 1;
        if (coordinate[axis]! < this.sizes[axis]!) break;
        coordinate[axis] = 0;
        position -= 1;
      }
      if (position < 0) return;
    }
  }

  toString(): string {
    return this.names.map((name, index) => `${name}=${this.sizes[index]}`).join(",") || "()";
  }
}

/** A PartitionSpec: the mesh axes of each dimension, the major one first. */
export class Spec {
  readonly axes: readonly (readonly string[])[];

  constructor(axes: readonly (readonly string[])[]) {
    this.axes = axes;
  }

  get meshAxes(): string[] {
    return this.axes.flat();
  }

  /** As JAX prints it: `P(None, 'model')`. */
  toString(): string {
    return `P(${this.axes.map(entryText).join(", ")})`;
  }
}

function entryText(names: readonly string[]): string {
  if (names.length === 0) return "None";
  return names.length === 1 ? repr(names[0]!) : `(${names.map(repr).join(", ")})`;
}

/** An array's shape and dtype, sharded by a spec on a mesh. Create it with `makeLayout`. */
export class Layout {
  readonly nShards: number;
  readonly nReplicas: number;

  constructor(
    readonly shape: readonly bigint[],
    readonly spec: Spec,
    readonly mesh: Mesh,
    readonly dtype: Dtype,
    readonly shardShape: readonly bigint[],
    /** The number of shards of each dimension. */
    readonly shardCounts: readonly number[],
  ) {
    this.nShards = shardCounts.reduce((product, count) => product * count, 1);
    this.nReplicas = mesh.nDevices / this.nShards;
  }

  get nDevices(): number {
    return this.mesh.nDevices;
  }

  get bytesPerDevice(): bigint {
    return dtypeBytes(this.dtype, product(this.shardShape));
  }

  get arrayBytes(): bigint {
    return dtypeBytes(this.dtype, product(this.shape));
  }

  get totalBytes(): bigint {
    return this.bytesPerDevice * BigInt(this.nDevices);
  }

  /** The mesh axes of a dimension; none if the spec is shorter than the shape. */
  axesOf(dim: number): readonly string[] {
    return this.spec.axes[dim] ?? [];
  }

  /** The coordinates of the shard that a device holds: one number for each dimension. */
  shardCoordinates(device: number): number[] {
    const steps = this.mesh.coordinate(device);
    return this.shape.map((_, dim) =>
      this.axesOf(dim).reduce((shard, name) => shard * this.mesh.size(name) + steps[this.mesh.axisIndex(name)]!, 0),
    );
  }

  shardIndex(coordinates: readonly number[]): IndexRange[] {
    return this.shardShape.map((size, dim) => {
      const shard = BigInt(coordinates[dim]!);
      return { start: shard * size, stop: (shard + 1n) * size };
    });
  }

  index(device: number): IndexRange[] {
    return this.shardIndex(this.shardCoordinates(device));
  }

  /** The coordinates along mesh axes that all devices of a shard share. */
  shardSteps(coordinates: readonly number[]): Map<string, number> {
    const steps = new Map<string, number>();
    this.spec.axes.forEach((names, dim) => {
      let shard = coordinates[dim]!;
      for (const name of [...names].reverse()) {
        steps.set(name, shard % this.mesh.size(name));
        shard = Math.floor(shard / this.mesh.size(name));
      }
    });
    return steps;
  }

  /** Yields the devices that hold one shard, in mesh order. */
  shardDevices(coordinates: readonly number[]): Generator<number> {
    return this.mesh.devicesAlong(this.shardSteps(coordinates));
  }

  /** The position of a shard in array order. */
  shardNumber(coordinates: readonly number[]): number {
    return coordinates.reduce((number, shard, dim) => number * this.shardCounts[dim]! + shard, 0);
  }
}

export function product(sizes: readonly bigint[]): bigint {
  return sizes.reduce((total, size) => total * size, 1n);
}

/** Checks that a shape, spec and mesh fit together. */
export function makeLayout(shape: readonly bigint[], spec: Spec, mesh: Mesh, dtype: Dtype): Layout {
  const counts = shardCounts(spec, mesh);
  if (counts.length > shape.length) throw specTooLongError(shape, spec, mesh);
  const shardShape = shape.map((size, dim) => {
    const count = BigInt(counts[dim] ?? 1);
    if (size % count) throw indivisibleError(dim, shape, spec, mesh, count);
    return size / count;
  });
  return new Layout(shape, spec, mesh, dtype, shardShape, shape.map((_, dim) => counts[dim] ?? 1));
}

function shardCounts(spec: Spec, mesh: Mesh): number[] {
  const used = new Set<string>();
  for (const name of spec.meshAxes) {
    if (!mesh.has(name)) {
      throw new LabError("layout.unknown_axis", unknownNameText("mesh axis", name, mesh.names), {
        where: whereText(spec, mesh),
        fix: "use an axis of the mesh, or None to replicate the dimension.",
      });
    }
    if (used.has(name)) throw duplicateAxisError(name, spec, mesh);
    used.add(name);
  }
  return spec.axes.map((names) => names.reduce((total, name) => total * mesh.size(name), 1));
}

function whereText(spec: Spec, mesh: Mesh, shape?: readonly bigint[]): string {
  return `${shape ? `shape ${tupleText(shape)}, ` : ""}spec ${spec}, mesh ${mesh}`;
}

function duplicateAxisError(name: string, spec: Spec, mesh: Mesh): LabError {
  const dims = spec.axes.flatMap((names, dim) => names.filter((axis) => axis === name).map(() => dim));
  const use = dims[0] === dims[1] ? `twice for dimension ${dims[0]}` : `for dimensions ${dims[0]} and ${dims[1]}`;
  const unused = mesh.names.filter((axis) => !spec.meshAxes.includes(axis));
  const alternative = unused.length ? `, or shard over ${unused.map(repr).join(" or ")}` : "";
  return new LabError(
    "layout.duplicate_spec_axis",
    `Mesh axis ${repr(name)} is used ${use}; a mesh axis can shard only one dimension, once.`,
    {
      where: whereText(spec, mesh),
      fix: `use ${repr(name)} once and write None for the other entry${alternative}.`,
    },
  );
}

function specTooLongError(shape: readonly bigint[], spec: Spec, mesh: Mesh): LabError {
  const dims = ["no dimensions", "1 dimension"][shape.length] ?? `${shape.length} dimensions`;
  const entries = spec.axes.length === 1 ? "1 entry" : `${spec.axes.length} entries`;
  const shorter = new Spec(spec.axes.slice(0, shape.length));
  return new LabError("layout.spec_too_long", `The spec has ${entries} and the array has ${dims}.`, {
    where: whereText(spec, mesh, shape),
    fix: `at most one entry for each dimension, such as ${shorter}.`,
  });
}

function indivisibleError(dim: number, shape: readonly bigint[], spec: Spec, mesh: Mesh, count: bigint): LabError {
  const size = shape[dim]!;
  const names = spec.axes[dim]!;
  const axes =
    names.length === 1
      ? `mesh axis ${repr(names[0]!)}`
      : `mesh axes ${names.map((name) => `${repr(name)}=${mesh.size(name)}`).join(" × ")}`;
  const below = (size / count) * count;
  const nearest = below ? `${below} or ${below + count}` : `${below + count}`;
  const other = shape.findIndex((length, index) => !spec.axes[index]?.length && length && length % count === 0n);
  const instead = other < 0 ? "" : `, shard dimension ${other} instead`;
  return new LabError(
    "layout.indivisible",
    `Dimension ${dim} has size ${size}, which is not divisible by ${count} (${axes}).`,
    {
      where: whereText(spec, mesh, shape),
      fix: `change the size of dimension ${dim} to ${nearest}${instead}, or replicate it (None).`,
    },
  );
}

/** Reads `data=2,model=4`. */
export function parseMesh(source: string): Mesh {
  let text = new Scanner(source, "mesh");
  if (text.take("(") && text.take(")") && text.atEnd) return new Mesh([]);
  text = new Scanner(source, "mesh");
  const axes: [string, number][] = [];
  while (!text.atEnd || axes.length === 0) {
    const name = text.takeName();
    if (name === null) throw text.error("A mesh axis name was expected here.", MESH_EXAMPLE);
    if (axes.some(([other]) => other === name)) {
      throw text.error(`Mesh axis ${shortRepr(name)} appears twice.`, MESH_EXAMPLE, true);
    }
    if (!text.take("=") && !text.take(":")) {
      throw text.error(`'=' was expected after ${shortRepr(name)}.`, MESH_EXAMPLE);
    }
    const size = text.takeInteger();
    if (size === null) throw text.error(`The size of mesh axis ${shortRepr(name)} was expected here.`, MESH_EXAMPLE);
    if (size < 1n || size > MAX_DEVICES) {
      throw new LabError("layout.invalid_size", `The size of mesh axis ${shortRepr(name)} is ${size}.`, {
        where: `mesh ${truncate(source, 200)}`,
        fix: `a size from 1 to ${withCommas(MAX_DEVICES)}.`,
      });
    }
    axes.push([name, Number(size)]);
    if (!text.take(",") && !text.atEnd) throw text.error("',' was expected here.", MESH_EXAMPLE);
  }
  checkAxes(axes);
  return new Mesh(axes);
}

function checkAxes(axes: readonly (readonly [string, number])[]): void {
  const shown = axes.slice(0, MAX_AXES_IN_ERROR).map(([name, size]) => `${truncate(name, 80)}=${size}`);
  const where = `mesh ${shown.join(",")}`;
  let devices = 1n;
  for (const [name, size] of axes) {
    if (!name || !isPrintable(name)) {
      throw new LabError("layout.invalid_type", `${shortRepr(name)} is not a mesh axis name.`, {
        where,
        fix: "printable text, such as 'data'.",
      });
    }
    devices *= BigInt(size);
    if (devices > MAX_COUNT_IN_ERROR) devices = MAX_COUNT_IN_ERROR;
  }
  if (devices > MAX_DEVICES) {
    const more = devices === MAX_COUNT_IN_ERROR ? " or more" : "";
    throw new LabError("layout.invalid_size", `The mesh has ${withCommas(devices)} devices${more}.`, {
      where,
      fix: `at most ${withCommas(MAX_DEVICES)} devices, the most that XLA can count.`,
    });
  }
}

/** Reads `None,model`, `(data,model),None` or `P(None, 'model')`. */
export function parseSpec(source: string): Spec {
  const text = new Scanner(source, "spec");
  const isWrapped = ["jax.sharding.PartitionSpec", "PartitionSpec", "jax.P", "P", "Spec"].some((name) =>
    text.take(`${name}(`),
  );
  const isClosed = () => isWrapped && text.nextIs(")");
  const entries: string[][] = [];
  while (!text.atEnd && !isClosed()) {
    entries.push(takeEntry(text));
    if (!text.take(",") && !text.atEnd && !isClosed()) throw text.error("',' was expected here.", SPEC_EXAMPLE);
  }
  if (isWrapped && !text.take(")")) throw text.error("')' was expected here.", SPEC_EXAMPLE);
  if (!text.atEnd) throw text.error("The spec ends before this.", SPEC_EXAMPLE);
  return new Spec(entries);
}

function takeEntry(text: Scanner): string[] {
  if (text.take("(") || text.take("[")) return takeNames(text);
  const name = text.takeName();
  if (name === null) throw text.error("None or a mesh axis name was expected here.", SPEC_EXAMPLE);
  return name === "None" ? [] : [name];
}

function takeNames(text: Scanner): string[] {
  const names: string[] = [];
  while (!(text.take(")") || text.take("]"))) {
    const name = text.takeName();
    if (name === null) throw text.error("A mesh axis name or ')' was expected here.", SPEC_EXAMPLE);
    if (name === "None") {
      throw text.error(
        "None cannot be inside parentheses, which combine mesh axes for one dimension.",
        "drop the outer parentheses: data,None or P('data', None).",
        true,
      );
    }
    names.push(name);
    if (!(text.take(",") || text.nextIs(")") || text.nextIs("]"))) {
      throw text.error("',' or ')' was expected here.", SPEC_EXAMPLE);
    }
  }
  return names;
}

export interface ArrayType {
  readonly shape: readonly bigint[];
  readonly dtype: Dtype;
}

const BRACKETED = new RegExp(`^([${SPACE}]*)([\\p{L}\\p{N}_<>]+)[${SPACE}]*(\\[[^\\]]*\\])[${SPACE}]*$`, "u");
const UNCLOSED = new RegExp(`^[${SPACE}]*[\\p{L}\\p{N}_<>]+[${SPACE}]*\\[[^\\]]*$`, "u");

/** Reads `4096x16384:bf16` or `bf16[4096,16384]`; the default dtype is float32. */
export function parseArray(source: string): ArrayType {
  const bracketed = BRACKETED.exec(source);
  if (bracketed) {
    const start = bracketed[1]!.length;
    const shape = parseShape(bracketed[3]!);
    return { shape, dtype: parseMarkedDtype(source, start, start + bracketed[2]!.length) };
  }
  if (UNCLOSED.test(source)) {
    const end = stripEnd(source).length;
    throw syntaxError("']' is missing at the end.", source, end, end + 1, "array", ARRAY_EXAMPLE);
  }
  const colon = source.indexOf(":");
  if (colon < 0) return { shape: parseShape(source), dtype: parseDtype("float32") };
  return { shape: parseShape(source.slice(0, colon)), dtype: parseMarkedDtype(source, colon + 1, source.length) };
}

function parseMarkedDtype(source: string, start: number, stop: number): Dtype {
  try {
    return parseDtype(source.slice(start, stop));
  } catch (error) {
    if (!(error instanceof LabError)) throw error;
    throw syntaxError(error.what, source, start, Math.max(stop, start + 1), "array", error.fix);
  }
}

function parseShape(source: string): bigint[] {
  const text = new Scanner(source, "shape");
  const closing = text.take("(") ? ")" : text.take("[") ? "]" : "";
  const isClosed = () => closing !== "" && text.nextIs(closing);
  const sizes: bigint[] = [];
  while (!text.atEnd && !isClosed()) {
    const size = text.takeInteger();
    if (size === null) throw text.error("A size was expected here.", ARRAY_EXAMPLE);
    sizes.push(checkSize(size, `dimension ${sizes.length}`, `shape ${source}`));
    if (text.take(",")) continue;
    const isCrossed = text.take("x") || text.take("×") || text.take("*");
    if (isCrossed && text.atEnd) throw text.error("A size was expected here.", ARRAY_EXAMPLE);
    if (!isCrossed && !text.atEnd && !isClosed()) throw text.error("'x' or ',' was expected here.", ARRAY_EXAMPLE);
  }
  if (closing && !text.take(closing)) throw text.error(`'${closing}' was expected here.`, ARRAY_EXAMPLE);
  if (!text.atEnd || (sizes.length === 0 && !closing)) throw text.error("A size was expected here.", ARRAY_EXAMPLE);
  return sizes;
}

function checkSize(size: bigint, owner: string, where: string): bigint {
  if (size >= 0n && size < SIZE_LIMIT) return size;
  const magnitude = size < 0n ? -size : size;
  const text =
    magnitude < SIZE_LIMIT ? `${size}` : `an integer of ${withCommas(magnitude.toString(2).length)} bits`;
  const limit = size < 0n ? "a size of 0 or more" : "a size below 2**128";
  throw new LabError("layout.invalid_size", `The size of ${owner} is ${text}.`, { where, fix: `${limit}.` });
}
