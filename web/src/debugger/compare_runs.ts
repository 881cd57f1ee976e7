// Run A next to run B: collectives gained and lost, totals, and devices whose values differ.

import { sentBytes, type Value } from "../shared/recording.ts";
import type { LoadedRecording } from "./loaded_recording.ts";

export interface CollectiveDifference {
  label: string;
  before: number;
  after: number;
  bytesBefore: number;
  bytesAfter: number;
  /** How many of run B never complete. */
  blockedAfter: number;
}

export interface OutputDifference {
  name: string;
  devices: number[];
  shapesDiffer: boolean;
}

export interface RunComparison {
  collectives: CollectiveDifference[];
  outputs: OutputDifference[];
}

export function compareRecordings(before: LoadedRecording, after: LoadedRecording): RunComparison {
  const rows = new Map<string, CollectiveDifference>();
  const count = (run: LoadedRecording, isAfter: boolean) => {
    for (const index of run.collectiveSteps()) {
      const step = run.steps[index]!;
      const collective = step.collective!;
      const label = `${collective.op} over ${collective.axes.join(", ")}${step.phase === "backward" ? ", backward" : ""}`;
      const row = rows.get(label) ?? { label, before: 0, after: 0, bytesBefore: 0, bytesAfter: 0, blockedAfter: 0 };
      if (isAfter) {
        row.after += 1;
        row.bytesAfter += sentBytes(step);
        row.blockedAfter += step.waiting === null ? 0 : 1;
      } else {
        row.before += 1;
        row.bytesBefore += sentBytes(step);
      }
      rows.set(label, row);
    }
  };
  count(before, false);
  count(after, true);
  return { collectives: [...rows.values()], outputs: compareOutputs(before, after) };
}

function compareOutputs(before: LoadedRecording, after: LoadedRecording): OutputDifference[] {
  return after.recording.outputs.map((output, index) => {
    const other = before.recording.outputs[index];
    const first = other === undefined ? undefined : before.values[other.value];
    const second = after.values[output.value];
    if (first === undefined || second === undefined || first.shape.join() !== second.shape.join()) {
      return { name: output.name, devices: [], shapesDiffer: true };
    }
    return { name: output.name, devices: differingDevices(before, first, after, second), shapesDiffer: false };
  });
}

/** Devices that hold other numbers in the second value, as far as the recordings have them. */
export function differingDevices(before: LoadedRecording, first: Value, after: LoadedRecording, second: Value): number[] {
  if (before.deviceCount !== after.deviceCount || first.shape.join() !== second.shape.join()) return [];
  const verdicts = new Map<string, boolean>();
  const devices: number[] = [];
  for (let device = 0; device < after.deviceCount; device += 1) {
    const groups: [number, number] = [before.groupOf(first, device), after.groupOf(second, device)];
    if (groups.includes(-1)) continue;
    const key = groups.join();
    let differs = verdicts.get(key);
    if (differs === undefined) {
      differs = groupsDiffer(before, first, groups[0], after, second, groups[1]);
      verdicts.set(key, differs);
    }
    if (differs) devices.push(device);
  }
  return devices;
}

function groupsDiffer(before: LoadedRecording, first: Value, a: number, after: LoadedRecording, second: Value, b: number): boolean {
  const left = before.groupNumbers(first, a);
  const right = after.groupNumbers(second, b);
  if (left === null || right === null || left.length !== right.length) {
    const [one, two] = [first.groups[a]!, second.groups[b]!];
    return one.min !== two.min || one.max !== two.max || one.mean !== two.mean;
  }
  for (let index = 0; index < left.length; index += 1) if (!isClose(left[index]!, right[index]!)) return true;
  return false;
}

/** Another order of additions changes the last digits of a float32; that is no difference between two programs. */
function isClose(first: number, second: number): boolean {
  if (Object.is(first, second) || first === second) return true;
  return Math.abs(first - second) <= 1e-5 * Math.max(Math.abs(first), Math.abs(second));
}

/**
 * The value of run A that stands for a value of run B: the same name, written for the same time.
 *
 * Lines move when a program is edited, names seldom do; so the n-th value of a name is matched with the n-th.
 */
export function matchingValue(before: LoadedRecording, after: LoadedRecording, id: number): Value | null {
  const value = after.values[id];
  if (value === undefined) return null;
  const input = after.recording.inputs.findIndex((entry) => entry.value === id);
  if (input >= 0) return before.values[before.recording.inputs[input]?.value ?? -1] ?? null;
  const output = after.recording.outputs.findIndex((entry) => entry.value === id);
  if (value.name === null) {
    return output >= 0 ? (before.values[before.recording.outputs[output]?.value ?? -1] ?? null) : null;
  }
  const sameName = (run: LoadedRecording) => run.values.filter((other) => other.name === value.name);
  const position = sameName(after).findIndex((other) => other.id === id);
  return sameName(before)[position] ?? null;
}
