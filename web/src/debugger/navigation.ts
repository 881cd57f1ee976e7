// Moving through a recording: by operation or by line, into loops or over them, and through the hops of a collective.

import { hopTotal } from "../shared/hop_schedule.ts";
import type { Step } from "../shared/recording.ts";

export type Granularity = "operation" | "line";

export interface NavigationOptions {
  granularity: Granularity;
  /** Show one iteration per loop: stepping goes from its first iteration to the step after the loop. */
  overLoops: boolean;
}

/** Indices of the steps at which the scrubber stops. */
export function stopSteps(steps: Step[], options: NavigationOptions): number[] {
  const stops: number[] = [];
  for (let index = 0; index < steps.length; index += 1) {
    const step = steps[index]!;
    if (options.overLoops && isRepeatedIteration(step)) continue;
    // By line: the last operation of a run of operations on one line, since its value is what the line computes.
    if (options.granularity === "line" && !endsLine(steps, index, options)) continue;
    stops.push(index);
  }
  // A recording never has zero stops: its last step always counts.
  if (stops.length === 0 && steps.length > 0) stops.push(steps.length - 1);
  return stops;
}

function isRepeatedIteration(step: Step): boolean {
  return step.loop.some(([, , iteration]) => iteration > 0);
}

/** Collectives and devices that wait are always stops: they are what the reader came for. */
function endsLine(steps: Step[], index: number, options: NavigationOptions): boolean {
  const step = steps[index]!;
  if (step.collective !== null || step.waiting !== null) return true;
  let next = index + 1;
  while (options.overLoops && next < steps.length && isRepeatedIteration(steps[next]!)) next += 1;
  const following = steps[next];
  return following === undefined || !isSameLine(step, following);
}

export function isSameLine(first: Step, second: Step): boolean {
  return (
    first.file === second.file &&
    first.line === second.line &&
    first.phase === second.phase &&
    first.region === second.region &&
    first.loop.map(([, , iteration]) => iteration).join() === second.loop.map(([, , iteration]) => iteration).join()
  );
}

/** The stop at or before a step; the first stop if there is none. */
export function nearestStop(stops: number[], step: number): number {
  let low = 0;
  let high = stops.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (stops[middle]! <= step) low = middle;
    else high = middle - 1;
  }
  return low;
}

export interface Position {
  step: number;
  /** 0 is before a collective, 1 to n its hops, n + 1 the result. Always 0 for other steps. */
  hop: number;
}

/** Hops that can be shown one by one; 0 if a step is no collective. */
export function hopCount(step: Step | undefined): number {
  // Where devices wait, no data moves.
  if (step === undefined || step.collective === null || step.waiting !== null) return 0;
  return hopTotal(step.collective);
}

/** The last hop position of a step: its result. */
export function resultHop(step: Step | undefined): number {
  const hops = hopCount(step);
  return hops === 0 ? 0 : hops + 1;
}

export function nextPosition(steps: Step[], stops: number[], position: Position, throughHops: boolean): Position {
  const step = steps[position.step];
  if (throughHops && position.hop < resultHop(step)) return { step: position.step, hop: position.hop + 1 };
  const at = stops.findIndex((stop) => stop > position.step);
  if (at < 0) return { step: position.step, hop: resultHop(step) };
  const target = stops[at]!;
  return { step: target, hop: throughHops ? 0 : resultHop(steps[target]) };
}

export function previousPosition(steps: Step[], stops: number[], position: Position, throughHops: boolean): Position {
  if (throughHops && position.hop > 0) return { step: position.step, hop: position.hop - 1 };
  let target = stops[0] ?? 0;
  for (const stop of stops) if (stop < position.step) target = stop;
  return { step: target, hop: resultHop(steps[target]) };
}

/** Runs of consecutive steps with one key, for the bands of the track. */
export function stepRuns<Key>(steps: Step[], key: (step: Step) => Key): { key: Key; first: number; last: number }[] {
  const runs: { key: Key; first: number; last: number }[] = [];
  steps.forEach((step, index) => {
    const current = key(step);
    const last = runs[runs.length - 1];
    if (last !== undefined && last.key === current) last.last = index;
    else runs.push({ key: current, first: index, last: index });
  });
  return runs;
}

/** "pmean = psum / 4" at the psum that JAX runs for a pmean; empty elsewhere. */
export function pmeanText(step: Step): string {
  const isPmean = step.collective?.op === "psum" && step.phase === "forward" && /\bpmean\b/.test(step.code);
  return isPmean ? `pmean = psum / ${step.collective!.group_size}` : "";
}

/** One sentence for the step: what happens, on which line. */
export function stepSentence(step: Step): string {
  const place = step.line > 0 ? `line ${step.line}` : "outside your file";
  const action = step.collective
    ? `${step.collective.op} over ${step.collective.axes.join(", ")}${pmeanText(step) && ` (${pmeanText(step)})`}`
    : step.op;
  const loop = step.loop.map(([kind, , iteration, length]) => `${kind} ${iteration + 1}${length ? ` of ${length}` : ""}`);
  return [action, place, ...(step.phase === "backward" ? ["backward pass"] : []), ...loop].join(", ");
}
