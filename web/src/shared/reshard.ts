// Resharding: which collectives take one layout of an array to another. A port of sharding/reshard.py.

import { Layout, Spec, makeLayout } from "./mesh.ts";
import { withCommas } from "./python_text.ts";
import { ReshardProblem, findCheapestPath, type Edge, type ReshardKind } from "./reshard_search.ts";
import { mergeAxes, splitAxes, splitMesh, type Assignment, type SubAxes } from "./sub_axes.ts";
import { bytesText } from "./units.ts";

const COST_RULES = {
  all_gather: "(g-1)/g of the gathered shard",
  all_to_all: "(g-1)/g of its shard",
  collective_permute: "a full shard",
} as const;

export interface ReshardStep {
  readonly kind: ReshardKind;
  readonly meshAxes: readonly string[];
  /** On a mesh with split axes if the step needs sub-axes. */
  readonly before: Layout;
  readonly after: Layout;
  /** What one device sends on a ring. */
  readonly sentBytes: bigint;
  /** The devices that send; the others already hold their shard. */
  readonly nSenders: number;
  readonly dim: number | null;
  readonly toDim: number | null;
  readonly groupSize: number;
}

/** The cheapest sequence of collectives from one layout to another of the same array on the same mesh. */
export function reshard(before: Layout, after: Layout): ReshardStep[] {
  const [start, goal] = [layoutAssignment(before), layoutAssignment(after)];
  const subAxes = splitAxes(before.mesh, start, goal);
  const split = (assignment: Assignment) =>
    assignment.map((names) => names.flatMap((axis) => subAxes.get(axis)!.map(([name]) => name)));
  const sizes = new Map([...subAxes.values()].flat());
  const problem = new ReshardProblem(before.shape, before.dtype, sizes, split(start), split(goal));
  let current: Assignment = problem.start;
  return findCheapestPath(problem).map((edge) => {
    const step = makeStep(edge, current, [before, after], subAxes);
    current = edge.after;
    return step;
  });
}

/** Makes a step from an edge: a mesh axis stays unsplit where the step does not need its sub-axes. */
function makeStep(
  edge: Edge,
  start: Assignment,
  ends: readonly [Layout, Layout],
  subAxes: ReadonlyMap<string, SubAxes>,
): ReshardStep {
  const order = [...subAxes.values()].flat().map(([name]) => name);
  const isPermute = edge.kind === "collective_permute";
  const meshAxes = isPermute ? order.filter((name) => edge.meshAxes.includes(name)) : edge.meshAxes;
  let dims: readonly (readonly string[])[] = [...start, ...edge.after, meshAxes];
  const split = new Map<string, SubAxes>();
  for (const [axis, factors] of subAxes) {
    if (factors.length === 1) continue;
    const merged = dims.map((names) => mergeAxes(names, factors, axis));
    if (merged.includes(null)) split.set(axis, factors);
    else dims = merged as (readonly string[])[];
  }
  const before = stepLayout(dims.slice(0, start.length), ends, split);
  const after = stepLayout(dims.slice(start.length, -1), ends, split);
  const groupSize = dims.at(-1)!.reduce((total, name) => total * before.mesh.size(name), 1);
  return { ...edge, meshAxes: dims.at(-1)!, before, after, groupSize };
}

function stepLayout(
  assignment: Assignment,
  ends: readonly [Layout, Layout],
  split: ReadonlyMap<string, SubAxes>,
): Layout {
  const key = JSON.stringify(assignment);
  const end = ends.find((layout) => split.size === 0 && JSON.stringify(layoutAssignment(layout)) === key);
  if (end) return end;
  const entries = [...assignment];
  while (entries.length && !entries.at(-1)!.length) entries.pop();
  const [{ shape, mesh, dtype }] = ends;
  return makeLayout(shape, new Spec(entries), splitMesh(mesh, split), dtype);
}

/** The rule behind the bytes of a step. */
export function costText(step: ReshardStep): string {
  if (step.kind === "slice") return "free: each device keeps a slice of its shard";
  const ring = step.kind === "collective_permute" ? "to one other device" : `on a ring of g=${step.groupSize}`;
  return `${sendersText(step)} ${bytesText(step.sentBytes)}: ${COST_RULES[step.kind]}, ${ring}`;
}

/** Who sends: `each device sends`, or `4 of 8 devices send`. */
export function sendersText({ nSenders, before: { nDevices } }: ReshardStep): string {
  if (nSenders === 0 || nSenders === nDevices) return "each device sends";
  return `${withCommas(nSenders)} of ${withCommas(nDevices)} devices send`;
}

/** The mesh axes of every dimension, without axes of size 1, which do not shard. */
function layoutAssignment(layout: Layout): Assignment {
  return layout.shape.map((_, dim) => layout.axesOf(dim).filter((name) => layout.mesh.size(name) > 1));
}
