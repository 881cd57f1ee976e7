"""Five small functions that place, split, sum and map over devices, as plain JAX programs.

Called as they stand they build a mesh of one device. Given a mesh they do the same on all of it,
and the results must not change: that is what `tests/test_examples.py` checks on 1, 2, 3, 4, 8 and
2x4 virtual devices. Nothing in here knows about shardlab.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def one_device_mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("data",))


def replicated_sharding_value(x, mesh=None):
    """Replicate `x` on every device and return its sum."""
    mesh = mesh or one_device_mesh()
    x_sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
    return jnp.sum(x_sharded)


def shard_map_double(x, mesh=None):
    """Double `x`; each device doubles its own shard."""
    mesh = mesh or one_device_mesh()
    spec = PartitionSpec(mesh.axis_names)
    double = jax.shard_map(lambda y: y * 2.0, mesh=mesh, in_specs=spec, out_specs=spec)
    return double(x)


def partition_spec_layout(num_devices, kernel_in, kernel_out):
    """Return the shape of one shard of a kernel under `PartitionSpec(None, "model")`."""
    return jnp.array([kernel_in, kernel_out // num_devices], dtype=jnp.float32)


def shard_shape(shape, spec, mesh_shape):
    """Return the shape of one shard for any spec; an indivisible dimension is an error."""
    out = list(shape)
    for dim, entry in enumerate(spec):
        names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        n_shards = math.prod(mesh_shape[name] for name in names)
        if shape[dim] % n_shards:
            raise ValueError(f"dimension {dim} has size {shape[dim]}, not divisible by {n_shards}")
        out[dim] = shape[dim] // n_shards
    return tuple(out)


def shard_map_psum(x, mesh=None):
    """Sum `x`: each device sums its shard, then a psum adds the partial sums."""
    mesh = mesh or one_device_mesh()

    def per_shard(y):
        return jax.lax.psum(jnp.sum(y), axis_name=mesh.axis_names)

    total = jax.shard_map(
        per_shard, mesh=mesh, in_specs=PartitionSpec(mesh.axis_names), out_specs=PartitionSpec()
    )
    return total(x)


def shard_map_simulate(seed, x, num_shards, features):
    """Apply one linear layer to `num_shards` shards of `x` in a loop, and flatten."""
    seed, num_shards, features = int(seed), int(num_shards), int(features)
    model = nnx.Linear(x.shape[-1], features, rngs=nnx.Rngs(seed))
    chunk = x.shape[0] // num_shards
    outs = []
    for i in range(num_shards):
        x_shard = jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk, axis=0)
        outs.append(model(x_shard))
    return jnp.concatenate(outs, axis=0).reshape(-1)


def nnx_shard_map(seed, x, mesh, features):
    """Apply the same linear layer on every device, each to its own rows of `x`, and flatten."""
    model = nnx.Linear(x.shape[-1], int(features), rngs=nnx.Rngs(int(seed)))
    graph, state = nnx.split(model)
    rows = PartitionSpec(mesh.axis_names)

    def per_shard(state, x_shard):
        return nnx.merge(graph, state)(x_shard)

    forward = jax.shard_map(per_shard, mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows)
    return forward(state, x).reshape(-1)
