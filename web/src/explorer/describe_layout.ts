// A layout and its resharding as plain data, in the words of the Python code: tests compare it with shardlab.

import { LabError } from "../shared/lab_error.ts";
import { deviceText, layoutFacts } from "../shared/layout_text.ts";
import { makeLayout, parseArray, parseMesh, parseSpec, type Layout } from "../shared/mesh.ts";
import { costText, reshard } from "../shared/reshard.ts";
import { pythonCode } from "./python_code.ts";

export interface LayoutCase {
  readonly mesh: string;
  readonly array: string;
  readonly spec: string;
  readonly to: string | null;
  /** Device ids whose contents are described. */
  readonly devices: readonly number[];
}

/** Everything the explorer computes for one case; the parts of the error if it is invalid. */
export function describeLayout(request: LayoutCase): unknown {
  try {
    const { shape, dtype } = parseArray(request.array);
    const spec = parseSpec(request.spec);
    const layout = makeLayout(shape, spec, parseMesh(request.mesh), dtype);
    const described = describe(layout, request.devices);
    if (request.to === null) return described;
    const target = makeLayout(shape, parseSpec(request.to), layout.mesh, dtype);
    return { ...described, python: pythonCode(layout, target), steps: describeSteps(layout, target) };
  } catch (error) {
    if (!(error instanceof LabError)) throw error;
    return { error: { code: error.code, what: error.what, where: error.where, fix: error.fix } };
  }
}

function describe(layout: Layout, devices: readonly number[]) {
  return {
    spec: `${layout.spec}`,
    mesh: `${layout.mesh}`,
    dtype: layout.dtype.name,
    shape: layout.shape.map(String),
    shard_shape: layout.shardShape.map(String),
    shard_counts: layout.shardCounts,
    n_shards: layout.nShards,
    n_replicas: layout.nReplicas,
    bytes_per_device: `${layout.bytesPerDevice}`,
    array_bytes: `${layout.arrayBytes}`,
    total_bytes: `${layout.totalBytes}`,
    facts: layoutFacts(layout),
    python: pythonCode(layout, null),
    devices: devices.map((position) => {
      const device = position % layout.nDevices;
      const coordinates = layout.shardCoordinates(device);
      const holders: number[] = [];
      for (const holder of layout.shardDevices(coordinates)) if (holders.push(holder) === 8) break;
      return {
        device,
        coordinate: layout.mesh.coordinate(device),
        shard: coordinates,
        index: layout.index(device).map(({ start, stop }) => [`${start}`, `${stop}`]),
        holders,
        text: deviceText(layout, device).join("\n"),
      };
    }),
  };
}

function describeSteps(before: Layout, after: Layout) {
  return reshard(before, after).map((step) => ({
    kind: step.kind,
    mesh_axes: step.meshAxes,
    dim: step.dim,
    to_dim: step.toDim,
    group_size: step.groupSize,
    sent_bytes: `${step.sentBytes}`,
    n_senders: step.nSenders,
    total_sent_bytes: `${step.sentBytes * BigInt(step.nSenders)}`,
    before: `${step.before.spec}`,
    after: `${step.after.spec}`,
    cost: costText(step),
  }));
}
