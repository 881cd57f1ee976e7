// The search for the collectives with the fewest bytes between two layouts. A port of sharding/reshard_search.py, which
// explains it: nodes are assignments of mesh axes to dimensions, edges are collectives, A* finds the fewest bytes.

import { dtypeBytes, type Dtype } from "./dtype.ts";
import { product } from "./mesh.ts";
import type { Assignment } from "./sub_axes.ts";

export type ReshardKind = "all_gather" | "all_to_all" | "collective_permute" | "slice";

const MAX_EXPANSIONS = 400;
const MAX_COMPARED_DEVICES = 512;

export interface Edge {
  readonly kind: ReshardKind;
  readonly meshAxes: readonly string[];
  readonly after: Assignment;
  readonly sentBytes: bigint;
  /** The devices that send `sentBytes`; the others send nothing. */
  readonly nSenders: number;
  readonly dim: number | null;
  readonly toDim: number | null;
}

export class ReshardProblem {
  readonly nDevices: number;
  /** The length of the common prefix of start and goal in each dimension: these axes never move. */
  readonly nFixed: readonly number[];
  readonly movingAxes: readonly string[];
  private readonly maxCounts: readonly number[];

  constructor(
    readonly shape: readonly bigint[],
    readonly dtype: Dtype,
    readonly sizes: ReadonlyMap<string, number>,
    readonly start: Assignment,
    readonly goal: Assignment,
  ) {
    this.nDevices = this.countShards([...sizes.keys()]);
    this.nFixed = start.map((names, dim) => commonPrefixLength(names, goal[dim]!));
    const moving = start.flatMap((names, dim) => [
      ...names.slice(this.nFixed[dim]),
      ...goal[dim]!.slice(this.nFixed[dim]),
    ]);
    this.movingAxes = [...new Set(moving)];
    this.maxCounts = start.map((names, dim) =>
      leastCommonMultiple(this.countShards(names), this.countShards(goal[dim]!)),
    );
  }

  countShards(names: readonly string[]): number {
    return names.reduce((total, name) => total * this.sizes.get(name)!, 1);
  }

  shardBytes(assignment: Assignment): bigint {
    const shards = assignment.reduce((total, names) => total * this.countShards(names), 1);
    return dtypeBytes(this.dtype, product(this.shape) / BigInt(shards));
  }

  /** Whether a dimension is divisible by its number of shards, and that is of use. */
  canShard(assignment: Assignment, dim: number): boolean {
    const shards = this.countShards(assignment[dim]!);
    return shards <= this.maxCounts[dim]! && this.shape[dim]! % BigInt(shards) === 0n;
  }

  /** A lower bound for what all devices together must still receive. */
  missingBytes(assignment: Assignment): bigint {
    const overlap = this.shape.map((size, dim) => {
      const shards = Math.max(this.countShards(assignment[dim]!), this.countShards(this.goal[dim]!));
      return size / BigInt(shards);
    });
    const nOverlapping = BigInt(this.nDevices / countMisplaced(assignment, this.goal, this.sizes));
    const missing = BigInt(this.nDevices) * this.shardBytes(this.goal);
    return missing - nOverlapping * dtypeBytes(this.dtype, product(overlap));
  }
}

interface Cost {
  readonly total: bigint;
  readonly perDevice: bigint;
  readonly nSteps: number;
}

interface QueueEntry extends Cost {
  readonly bound: bigint;
  readonly order: number;
  readonly assignment: Assignment;
  readonly path: readonly Edge[];
}

export function findCheapestPath(problem: ReshardProblem): readonly Edge[] {
  return search(problem, 1n) ?? search(problem, 8n) ?? [...gatherThenSlice(problem)];
}

