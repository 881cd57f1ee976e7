// Resharding: which collectives take one layout of an array to another. A port of sharding/reshard.py, which explains
// the search: nodes are assignments of mesh axes to dimensions, edges are collectives, Dijkstra finds the fewest bytes.

import { dtypeBytes } from "./dtype.ts";
import { Layout, Spec, makeLayout, product } from "./mesh.ts";
import { bytesText } from "./units.ts";

type Assignment = readonly (readonly string[])[];
export type ReshardKind = "all_gather" | "all_to_all" | "collective_permute" | "slice";

const MAX_SEARCHED_AXES = 4;
const COST_RULES = {
  all_gather: "(g-1)/g of the gathered shard",
  all_to_all: "(g-1)/g of its shard",
  collective_permute: "its shard",
} as const;

export interface ReshardStep {
  readonly kind: ReshardKind;
  readonly meshAxes: readonly string[];
  readonly before: Layout;
  readonly after: Layout;
  /** What one device sends on a ring. */
  readonly sentBytes: bigint;
  readonly dim: number | null;
  readonly toDim: number | null;
  readonly groupSize: number;
}

interface Edge {
  readonly kind: ReshardKind;
  readonly meshAxes: readonly string[];
  readonly after: Assignment;
  readonly sentBytes: bigint;
  readonly dim: number | null;
  readonly toDim: number | null;
}

/** The cheapest sequence of collectives from one layout to another of the same array on the same mesh. */
export function reshard(before: Layout, after: Layout): ReshardStep[] {
  const problem = new ReshardProblem(before, layoutAssignment(before), layoutAssignment(after));
  const edges = findCheapestPath(problem);
  let current = before;
  return edges.map((edge, index) => {
    const following = index === edges.length - 1 ? after : assignmentLayout(before, edge.after);
    const groupSize = edge.meshAxes.reduce((total, name) => total * before.mesh.size(name), 1);
    const step = { ...edge, before: current, after: following, groupSize };
    current = following;
    return step;
  });
}

/** The rule behind the bytes of a step. */
export function costText(step: ReshardStep): string {
  if (step.kind === "slice") return "free: each device keeps a slice of its shard";
  const ring = step.kind === "collective_permute" ? "to one other device" : `on a ring of g=${step.groupSize}`;
  return `each device sends ${bytesText(step.sentBytes)}: ${COST_RULES[step.kind]}, ${ring}`;
}

function assignmentLayout(original: Layout, assignment: Assignment): Layout {
  const entries = [...assignment];
  while (entries.length && !entries.at(-1)!.length) entries.pop();
  return makeLayout(original.shape, new Spec(entries), original.mesh, original.dtype);
}

/** The mesh axes of every dimension, without axes of size 1, which do not shard. */
function layoutAssignment(layout: Layout): Assignment {
  return layout.shape.map((_, dim) => layout.axesOf(dim).filter((name) => layout.mesh.size(name) > 1));
}

class ReshardProblem {
  /** The length of the common prefix of start and goal in each dimension: these axes never move. */
  readonly nFixed: readonly number[];
  readonly movingAxes: readonly string[];

  constructor(
    readonly layout: Layout,
    readonly start: Assignment,
    readonly goal: Assignment,
  ) {
    this.nFixed = start.map((names, dim) => commonPrefixLength(names, goal[dim]!));
    const moving = start.flatMap((names, dim) => [
      ...names.slice(this.nFixed[dim]),
      ...goal[dim]!.slice(this.nFixed[dim]),
    ]);
    this.movingAxes = [...new Set(moving)];
  }

  countShards(names: readonly string[]): number {
    return names.reduce((total, name) => total * this.layout.mesh.size(name), 1);
  }

  shardBytes(assignment: Assignment): bigint {
    const shards = assignment.reduce((total, names) => total * this.countShards(names), 1);
    return dtypeBytes(this.layout.dtype, product(this.layout.shape) / BigInt(shards));
  }

  isDivisible(assignment: Assignment, dim: number): boolean {
    return this.layout.shape[dim]! % BigInt(this.countShards(assignment[dim]!)) === 0n;
  }
}

interface QueueEntry {
  readonly sent: bigint;
  readonly nSteps: number;
  readonly order: number;
  readonly assignment: Assignment;
  readonly path: readonly Edge[];
}

