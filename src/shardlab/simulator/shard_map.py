"""`shardlab.shard_map`: the signature of `jax.shard_map`, for a mesh that does not exist."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab import _jax
from shardlab._jax import device_hooks as seams
from shardlab._jax import partitioner
from shardlab._jax.shard_map_hooks import hook_shard_map
from shardlab.simulator.interpreter import evaluate as simulate
from shardlab.simulator.interpreter.shard_boundary import ShardedOutput
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.virtual_devices import array_labels as labels
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
    context. The body is traced by `jax.shard_map` itself, so its checks, its types and its
    gradients are JAX's own; only running it is ours.
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
        # Abstract: a jit that met virtual devices would try to compile for them.
        mesh=None if devices is None else devices.abstract_mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=axis_names,
        check_vma=check_vma,
    )
    return mapped if devices is None else _labelling(mapped, devices, out_specs)


def _labelling(mapped: Callable[..., Any], devices: Mesh, out_specs: Any) -> Callable[..., Any]:
    """Return `mapped`, whose results outside of jit know their shards (`shardlab.shards`)."""

    def label(spec: Any, part: Any) -> None:
        for leaf in jax.tree.leaves(part):
            if isinstance(leaf, seams.ArrayImpl):
                labels.attach(leaf, NamedSharding(devices, spec))

    @functools.wraps(mapped)
    def call(*args: Any) -> Any:
        out = mapped(*args)
        jax.tree.map(label, out_specs, out, is_leaf=lambda x: isinstance(x, PartitionSpec))
        return out

    return call


def _simulate(
    params: dict[str, Any], arrays: Sequence[Any], kept: Sequence[ShardedOutput | None]
) -> tuple[list[Any], list[ShardedOutput]]:
    """Return the outputs joined, and kept apart for a shard_map that takes them as they are."""
    values = [
        StackedArray(array) if how is None else how.with_array(array)
        for array, how in zip(arrays, kept, strict=True)
    ]
    outs = simulate.evaluate_shard_map(MeshAxes(), params, values)
    return [out.materialize().array for out in outs], outs


def _is_simulated(mesh: Any) -> bool:
    # Simulated mode asks JAX's partitioner about the program as it is, shard_map and all.
    return is_virtual(mesh) and not partitioner.is_lowering()


hook_shard_map(_is_simulated, _simulate)