function search(problem: ReshardProblem, boundWeight: bigint): readonly Edge[] | null {
  const goalKey = assignmentKey(problem.goal);
  const queue = new Heap();
  let order = 0;
  const none: Cost = { total: 0n, perDevice: 0n, nSteps: 0 };
  queue.push({ ...none, bound: 0n, order: order++, assignment: problem.start, path: [] });
  const best = new Map<string, Cost>([[assignmentKey(problem.start), none]]);
  for (let nExpansions = 0; nExpansions < MAX_EXPANSIONS; ) {
    const entry = queue.pop();
    if (!entry) return null;
    const key = assignmentKey(entry.assignment);
    if (key === goalKey) return entry.path;
    if (isCheaper(best.get(key)!, entry)) continue;
    nExpansions += 1;
    for (const edge of edges(problem, entry.assignment, entry.path)) {
      const cost = {
        total: entry.total + edge.sentBytes * BigInt(edge.nSenders),
        perDevice: entry.perDevice + edge.sentBytes,
        nSteps: entry.nSteps + 1,
      };
      const afterKey = assignmentKey(edge.after);
      const known = best.get(afterKey);
      if (known && !isCheaper(cost, known)) continue;
      best.set(afterKey, cost);
      const bound = cost.total + boundWeight * problem.missingBytes(edge.after);
      queue.push({ ...cost, bound, order: order++, assignment: edge.after, path: [...entry.path, edge] });
    }
  }
  return null;
}

function isCheaper(a: Cost, b: Cost): boolean {
  if (a.total !== b.total) return a.total < b.total;
  if (a.perDevice !== b.perDevice) return a.perDevice < b.perDevice;
  return a.nSteps < b.nSteps;
}

function assignmentKey(assignment: Assignment): string {
  return JSON.stringify(assignment);
}

// This order decides between paths of equal bytes and length. Two permutes in a row are one.
function* edges(problem: ReshardProblem, assignment: Assignment, path: readonly Edge[]): Generator<Edge> {
  if (path.at(-1)?.kind !== "collective_permute") yield* permuteEdges(problem, assignment);
  yield* sliceEdges(problem, assignment);
  yield* allToAllEdges(problem, assignment);
  for (const [dim, tail] of minorAxes(problem, assignment)) yield allGather(problem, assignment, dim, tail);
}

function* sliceEdges(problem: ReshardProblem, assignment: Assignment): Generator<Edge> {
  const used = new Set(assignment.flat());
  for (const name of problem.movingAxes) {
    if (used.has(name)) continue;
    for (let dim = 0; dim < assignment.length; dim++) {
      const after = replaceDim(assignment, dim, [...assignment[dim]!, name]);
      if (problem.canShard(after, dim)) yield slice([name], after, dim);
    }
  }
}

function slice(meshAxes: readonly string[], after: Assignment, dim: number): Edge {
  return { kind: "slice", meshAxes, after, sentBytes: 0n, nSenders: 0, dim, toDim: null };
}

function allGather(problem: ReshardProblem, assignment: Assignment, dim: number, tail: readonly string[]): Edge {
  return {
    kind: "all_gather",
    meshAxes: tail,
    after: replaceDim(assignment, dim, assignment[dim]!.slice(0, -tail.length)),
    sentBytes: problem.shardBytes(assignment) * BigInt(problem.countShards(tail) - 1),
    nSenders: problem.nDevices,
    dim,
    toDim: null,
  };
}

function* allToAllEdges(problem: ReshardProblem, assignment: Assignment): Generator<Edge> {
  const local = problem.shardBytes(assignment);
  for (const [dim, tail] of minorAxes(problem, assignment)) {
    const group = BigInt(problem.countShards(tail));
    const sentBytes = (local * (group - 1n) + group - 1n) / group;
    const without = replaceDim(assignment, dim, assignment[dim]!.slice(0, -tail.length));
    for (let toDim = 0; toDim < assignment.length; toDim++) {
      if (toDim === dim) continue;
      const after = replaceDim(without, toDim, [...assignment[toDim]!, ...tail]);
      if (!problem.canShard(after, toDim)) continue;
      yield { kind: "all_to_all", meshAxes: tail, after, sentBytes, nSenders: problem.nDevices, dim, toDim };
    }
  }
}

