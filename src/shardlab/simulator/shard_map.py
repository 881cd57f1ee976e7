"""`shardlab.shard_map`: the signature of `jax.shard_map`, for a virtual mesh.

Loading this module hooks JAX: from then on every shard_map over a virtual mesh is simulated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab import _jax
from shardlab._jax import device_hooks, partitioner
from shardlab._jax.shard_map_hooks import allow_abstract_mesh, hook_shard_map
from shardlab.simulator.interpreter.evaluate import evaluate_shard_map
from shardlab.simulator.interpreter.shard_boundary import ShardedOutput
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.virtual_devices.array_labels import attach_sharding
from shardlab.simulator.virtual_devices.devices import is_virtual, virtual_mesh


def shard_map(
    f: Callable[..., Any] | None = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = _jax.Infer,
    mesh: Any = None,
    axis_names: Set[str] = frozenset(),
    check_vma: bool = True,
) -> Any:
    """Map `f` over shards of its arguments, on a virtual mesh.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import PartitionSpec as P
    >>> total = shard_map(
    ...     lambda x: jax.lax.psum(x.sum(), "data"),
    ...     mesh="data=512", in_specs=P("data"), out_specs=P(),
    ... )
    >>> float(total(jnp.arange(1024.0)))
    523776.0

    The mesh may be text, a mapping, a `Mesh` or an `AbstractMesh`, or None to take the one in
    context. `jax.shard_map` itself traces the body, so checks, types and gradients are JAX's own;
    only running it is simulated.
    """
    if f is None:
        return lambda g: shard_map(
            g,
            out_specs=out_specs,
            in_specs=in_specs,
            mesh=mesh,
            axis_names=axis_names,
            check_vma=check_vma,
        )
    devices = None if mesh is None else virtual_mesh(mesh)
    mapped = jax.shard_map(
        f,
        # Abstract: with a concrete mesh, a jit around this call would compile for its devices.
        mesh=None if devices is None else devices.abstract_mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=axis_names,
        check_vma=check_vma,
    )
    return mapped if devices is None else _attach_shardings(mapped, devices, out_specs)


def _attach_shardings(
    mapped: Callable[..., Any], devices: Mesh, out_specs: Any
) -> Callable[..., Any]:
    """Return `mapped`, with shardings on its results outside of jit, for `shardlab.shards`."""

    def attach_to_leaves(spec: Any, subtree: Any) -> None:
        # A tracer (the call is inside a jit) has no shards yet.
        for leaf in jax.tree.leaves(subtree):
            if isinstance(leaf, device_hooks.ArrayImpl):
                attach_sharding(leaf, NamedSharding(devices, spec))

    @functools.wraps(mapped)
    def call_mapped(*args: Any) -> Any:
        with allow_abstract_mesh():
            out = mapped(*args)
        # `out_specs` may be a prefix of the tree of outputs.
        jax.tree.map(
            attach_to_leaves, out_specs, out, is_leaf=lambda x: isinstance(x, PartitionSpec)
        )
        return out

    return call_mapped


def simulate_shard_map(
    params: dict[str, Any], arrays: Sequence[Any], sharded_ins: Sequence[ShardedOutput | None]
) -> tuple[list[Any], list[ShardedOutput]]:
    """Return the outputs gathered, and sharded for a shard_map that takes them with that spec.

    An array that is an output of an earlier shard_map comes as shards, with its entry of
    `sharded_ins`; the entry of any other array is None.
    """
    values = [
        StackedArray(array) if sharded is None else sharded.with_array(array)
        for array, sharded in zip(arrays, sharded_ins, strict=True)
    ]
    outs = evaluate_shard_map(MeshAxes(), params, values)
    return [out.materialize().array for out in outs], outs


def _is_simulated(mesh: Any) -> bool:
    # Simulated mode also lowers the unchanged program, shard_maps included, for the partitioner.
    return is_virtual(mesh) and not partitioner.is_lowering()


# Once per process, when the module is loaded: a lowering rule cannot be registered per mesh.
hook_shard_map(_is_simulated, simulate_shard_map)
