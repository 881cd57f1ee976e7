// The recording of a run, as shardlab.recording writes it (format version 2; version 1 is read too).

export type DeviceSet = string; // sorted ranges, such as "0-7,16"

export interface Cells {
  shape: number[];
  of: "all" | "block mean";
  as: "f4" | "f8" | "i4" | "u4" | "i8" | "u1";
  data: string; // base64, little-endian
}

export interface DeviceGroup {
  devices: DeviceSet;
  n: number;
  min: number | string | null;
  max: number | string | null;
  mean: number | string | null;
  n_nan: number;
  cells: Cells | null;
  slice: [number, number][] | null;
}

export interface Value {
  id: number;
  name: string | null;
  type: string;
  dtype: string;
  shape: number[];
  spec: string | null;
  varies_over: string[];
  declared_over: string[] | null;
  partial_over: string[];
  disagrees: boolean;
  groups: DeviceGroup[];
  n_groups: number;
  groups_shown: number;
  /** The mean on each device, where the recording has not the numbers of every group. */
  device_means?: Cells | null;
}

export type Transfer = [from: number, to: number, chunk: number, kind: "copy" | "add"];

export type Schedule = "all_reduce" | "reduce_scatter" | "all_gather" | "all_to_all" | "broadcast" | "pairs";

export interface Collective {
  op: string;
  axes: string[];
  groups: number[][];
  n_groups: number;
  group_size: number;
  payload_bytes: number;
  wire_bytes: number;
  seconds: number | null;
  algorithm: string;
  /** What the hops follow from (hop_schedule.ts); null if it is not known who sends to whom. Version 1 has `hops` instead. */
  schedule?: Schedule | null;
  /** Of the schedule "pairs": (from + i, to + i) for i below the count. */
  pairs?: [from: number, to: number, count: number][];
  hops?: Transfer[][];
  n_hops: number;
  /** Chunks of the operand on one device; an element is never split. Earlier files have one for each device. */
  n_chunks?: number;
  chunk_label: string;
  reads: number;
  writes: number;
}

export interface Step {
  file: number;
  line: number;
  frames: [file: number, line: number, name: string][];
  phase: "forward" | "backward";
  region: "body" | "outside";
  op: string;
  code: string;
  loop: [kind: string, line: number, iteration: number, length: number | null][];
  branch: { line: number; taken_by: DeviceSet } | null;
  reads: number[];
  writes: number[];
  collective: Collective | null;
  waiting: { devices: DeviceSet; missing: DeviceSet; text: string } | null;
  flops: number;
  bytes: number;
  seconds: number | null;
}

export interface Finding {
  code: string;
  severity: string;
  message: string;
  fix: string;
  file: number;
  line: number;
}

export interface TimelineBar {
  step: number;
  start_s: number;
  duration_s: number;
  exposed: boolean;
}

export interface Recording {
  format: "shardlab-recording";
  version: 1 | 2;
  shardlab: string;
  jax: string;
  title: string;
  mesh: [name: string, size: number][];
  hardware: string | null;
  sources: { name: string; text: string }[];
  steps: Step[];
  values: Value[];
  inputs: { name: string; value: number }[];
  outputs: { name: string; value: number }[];
  findings: Finding[];
  failure: { kind: string; message: string; where: string; fix: string; file: number; line: number } | null;
  timeline: { total_s: number; lanes: { name: string; bars: TimelineBar[] }[] } | null;
  totals: {
    flops: number;
    wire_bytes: number;
    compute_s: number;
    communication_s: number;
    step_s: number;
    peak_bytes: number;
  };
  notes: string[];
  truncated: string | null;
  /** What the program printed. */
  output?: string;
  /** The mesh that the program builds, if it ran on another one of the same axes. */
  program_mesh?: [name: string, size: number][];
}

/** The bytes that one device sends in a step; devices that wait forever have sent nothing. */
export function sentBytes(step: Step): number {
  return step.collective === null || step.waiting !== null ? 0 : step.collective.wire_bytes;
}

/** Return the device numbers of a set, such as "0-7,16". */
export function parseDevices(devices: DeviceSet): number[] {
  if (!devices) return [];
  return devices.split(",").flatMap((part) => {
    const [first, last] = part.split("-").map(Number) as [number, number | undefined];
    return Array.from({ length: (last ?? first) - first + 1 }, (_, index) => first + index);
  });
}
