// The layout as Python code: the same text as src/shardlab/server/pages/layout.py makes.

import type { Layout } from "../shared/mesh.ts";
import { repr, tupleText } from "../shared/python_text.ts";

/** A program that creates the array with this sharding. */
export function pythonCode(layout: Layout, target: Layout | null): string {
  const { mesh, dtype } = layout;
  const names = mesh.names.length === 1 ? `(${repr(mesh.names[0]!)},)` : `(${mesh.names.map(repr).join(", ")})`;
  const isKey = dtype.name.startsWith("key<");
  const array = isKey
    ? `jax.random.split(jax.random.key(0), ${tupleText(layout.shape)})`
    : `jnp.zeros(${tupleText(layout.shape)}, ${repr(dtype.name)})`;
  const lines = [
    "import jax",
    ...(isKey ? [] : ["import jax.numpy as jnp"]),
    "from jax.sharding import NamedSharding, PartitionSpec as P",
    "",
    `mesh = jax.make_mesh(${tupleText(mesh.sizes)}, ${names})`,
    `sharding = NamedSharding(mesh, ${layout.spec})`,
    `x = jax.device_put(${array}, sharding)`,
  ];
  if (target) lines.push(`y = jax.device_put(x, NamedSharding(mesh, ${target.spec}))`);
  return `${lines.join("\n")}\n`;
}