function findCheapestPath(problem: ReshardProblem): readonly Edge[] {
  if (problem.movingAxes.length > MAX_SEARCHED_AXES) return [...gatherThenSlice(problem)];
  const goalKey = assignmentKey(problem.goal);
  const queue = new Heap();
  let order = 0;
  queue.push({ sent: 0n, nSteps: 0, order: order++, assignment: problem.start, path: [] });
  const best = new Map<string, { sent: bigint; nSteps: number }>();
  best.set(assignmentKey(problem.start), { sent: 0n, nSteps: 0 });
  for (let entry = queue.pop(); entry; entry = queue.pop()) {
    const key = assignmentKey(entry.assignment);
    if (key === goalKey) return entry.path;
    if (isCheaper(best.get(key)!, entry)) continue;
    for (const edge of edges(problem, entry.assignment)) {
      const cost = { sent: entry.sent + edge.sentBytes, nSteps: entry.nSteps + 1 };
      const afterKey = assignmentKey(edge.after);
      const known = best.get(afterKey);
      if (known && !isCheaper(cost, known)) continue;
      best.set(afterKey, cost);
      queue.push({ ...cost, order: order++, assignment: edge.after, path: [...entry.path, edge] });
    }
  }
  throw new Error("gathering everything and slicing always leads to the goal");
}

function isCheaper(a: { sent: bigint; nSteps: number }, b: { sent: bigint; nSteps: number }): boolean {
  return a.sent < b.sent || (a.sent === b.sent && a.nSteps < b.nSteps);
}

function assignmentKey(assignment: Assignment): string {
  return JSON.stringify(assignment);
}

// This order decides between paths of equal bytes and length.
function* edges(problem: ReshardProblem, assignment: Assignment): Generator<Edge> {
  yield* permuteEdges(problem, assignment);
  yield* sliceEdges(problem, assignment);
  yield* allToAllEdges(problem, assignment);
  yield* allGatherEdges(problem, assignment);
}

function* sliceEdges(problem: ReshardProblem, assignment: Assignment): Generator<Edge> {
  const used = new Set(assignment.flat());
  for (const name of problem.movingAxes) {
    if (used.has(name)) continue;
    for (let dim = 0; dim < assignment.length; dim++) {
      const after = replaceDim(assignment, dim, [...assignment[dim]!, name]);
      if (problem.isDivisible(after, dim)) {
        yield { kind: "slice", meshAxes: [name], after, sentBytes: 0n, dim, toDim: null };
      }
    }
  }
}

function* allGatherEdges(problem: ReshardProblem, assignment: Assignment): Generator<Edge> {
  const local = problem.shardBytes(assignment);
  for (const [dim, tail] of minorAxes(problem, assignment)) {
    const after = replaceDim(assignment, dim, assignment[dim]!.slice(0, -tail.length));
    const sentBytes = local * BigInt(problem.countShards(tail) - 1);
    yield { kind: "all_gather", meshAxes: tail, after, sentBytes, dim, toDim: null };
  }
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
      if (problem.isDivisible(after, toDim)) {
        yield { kind: "all_to_all", meshAxes: tail, after, sentBytes, dim, toDim };
      }
    }
  }
}

/** Every assignment with shards of the same shape: devices only swap full shards. */
function* permuteEdges(problem: ReshardProblem, assignment: Assignment): Generator<Edge> {
  const sentBytes = problem.shardBytes(assignment);
  const heads = assignment.map((names, dim) => names.slice(0, problem.nFixed[dim]));
  const counts = assignment.map((names, dim) => problem.countShards(names.slice(problem.nFixed[dim])));
  for (const tails of assignmentsWithCounts(problem, counts, problem.movingAxes)) {
    const after = heads.map((head, dim) => [...head, ...tails[dim]!]);
    const changed = assignment.flatMap((names, dim) =>
      sameNames(names, after[dim]!) ? [] : [...names, ...after[dim]!],
    );
    if (changed.length === 0) continue;
    const meshAxes = [...new Set(changed)];
    yield { kind: "collective_permute", meshAxes, after, sentBytes, dim: null, toDim: null };
  }
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
    const size = problem.layout.mesh.size(name);
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
    const sentBytes = problem.shardBytes(current) * BigInt(problem.countShards(tail) - 1);
    current = replaceDim(current, dim, current[dim]!.slice(0, nFixed));
    yield { kind: "all_gather", meshAxes: tail, after: current, sentBytes, dim, toDim: null };
  }
  for (const [dim, names] of problem.goal.entries()) {
    const tail = names.slice(current[dim]!.length);
    if (tail.length === 0) continue;
    current = replaceDim(current, dim, names);
    yield { kind: "slice", meshAxes: tail, after: current, sentBytes: 0n, dim, toDim: null };
  }
}

function commonPrefixLength(a: readonly string[], b: readonly string[]): number {
  let length = 0;
  while (length < Math.min(a.length, b.length) && a[length] === b[length]) length += 1;
  return length;
}

function sameNames(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((name, index) => name === b[index]);
}

function replaceDim(assignment: Assignment, dim: number, names: readonly string[]): Assignment {
  return assignment.map((old, index) => (index === dim ? names : old));
}

/** A binary heap ordered by bytes, then steps, then insertion. */
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
  if (a.sent !== b.sent) return a.sent < b.sent;
  return a.nSteps !== b.nSteps ? a.nSteps < b.nSteps : a.order < b.order;
}
