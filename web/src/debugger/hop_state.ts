// How the hops of a collective are read: its kind, and one transfer in words.

import { chunkCount } from "../shared/hop_schedule.ts";
import type { Collective, Transfer } from "../shared/recording.ts";

export type CollectiveKind = "reduce" | "reduce_scatter" | "all_gather" | "all_to_all" | "permute";

export function collectiveKind(op: string): CollectiveKind {
  if (/scatter/.test(op)) return "reduce_scatter";
  if (/all_gather/.test(op)) return "all_gather";
  if (/all_to_all/.test(op)) return "all_to_all";
  if (/permute|pbroadcast|pshuffle/.test(op)) return "permute";
  return "reduce";
}

/** A transfer's chunk; the full operand, which has no number, is chunk 0. */
export function chunkOf(transfer: Transfer): number {
  return Math.max(0, transfer[2] ?? 0);
}

/** A chunk in words; an operand of one chunk is "its value", or a sum on its way. */
export function chunkName(collective: Collective, transfer: Transfer): string {
  if (chunkCount(collective) > 1) return `chunk ${chunkOf(transfer)}`;
  if (collectiveKind(collective.op) !== "reduce") return "its value";
  return transfer[3] === "add" ? "its partial result" : "the result";
}

/** "device 0 sends chunk 3 to device 1, which adds it"; `numbers` are those of the chunk, if they are known. */
export function transferText(transfer: Transfer, group: number[], collective: Collective, numbers = ""): string {
  const [from, to, , kind] = transfer;
  const chunk = `${chunkName(collective, transfer)}${numbers && ` (${numbers})`}`;
  const then = kind !== "add" ? "" : /max|min/.test(collective.op) ? ", which combines it with its own" : ", which adds its own";
  return `device ${group[from] ?? from} sends ${chunk} to device ${group[to] ?? to}${then}`;
}