/** Assignments with shards of the same shape, with mesh axes of the goal in their places where possible. */
function* permuteEdges(problem: ReshardProblem, assignment: Assignment): Generator<Edge> {
  const counts: number[] = [];
  const heads = assignment.map((names, dim) => {
    const goal = problem.goal[dim]!;
    let stop = problem.nFixed[dim]!;
    let shards = problem.countShards(names.slice(stop));
    while (stop < goal.length && shards % problem.sizes.get(goal[stop]!)! === 0) {
      shards /= problem.sizes.get(goal[stop]!)!;
      stop += 1;
    }
    counts.push(shards);
    return goal.slice(0, stop);
  });
  const placed = new Set(heads.flat());
  const free = problem.movingAxes.filter((name) => !placed.has(name));
  for (const tails of assignmentsWithCounts(problem, counts, free)) {
    const after = heads.map((head, dim) => [...head, ...tails[dim]!]);
    if (!after.every((names, dim) => sameItems(names, assignment[dim]!))) yield permute(problem, assignment, after);
  }
}

type AxisPair = readonly [readonly string[], readonly string[]];

function permute(problem: ReshardProblem, before: Assignment, after: Assignment): Edge {
  const changed = before.flatMap((names, dim) =>
    sameItems(names, after[dim]!) ? [] : [differingAxes(names, after[dim]!, problem.sizes)],
  );
  const meshAxes = [...new Set(changed.flat(2))];
  const groupSize = problem.countShards(meshAxes);
  const nMoved = groupSize - countUnmoved(changed, meshAxes, problem);
  return {
    kind: "collective_permute",
    meshAxes,
    after,
    sentBytes: problem.shardBytes(before),
    nSenders: nMoved * (problem.nDevices / groupSize),
    dim: null,
    toDim: null,
  };
}

/** Both sides of a dimension without the mesh axes that stay in their places. */
function differingAxes(
  before: readonly string[],
  after: readonly string[],
  sizes: ReadonlyMap<string, number>,
): AxisPair {
  if (areAligned(before, after, sizes)) {
    const differs = (_: string, index: number) => before[index] !== after[index];
    return [before.filter(differs), after.filter(differs)];
  }
  const nCommon = commonPrefixLength(before, after);
  return [before.slice(nCommon), after.slice(nCommon)];
}

function areAligned(
  before: readonly string[],
  after: readonly string[],
  sizes: ReadonlyMap<string, number>,
): boolean {
  return sameItems(
    before.map((name) => sizes.get(name)!),
    after.map((name) => sizes.get(name)!),
  );
}

/** How many devices of a group hold the same shard before and after a permute. */
function countUnmoved(changed: readonly AxisPair[], names: readonly string[], problem: ReshardProblem): number {
  const groupSize = problem.countShards(names);
  if (changed.every(([before, after]) => areAligned(before, after, problem.sizes))) {
    const sides = [changed.map(([before]) => before), changed.map(([, after]) => after)] as const;
    return groupSize / countMisplaced(...sides, problem.sizes);
  }
  if (groupSize > MAX_COMPARED_DEVICES) return 0;
  let nUnmoved = 0;
  for (let position = 0; position < groupSize; position++) {
    const steps = new Map<string, number>();
    let rest = position;
    for (const name of [...names].reverse()) {
      steps.set(name, rest % problem.sizes.get(name)!);
      rest = Math.floor(rest / problem.sizes.get(name)!);
    }
    const shardNumber = (axes: readonly string[]) =>
      axes.reduce((shard, name) => shard * problem.sizes.get(name)! + steps.get(name)!, 0);
    if (changed.every(([before, after]) => shardNumber(before) === shardNumber(after))) nUnmoved += 1;
  }
  return nUnmoved;
}

/** Returns n if one of n devices has the same coordinate along old and new axes. */
function countMisplaced(before: Assignment, after: Assignment, sizes: ReadonlyMap<string, number>): number {
  const representative = new Map<string, string>();
  const find = (name: string) => {
    while (representative.has(name)) name = representative.get(name)!;
    return name;
  };
  let misplaced = 1;
  for (const [dim, names] of before.entries()) {
    for (const [index, name] of names.entries()) {
      const other = after[dim]![index];
      if (other === undefined || sizes.get(name) !== sizes.get(other)) break;
      const [first, second] = [find(name), find(other)];
      if (first === second) continue;
      representative.set(first, second);
      misplaced *= sizes.get(first)!;
    }
  }
  return misplaced;
}

