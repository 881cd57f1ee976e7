// A recording with the indices that the views need. Numbers are decoded when they are first shown.

import { parseDevices, sentBytes, type DeviceGroup, type Recording, type Step, type Value } from "../shared/recording.ts";
import { decodeCells, largestMagnitude, sliceGrid, type Grid } from "./cells.ts";
import { countDevices, deviceCoordinates, type MeshAxes } from "./mesh_grid.ts";

export interface LiveValue {
  name: string;
  value: number;
  /** The step that wrote it; -1 for an input. */
  step: number;
}

export interface LineTotals {
  steps: number[];
  collectives: number[];
  /** Collectives that never complete. */
  blocked: number[];
  wireBytes: number;
  flops: number;
  seconds: number;
}

export class LoadedRecording {
  readonly mesh: MeshAxes;
  readonly deviceCount: number;
  readonly steps: Step[];
  readonly values: Value[];
  private readonly groupIndices = new Map<number, Int32Array>();
  private readonly decoded = new Map<string, ArrayLike<number>>();
  private readonly scales = new Map<number, number>();
  private readonly stepsByLine = new Map<string, LineTotals>();

  constructor(readonly recording: Recording) {
    this.mesh = recording.mesh;
    this.deviceCount = countDevices(recording.mesh);
    this.steps = recording.steps;
    this.values = recording.values;
    recording.steps.forEach((step, index) => this.indexStep(step, index));
  }

  /** Every line on the stack of a step counts it, so that a call site shows the cost of what it calls. */
  private indexStep(step: Step, index: number): void {
    const keys = new Set(step.frames.map(([file, line]) => `${file}:${line}`));
    keys.add(`${step.file}:${step.line}`);
    for (const key of keys) {
      let totals = this.stepsByLine.get(key);
      if (totals === undefined) {
        totals = { steps: [], collectives: [], blocked: [], wireBytes: 0, flops: 0, seconds: 0 };
        this.stepsByLine.set(key, totals);
      }
      totals.steps.push(index);
      totals.flops += step.flops;
      totals.wireBytes += sentBytes(step);
      if (step.waiting !== null) {
        totals.blocked.push(index);
        continue;
      }
      totals.seconds += step.seconds ?? 0;
      if (step.collective !== null) totals.collectives.push(index);
    }
  }

  lineTotals(file: number, line: number): LineTotals | null {
    return this.stepsByLine.get(`${file}:${line}`) ?? null;
  }

  /** Group index of each device, -1 for a device whose group the recording leaves out. */
  private groupsOf(value: Value): Int32Array {
    let indices = this.groupIndices.get(value.id);
    if (indices === undefined) {
      indices = new Int32Array(this.deviceCount).fill(-1);
      value.groups.forEach((group, index) => {
        for (const device of parseDevices(group.devices)) indices![device] = index;
      });
      this.groupIndices.set(value.id, indices);
    }
    return indices;
  }

  groupOf(value: Value, device: number): number {
    return this.groupsOf(value)[device] ?? -1;
  }

  groupNumbers(value: Value, group: number): ArrayLike<number> | null {
    const cells = value.groups[group]?.cells;
    if (!cells) return null;
    const key = `${value.id}:${group}`;
    let numbers = this.decoded.get(key);
    if (numbers === undefined) {
      numbers = decodeCells(cells);
      this.decoded.set(key, numbers);
    }
    return numbers;
  }

  /** The mean of a device whose numbers the recording leaves out. */
  deviceMean(value: Value, device: number): number | null {
    return this.deviceMeans(value)?.[device] ?? null;
  }

  private deviceMeans(value: Value): ArrayLike<number> | null {
    if (!value.device_means) return null;
    const key = `${value.id}:means`;
    let means = this.decoded.get(key);
    if (means === undefined) {
      means = decodeCells(value.device_means);
      this.decoded.set(key, means);
    }
    return means;
  }

  groupGrid(value: Value, group: number, leading: number[]): Grid | null {
    const numbers = this.groupNumbers(value, group);
    return numbers === null ? null : sliceGrid(numbers, value.groups[group]!.cells!.shape, leading);
  }

  /** The largest magnitude of a value on any device: one color scale for all devices. */
  scaleOf(value: Value): number {
    let scale = this.scales.get(value.id);
    if (scale === undefined) {
      const arrays = value.groups.map((_, index) => this.groupNumbers(value, index));
      scale = largestMagnitude([...arrays, this.deviceMeans(value)].filter((numbers) => numbers !== null));
      this.scales.set(value.id, scale);
    }
    return scale;
  }

