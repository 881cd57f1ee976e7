// The hops of a collective, computed from its schedule: any hop, and what a device holds after it, without those before.
// The same rules as shardlab/collectives/ring_steps.py; hop_schedule_cases.json compares the two.

import type { Collective, Schedule, Transfer } from "./recording.ts";

/** One chunk on one device: the positions in the group whose data it contains; empty means no data. */
export type Slot = readonly number[];

/** The operation of a schedule: where a received chunk goes, and whether it is added. */
export function scheduleOf(collective: Collective): Schedule | null {
  if (collective.schedule !== undefined) return collective.schedule;
  // Version 1 of the format has the first hops instead of the schedule.
  if (/scatter/.test(collective.op)) return "reduce_scatter";
  if (/all_gather/.test(collective.op)) return "all_gather";
  if (/all_to_all/.test(collective.op)) return "all_to_all";
  if (/pbroadcast/.test(collective.op)) return "broadcast";
  if (!/permute|pshuffle/.test(collective.op)) return "all_reduce";
  return (collective.hops ?? []).length > 0 ? "pairs" : null;
}

/** Sender and receiver of each message of a ppermute, as positions in the group. */
export function permutationPairs(collective: Collective): [from: number, to: number][] {
  if (collective.pairs === undefined) return (collective.hops?.[0] ?? []).map(([from, to]) => [from, to]);
  return collective.pairs.flatMap(([first, to, count]) =>
    Array.from({ length: count }, (_, index): [number, number] => [first + index, to + index]),
  );
}

/** The number of hops that can be shown one by one: all of them, or none if it is not known who sends to whom. */
export function hopTotal(collective: Collective): number {
  return scheduleOf(collective) === null ? 0 : collective.n_hops;
}

/** The number of chunks of an operand: an all-reduce of fewer elements than devices has one for each element. */
export function chunkCount(collective: Collective): number {
  if (collective.n_chunks !== undefined) return collective.n_chunks;
  const schedule = scheduleOf(collective);
  return schedule === "pairs" || schedule === "broadcast" || schedule === null ? 1 : collective.group_size;
}

/** The transfers of one hop in one group; the first hop is 1. */
export function hopTransfers(collective: Collective, hop: number): Transfer[] {
  if (hop < 1 || hop > hopTotal(collective)) return [];
  const n = collective.group_size;
  const positions = Array.from({ length: n }, (_, position) => position);
  const step = hop - 1;
  switch (scheduleOf(collective)) {
    case "pairs":
      return permutationPairs(collective).map(([from, to]) => [from, to, 0, "copy"]);
    case "broadcast":
      return [[step, step + 1, 0, "copy"]];
    case "all_to_all":
      return positions.map((at) => [at, (at + hop) % n, (at + hop) % n, "copy"]);
    case "all_gather":
      return positions.map((at) => [at, (at + 1) % n, wrap(at - step, n), "copy"]);
    case "reduce_scatter":
    case "all_reduce": {
      const isAdded = step < n - 1;
      const behind = isAdded ? step + 1 : step - (n - 1);
      const chunks = chunkCount(collective);
      return positions
        .map((at): Transfer => [at, (at + 1) % n, wrap(at - behind, n), isAdded ? "add" : "copy"])
        .filter(([, , chunk]) => chunk < chunks);
    }
    default:
      return [];
  }
}

/** Whether received chunks are stored apart from the operand. */
export function hasResultBuffer(collective: Collective): boolean {
  const schedule = scheduleOf(collective);
  return schedule === "all_to_all" || schedule === "pairs" || schedule === "broadcast" || schedule === null;
}

/** How many devices' data is in a chunk of the operand after a number of hops: its contributions run from there back to `position`. */
export function contributionCount(collective: Collective, hops: number, position: number, chunk: number): number {
  const n = collective.group_size;
  switch (scheduleOf(collective)) {
    case "all_gather":
      return wrap(position - chunk, n) <= hops ? 1 : 0;
    case "reduce_scatter":
    case "all_reduce": {
      // After the reduce-scatter each complete chunk travels on: device d has chunk c after d - c hops.
      if (hops >= n && wrap(position - chunk, n) <= hops - (n - 1)) return n;
      // Chunk c reaches device d in hop d - c - 1 with the sums of all devices that it has passed.
      const arrival = wrap(position - chunk - 2, n);
      return arrival < Math.min(hops, n - 1) ? arrival + 2 : 1;
    }
    default:
      return 1;
  }
}

/** The positions whose data is in a chunk of the operand after a number of hops. */
export function operandSlot(collective: Collective, hops: number, position: number, chunk: number): Slot {
  const count = contributionCount(collective, hops, position, chunk);
  if (scheduleOf(collective) === "all_gather") return count > 0 ? [chunk] : [];
  const slot = Array.from({ length: count }, (_, index) => wrap(position - index, collective.group_size));
  return slot.sort((first, second) => first - second);
}

/** The positions whose data is in a received chunk after a number of hops. */
export function resultSlot(collective: Collective, hops: number, position: number, chunk: number): Slot {
  switch (scheduleOf(collective)) {
    case "all_to_all":
      // Every device keeps its own chunk; in hop k the device k positions behind sends.
      return wrap(position - chunk, collective.group_size) <= hops ? [chunk] : [];
    case "broadcast":
      return position <= hops ? [0] : [];
    case "pairs": {
      // A ppermute gives zeros to a device that receives nothing.
      const sender = hops >= 1 ? permutationPairs(collective).find(([, to]) => to === position) : undefined;
      return sender === undefined ? [] : [sender[0]];
    }
    default:
      return [];
  }
}

function wrap(index: number, size: number): number {
  return ((index % size) + size) % size;
}