function* assignmentsWithCounts(
  problem: ReshardProblem,
  counts: readonly number[],
  free: readonly string[],
): Generator<string[][]> {
  if (counts.length === 0) {
    yield [];
    return;
  }
  for (const names of axesWithProduct(problem, counts[0]!, free)) {
    const remaining = free.filter((name) => !names.includes(name));
    for (const rest of assignmentsWithCounts(problem, counts.slice(1), remaining)) yield [names, ...rest];
  }
}

function* axesWithProduct(problem: ReshardProblem, shards: number, free: readonly string[]): Generator<string[]> {
  if (shards === 1) {
    yield [];
    return;
  }
  for (const name of free) {
    const size = problem.sizes.get(name)!;
    if (shards % size) continue;
    const remaining = free.filter((axis) => axis !== name);
    for (const rest of axesWithProduct(problem, shards / size, remaining)) yield [name, ...rest];
  }
}

/** Each run of mesh axes at the minor end of a dimension, without the fixed prefix. */
function* minorAxes(problem: ReshardProblem, assignment: Assignment): Generator<[number, readonly string[]]> {
  for (const [dim, names] of assignment.entries()) {
    for (let start = names.length - 1; start >= problem.nFixed[dim]!; start--) yield [dim, names.slice(start)];
  }
}

function* gatherThenSlice(problem: ReshardProblem): Generator<Edge> {
  let current = problem.start;
  for (const [dim, nFixed] of problem.nFixed.entries()) {
    const tail = current[dim]!.slice(nFixed);
    if (tail.length === 0) continue;
    const edge = allGather(problem, current, dim, tail);
    current = edge.after;
    yield edge;
  }
  for (const [dim, names] of problem.goal.entries()) {
    const tail = names.slice(current[dim]!.length);
    if (tail.length === 0) continue;
    current = replaceDim(current, dim, names);
    yield slice(tail, current, dim);
  }
}

function leastCommonMultiple(a: number, b: number): number {
  let [x, y] = [a, b];
  while (y) [x, y] = [y, x % y];
  return (a / x) * b;
}

function commonPrefixLength(a: readonly string[], b: readonly string[]): number {
  let length = 0;
  while (length < Math.min(a.length, b.length) && a[length] === b[length]) length += 1;
  return length;
}

function sameItems<T>(a: readonly T[], b: readonly T[]): boolean {
  return a.length === b.length && a.every((item, index) => item === b[index]);
}

function replaceDim(assignment: Assignment, dim: number, names: readonly string[]): Assignment {
  return assignment.map((old, index) => (index === dim ? names : old));
}

/** A binary heap ordered by bound, bytes per device, steps, then insertion. */
class Heap {
  private readonly entries: QueueEntry[] = [];

  push(entry: QueueEntry): void {
    const heap = this.entries;
    let child = heap.push(entry) - 1;
    while (child > 0) {
      const parent = (child - 1) >> 1;
      if (!comesBefore(heap[child]!, heap[parent]!)) break;
      [heap[child], heap[parent]] = [heap[parent]!, heap[child]!];
      child = parent;
    }
  }

  pop(): QueueEntry | undefined {
    const heap = this.entries;
    const first = heap[0];
    const last = heap.pop();
    if (heap.length === 0 || last === undefined) return first;
    heap[0] = last;
    for (let parent = 0; ; ) {
      let child = 2 * parent + 1;
      if (child >= heap.length) return first;
      if (child + 1 < heap.length && comesBefore(heap[child + 1]!, heap[child]!)) child += 1;
      if (!comesBefore(heap[child]!, heap[parent]!)) return first;
      [heap[child], heap[parent]] = [heap[parent]!, heap[child]!];
      parent = child;
    }
  }
}

function comesBefore(a: QueueEntry, b: QueueEntry): boolean {
  if (a.bound !== b.bound) return a.bound < b.bound;
  if (a.perDevice !== b.perDevice) return a.perDevice < b.perDevice;
  return a.nSteps !== b.nSteps ? a.nSteps < b.nSteps : a.order < b.order;
}
