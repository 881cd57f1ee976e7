// The numbers in a chunk of a collective: partial sums of the devices whose data it contains.

import { chunkCount, type Slot } from "../shared/hop_schedule.ts";
import type { Collective } from "../shared/recording.ts";
import { collectiveKind } from "./hop_state.ts";
import type { LoadedRecording } from "./loaded_recording.ts";

/** A chunk with more elements is drawn without its numbers. */
const MOST_NUMBERS = 4;

/** The elements of a chunk that contains the data of the positions in `slot`; null if there are too many, or they are not recorded. */
export function chunkNumbers(run: LoadedRecording, collective: Collective, group: number[], slot: Slot, chunk: number): number[] | null {
  const parts = slot.map((position) => operandChunk(run, collective, group[position] ?? -1, chunk));
  const [first, ...others] = parts;
  if (first === undefined || parts.includes(null)) return null;
  const combine = combineOf(collective.op);
  return others.reduce<number[]>((sum, part) => sum.map((number, at) => combine(number, part![at]!)), [...first!]);
}

function combineOf(op: string): (first: number, second: number) => number {
  if (/max/.test(op)) return Math.max;
  if (/min/.test(op)) return Math.min;
  return (first, second) => first + second;
}

/** The elements that a device contributes to a chunk. */
function operandChunk(run: LoadedRecording, collective: Collective, device: number, chunk: number): number[] | null {
  const value = run.values[collective.reads];
  if (value === undefined || device < 0) return null;
  const group = run.groupOf(value, device);
  if (value.groups[group]?.cells?.of !== "all") return null;
  const numbers = run.groupNumbers(value, group);
  if (numbers === null) return null;
  const kind = collectiveKind(collective.op);
  const isFull = kind === "all_gather" || kind === "permute";
  // The chunks of a scatter lie along its dimension, which is the order of the elements only in a vector.
  if (!isFull && kind !== "reduce" && value.shape.length > 1) return null;
  const size = numbers.length / (isFull ? 1 : chunkCount(collective));
  if (!Number.isInteger(size) || size < 1 || size > MOST_NUMBERS) return null;
  const start = isFull ? 0 : chunk * size;
  return Array.from({ length: size }, (_, at) => numbers[start + at]!);
}
