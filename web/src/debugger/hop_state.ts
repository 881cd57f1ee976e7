// How the hops of a collective are read: its kind, its chunks, and one transfer in words.

import type { Collective, Transfer } from "../shared/recording.ts";

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

/** "device 0 sends chunk 3 to device 1, which adds it" */
export function transferText(transfer: Transfer, group: number[], collective: Collective): string {
  const [from, to, , kind] = transfer;
  const chunk = chunkCount(collective) === 1 ? "its value" : `chunk ${chunkOf(transfer)}`;
  const then = kind === "add" ? ", which adds it" : "";
  return `device ${group[from] ?? from} sends ${chunk} to device ${group[to] ?? to}${then}`;
}
