// A small recording by hand, for unit tests: y = psum(x @ w, "model") on data=2, model=4.

import type { Cells, Recording, Step, Value } from "../shared/recording.ts";

export function encodeFloats(numbers: number[], shape: number[]): Cells {
  const bytes = new Uint8Array(new Float32Array(numbers).buffer);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return { shape, of: "all", as: "f4", data: btoa(text) };
}

function value(fields: Partial<Value> & { id: number; groups: Value["groups"] }): Value {
  return {
    name: null,
    type: "f32[2,4]",
    dtype: "float32",
    shape: [2, 4],
    spec: null,
    varies_over: [],
    declared_over: null,
    partial_over: [],
    disagrees: false,
    n_groups: fields.groups.length,
    groups_shown: fields.groups.length,
    ...fields,
  };
}

function group(devices: string, n: number, numbers: number[], shape: number[]): Value["groups"][number] {
  return {
    devices,
    n,
    min: Math.min(...numbers),
    max: Math.max(...numbers),
    mean: numbers.reduce((total, number) => total + number, 0) / numbers.length,
    n_nan: 0,
    cells: encodeFloats(numbers, shape),
    slice: null,
  };
}

function step(fields: Partial<Step>): Step {
  return {
    file: 0,
    line: 5,
    frames: [[0, 5, "mlp"]],
    phase: "forward",
    region: "body",
    op: "dot_general",
    code: "partial = x @ w",
    loop: [],
    branch: null,
    reads: [],
    writes: [],
    collective: null,
    waiting: null,
    flops: 0,
    bytes: 0,
    seconds: 0,
    ...fields,
  };
}

const ROWS = (seed: number) => Array.from({ length: 8 }, (_, index) => Math.round(Math.sin(seed * 3 + index) * 40) / 10);
const SUM = (data: number) =>
  ROWS(0).map((_, index) => [0, 1, 2, 3].reduce((total, model) => total + ROWS(data * 4 + model)[index]!, 0));

/** The recording. Values 0 x, 1 w, 2 the partial sums, 3 their sum, 4 a loss that disagrees between devices. */
export function fixtureRecording(): Recording {
  const perDevice = Array.from({ length: 8 }, (_, device) => device);
  return {
    format: "shardlab-recording",
    version: 2,
    shardlab: "0",
    jax: "0",
    title: "mlp",
    mesh: [["data", 2], ["model", 4]],
    hardware: "tpu-v5p",
    sources: [{ name: "program.py", text: "import jax\nfrom jax import lax\n\ndef mlp(x, w):\n    partial = x @ w\n    y = lax.psum(partial, \"model\")\n    loss = (y ** 2).mean()\n    return loss\n" }],
    values: [
      value({ id: 0, name: "x", varies_over: ["data"], groups: [group("0-3", 4, ROWS(20), [2, 4]), group("4-7", 4, ROWS(21), [2, 4])] }),
      value({ id: 1, name: "w", varies_over: ["model"], groups: [0, 1, 2, 3].map((model) => group(`${model},${model + 4}`, 2, ROWS(model + 30), [2, 4])) }),
      value({ id: 2, name: "partial", type: "f32[2,4]{V:(data,model)}", varies_over: ["data", "model"], partial_over: ["model"], groups: perDevice.map((device) => group(String(device), 1, ROWS(device), [2, 4])) }),
      value({ id: 3, name: "y", type: "f32[2,4]{V:data}", varies_over: ["data"], groups: [group("0-3", 4, SUM(0), [2, 4]), group("4-7", 4, SUM(1), [2, 4])] }),
      value({ id: 4, name: "loss", type: "f32[]", shape: [], varies_over: ["data"], declared_over: [], disagrees: true, groups: [group("0-3", 4, [4.25], []), group("4-7", 4, [1.5], [])] }),
    ],
    steps: [
      step({ reads: [0, 1], writes: [2], flops: 64, seconds: 2e-6 }),
      step({
        line: 6,
        op: "psum",
        code: 'y = lax.psum(partial, "model")',
        frames: [[0, 6, "mlp"]],
        reads: [2],
        writes: [3],
        bytes: 48,
        seconds: 3e-6,
        collective: {
          op: "psum", axes: ["model"], groups: [[0, 1, 2, 3], [4, 5, 6, 7]], n_groups: 2, group_size: 4,
          payload_bytes: 32, wire_bytes: 48, seconds: 3e-6, algorithm: "ring all-reduce", schedule: "all_reduce", pairs: [],
          n_hops: 6, chunk_label: "quarter of the operand", reads: 2, writes: 3,
        },
      }),
      step({ line: 7, op: "square", code: "loss = (y ** 2).mean()", reads: [3], writes: [3] }),
      step({ line: 7, op: "reduce_sum", code: "loss = (y ** 2).mean()", reads: [3], writes: [4], seconds: 1e-6 }),
    ],
    inputs: [{ name: "x", value: 0 }, { name: "w", value: 1 }],
    outputs: [{ name: "loss", value: 4 }],
    findings: [{ code: "hazard.replicas_differ", severity: "error", message: "The output of 'mlp' differs between devices.", fix: "return jax.lax.pmean(value, 'data').", file: 0, line: 7 }],
    failure: null,
    timeline: {
      total_s: 6e-6,
      lanes: [
        { name: "compute", bars: [{ step: 0, start_s: 0, duration_s: 2e-6, exposed: false }, { step: 3, start_s: 5e-6, duration_s: 1e-6, exposed: false }] },
        { name: "data", bars: [] },
        { name: "model", bars: [{ step: 1, start_s: 2e-6, duration_s: 3e-6, exposed: true }] },
      ],
    },
    totals: { flops: 64, wire_bytes: 48, compute_s: 3e-6, communication_s: 3e-6, step_s: 6e-6, peak_bytes: 4096 },
    notes: [],
    truncated: null,
  };
}
