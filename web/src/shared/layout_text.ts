// Sentences about a layout: a port of the texts of sharding/layout_picture.py.

import type { Layout } from "./mesh.ts";
import { bytesText, countText, devicesText, indexText, shapeText } from "./units.ts";
import { withCommas } from "./python_text.ts";

export function arrayText(layout: Layout): string {
  return `${layout.dtype.name}${shapeText(layout.shape)}`;
}

/** What each device holds, how many shards there are, the bytes on all devices. */
export function layoutFacts(layout: Layout): [string, string, string] {
  const size = `${shapeText(layout.shardShape)}, ${bytesText(layout.bytesPerDevice)}`;
  const devices = `${layout.nReplicas > 1 ? "replicated on" : "on"} ${countText(layout.nReplicas, "device")}`;
  const shards =
    layout.nShards === 1
      ? `1 shard, the full array, ${devices}`
      : `${withCommas(layout.nShards)} shards, each ${devices}`;
  const total = `total ${bytesText(layout.totalBytes)} on all devices`;
  return [`each device holds ${size}`, shards, `${total}; full array ${bytesText(layout.arrayBytes)}`];
}

export function coordinateText(layout: Layout, device: number): string {
  const steps = layout.mesh.coordinate(device);
  return layout.mesh.names.map((name, axis) => `${name}=${steps[axis]}`).join(", ");
}

/** What one device holds, and which devices hold the same shard: two lines. */
export function deviceText(layout: Layout, device: number): [string, string] {
  const coordinates = layout.shardCoordinates(device);
  const index = indexText(layout.shardIndex(coordinates), layout.shape);
  const size = `shape ${shapeText(layout.shardShape)}, ${bytesText(layout.bytesPerDevice)}`;
  const holds = `device ${device} (${coordinateText(layout, device)}) holds ${index}`;
  const devices = devicesText(layout.shardDevices(coordinates), layout.nReplicas);
  const copies = layout.nReplicas > 1 ? `this shard is replicated on ${devices}` : "no replicas";
  return [`${holds} of ${arrayText(layout)}: ${size}`, copies];
}