  /** The values that have a name at a step, in the order in which they were first written. */
  liveValues(step: number): LiveValue[] {
    const live = new Map<string, LiveValue>();
    for (const input of this.recording.inputs) live.set(input.name, { name: input.name, value: input.value, step: -1 });
    for (let index = 0; index <= step && index < this.steps.length; index += 1) {
      for (const id of this.steps[index]!.writes) {
        const name = this.values[id]?.name;
        if (name) live.set(name, { name, value: id, step: index });
      }
    }
    return [...live.values()];
  }

  collectiveSteps(): number[] {
    return this.steps.flatMap((step, index) => (step.collective ? [index] : []));
  }

  axisIndex(name: string): number {
    return this.mesh.findIndex(([axis]) => axis === name);
  }
}

/** "min to max" of a group without reading its numbers. */
export function isUniform(group: DeviceGroup): boolean {
  return group.min !== null && group.min === group.max;
}

/**
 * A group of devices by its mesh coordinates, such as "model 3", if it is all devices with these coordinates; else by its
 * device numbers.
 */
export function groupLabel(run: LoadedRecording, value: Value, group: DeviceGroup): string {
  const axes = run.mesh.map(([name, size], index) => ({ name, size, index })).filter(({ name }) => value.varies_over.includes(name));
  const copies = axes.reduce((count, axis) => count / axis.size, run.deviceCount);
  if (group.n === 1 || group.n !== copies) return group.devices;
  if (axes.length === 0) return "all devices";
  const coordinates = deviceCoordinates(run.mesh, Number.parseInt(group.devices, 10));
  return axes.map(({ name, index }) => `${name} ${coordinates[index]}`).join(", ");
}

/**
 * How the copies of a value relate. Equal numbers alone do not make a value replicated: a shard may happen to equal the
 * others, and a value that JAX's type lets vary may not vary with these arguments.
 */
export function copiesText(run: LoadedRecording, value: Value): string {
  if (run.deviceCount === 1) return "on one device";
  if (value.n_groups !== 1) return `${value.n_groups} different values`;
  return `${isReplicated(value) ? "replicated" : "equal on all devices"} \u00d7${run.deviceCount}`;
}

function isReplicated(value: Value): boolean {
  return typeAxes(value)?.length === 0;
}

/** The mesh axes over which the type lets the devices hold different values; null if neither JAX nor a spec says it. */
function typeAxes(value: Value): string[] | null {
  // Without a type that JAX checked, only a spec says that the value is replicated.
  if (value.declared_over === null && value.spec === null) return null;
  // A spec names the axes that shard the array in quotes: P('data', None).
  const sharded = [...(value.spec ?? "").matchAll(/['"]([^'"]+)['"]/g)].map((match) => match[1]!);
  return [...new Set([...sharded, ...(value.declared_over ?? []), ...value.partial_over])];
}

/**
 * The first device that holds the same value by its type: the device itself if it is the first, null if the type has
 * no copies. Equal numbers alone do not make a copy.
 */
export function replicaSource(run: LoadedRecording, value: Value, device: number): number | null {
  const axes = typeAxes(value);
  if (axes === null || run.mesh.every(([name, size]) => size === 1 || axes.includes(name))) return null;
  const coordinates = deviceCoordinates(run.mesh, device);
  const source = run.mesh.reduce((number, [name, size], index) => number * size + (axes.includes(name) ? coordinates[index]! : 0), 0);
  // Copies that disagree are not copies.
  return run.groupOf(value, source) === run.groupOf(value, device) ? source : null;
}

/** How the devices that hold a device's numbers relate: "replicated on 4 devices", "equal values on 4 devices". */
export function equalDevicesText(run: LoadedRecording, value: Value, device: number): string {
  const group = value.groups[run.groupOf(value, device)];
  if (group === undefined) return "";
  if (group.n === 1) return "no copy elsewhere";
  return `${replicaSource(run, value, device) === null ? "equal values" : "the same"} on ${group.n} devices`;
}

/** A short label of a value: its name, or the operation that wrote it. */
export function valueLabel(recording: LoadedRecording, id: number): string {
  const value = recording.values[id];
  if (value === undefined) return "?";
  if (value.name) return value.name;
  const output = recording.recording.outputs.find((entry) => entry.value === id);
  if (output !== undefined) return output.name || "result";
  const writer = recording.steps.find((step) => step.writes.includes(id));
  return writer ? (writer.collective?.op ?? writer.op) : `value ${id}`;
}
