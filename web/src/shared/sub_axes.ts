// Mesh axes split into factors, so that a collective can run over part of an axis. A port of sharding/sub_axes.py, which
// has the reasons.

import { Mesh } from "./mesh.ts";

/** The mesh axes of each dimension, major first. */
export type Assignment = readonly (readonly string[])[];
/** Names and sizes, major first. */
export type SubAxes = readonly (readonly [string, number])[];

/** The sub-axes of each mesh axis that make the shards of start and goal line up. */
export function splitAxes(mesh: Mesh, start: Assignment, goal: Assignment): Map<string, SubAxes> {
  const cuts = new Map(mesh.axes.map(([name, size]) => [name, size > 1 ? [1, size] : [1]]));
  for (let isChanged = true; isChanged; ) {
    isChanged = false;
    for (const [dim, names] of start.entries()) {
      const regions = [...axisRegions(names, mesh), ...axisRegions(goal[dim]!, mesh)];
      const boundaries = regions.flatMap(([name, before]) => cuts.get(name)!.map((cut) => before * cut));
      for (const [name, before] of regions) {
        for (const boundary of [...new Set(boundaries)].sort((a, b) => a - b)) {
          if (!fits(boundary, before, mesh.size(name), cuts.get(name)!)) continue;
          cuts.set(name, [...cuts.get(name)!, boundary / before].sort((a, b) => a - b));
          isChanged = true;
        }
      }
    }
  }
  return new Map([...cuts].map(([name, axisCuts]) => [name, namedFactors(name, axisCuts)]));
}

/** Each mesh axis of a dimension with the number of shards over the axes before it. */
function axisRegions(names: readonly string[], mesh: Mesh): [string, number][] {
  let before = 1;
  return names.map((name) => {
    const region: [string, number] = [name, before];
    before *= mesh.size(name);
    return region;
  });
}

function fits(boundary: number, before: number, size: number, cuts: readonly number[]): boolean {
  const cut = boundary / before;
  if (boundary % before || cut <= 1 || cut >= size || cuts.includes(cut)) return false;
  return cuts.every((other) => Math.max(cut, other) % Math.min(cut, other) === 0);
}

function namedFactors(name: string, cuts: readonly number[]): SubAxes {
  if (cuts.length <= 2) return [[name, cuts.at(-1)!]];
  return cuts.slice(1).map((stop, index) => {
    const start = cuts[index]!;
    return [`${name}:(${start})${stop / start}`, stop / start] as const;
  });
}

/** The mesh with some axes replaced by their sub-axes; devices stay in place. */
export function splitMesh(mesh: Mesh, subAxes: ReadonlyMap<string, SubAxes>): Mesh {
  const factors = mesh.axes.map((axis) => subAxes.get(axis[0]) ?? [axis]);
  const hues = factors.flatMap((axes, index) => axes.map(() => mesh.hues[index]!));
  return new Mesh(factors.flat(), hues);
}

/** `names` with the sub-axes of `axis` as the axis itself; null if they are not together. */
export function mergeAxes(names: readonly string[], factors: SubAxes, axis: string): readonly string[] | null {
  const parts = factors.map(([name]) => name);
  const first = names.findIndex((name) => parts.includes(name));
  if (first < 0) return names;
  if (!parts.every((name, index) => names[first + index] === name)) return null;
  return [...names.slice(0, first), axis, ...names.slice(first + parts.length)];
}
