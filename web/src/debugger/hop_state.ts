// What every device of a group holds after each hop of a collective: whose data is in which chunk.

import type { Collective, Transfer } from "../shared/recording.ts";

/** One chunk on one device: the positions in the group whose data it contains; empty means no data. */
export type Slot = readonly number[];

export interface GroupState {
  /** [position][chunk]: the operand, or the buffer in which sums grow. */
  operand: Slot[][];
  /** [position][chunk]: received chunks of collectives that do not work in place; null for the others. */
  result: Slot[][] | null;
}

export type CollectiveKind = "reduce" | "reduce_scatter" | "all_gather" | "all_to_all" | "permute";

export function collectiveKind(op: string): CollectiveKind {
  if (/scatter/.test(op)) return "reduce_scatter";
  if (/all_gather/.test(op)) return "all_gather";
  if (/all_to_all/.test(op)) return "all_to_all";
  if (/permute|pbroadcast|pshuffle/.test(op)) return "permute";
  return "reduce";
}

export function chunkCount(collective: Collective): number {
  return collectiveKind(collective.op) === "permute" ? 1 : collective.group_size;
}

/** A transfer's chunk; the full operand, which has no number, is chunk 0. */
export function chunkOf(transfer: Transfer): number {
  return Math.max(0, transfer[2] ?? 0);
}

export function initialState(collective: Collective): GroupState {
  const size = collective.group_size;
  const kind = collectiveKind(collective.op);
  const chunks = chunkCount(collective);
  const positions = Array.from({ length: size }, (_, position) => position);
  const operand = positions.map((position) =>
    Array.from({ length: chunks }, (_, chunk): Slot => (kind === "all_gather" && chunk !== position ? [] : [position])),
  );
  if (kind !== "all_to_all" && kind !== "permute") return { operand, result: null };
  // Every device keeps its own chunk of an all-to-all; a ppermute gives zeros to a device that receives nothing.
  const result = positions.map((position) =>
    Array.from({ length: chunks }, (_, chunk): Slot => (kind === "all_to_all" && chunk === position ? [position] : [])),
  );
  return { operand, result };
}

/** The state after one hop. All transfers of a hop happen at once, so each reads the state before it. */
export function applyHop(state: GroupState, hop: Transfer[], kind: CollectiveKind): GroupState {
  const copy = (slots: Slot[][]) => slots.map((row) => row.slice());
  const operand = copy(state.operand);
  const result = state.result === null ? null : copy(state.result);
  for (const transfer of hop) {
    const [from, to] = transfer;
    const chunk = chunkOf(transfer);
    const payload = state.operand[from]?.[chunk] ?? [];
    if (result !== null) {
      const target = kind === "all_to_all" ? from : 0;
      if (result[to]?.[target] !== undefined) result[to]![target] = payload;
    } else if (operand[to]?.[chunk] !== undefined) {
      const present = transfer[3] === "add" ? state.operand[to]![chunk]! : [];
      operand[to]![chunk] = [...new Set([...present, ...payload])].sort((first, second) => first - second);
    }
  }
  return { operand, result };
}

/** States before the first hop, after the first hop, and so on: hops.length + 1 of them. */
export function hopStates(collective: Collective): GroupState[] {
  const states = [initialState(collective)];
  const kind = collectiveKind(collective.op);
  for (const hop of collective.hops) states.push(applyHop(states[states.length - 1]!, hop, kind));
  return states;
}

/** "device 0 sends chunk 3 to device 1, which adds it" */
export function transferText(transfer: Transfer, group: number[], collective: Collective): string {
  const [from, to, , kind] = transfer;
  const chunk = chunkCount(collective) === 1 ? "its value" : `chunk ${chunkOf(transfer)}`;
  const then = kind === "add" ? ", which adds it" : "";
  return `device ${group[from] ?? from} sends ${chunk} to device ${group[to] ?? to}${then}`;
}
