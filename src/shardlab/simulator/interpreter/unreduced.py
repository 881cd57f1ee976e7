"""Unreduced arrays of a program with Explicit axes: sums whose terms stay on different devices.

`jnp.einsum(..., out_sharding=P(None, unreduced={"x"}))` leaves each device with the product of its
own shards, and a later `jax.reshard` adds them up. JAX only allows linear operations in between. So
outside of shard_map an unreduced value has a device axis for each of its unreduced mesh axes, as it
has inside; every other value of the outer program is one global array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import PartitionSpec

from shardlab import _jax
from shardlab.simulator.interpreter.rules.reductions import psum
from shardlab.simulator.interpreter.shard_boundary import (
    place_partial_sum,
    shard_input,
    spec_entries,
)
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray, arrange_dims


def unreduced_axes(aval: Any) -> frozenset[str]:
    """Return the mesh axes over which a value of this type is a sum of partial sums."""
    if not _jax.has_sharding(aval):
        return frozenset()
    return frozenset(aval.sharding.spec.unreduced)


def unreduced_mesh_sizes(jaxpr: Any) -> dict[str, int]:
    """Return the mesh of a program that has unreduced values outside of shard_map, or {}."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    variables = [*inner.invars, *(v for eqn in inner.eqns for v in eqn.outvars)]
    for variable in variables:
        if unreduced_axes(variable.aval):
            return dict(variable.aval.sharding.mesh.shape)
    for eqn in inner.eqns:
        bodies = () if eqn.primitive.name == "shard_map" else _jax.inner_jaxprs(eqn.params)
        for body in bodies:
            if sizes := unreduced_mesh_sizes(body):
                return sizes
    return {}


def split_reduced_dims(
    axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray]
) -> Sequence[StackedArray]:
    """Split the summed dimensions of a product or sum over the axes that its result leaves open."""
    names = unreduced_axes(eqn.outvars[0].aval)
    if not names or eqn.primitive.name not in ("dot_general", "reduce_sum"):
        return ins
    if eqn.primitive.name == "dot_general":
        summed_dims = eqn.params["dimension_numbers"][0]
    else:
        summed_dims = (eqn.params["axes"],)
    shards = []
    for value, variable, dims in zip(ins, eqn.invars, summed_dims, strict=True):
        entries = spec_entries(variable.aval.sharding.spec)
        kept = [
            tuple(name for name in entry if name in names) if dim in dims else ()
            for dim, entry in enumerate(entries)
        ]
        shards.append(shard_input(value, PartitionSpec(*kept), axes))
    return shards


def reshard(axes: MeshAxes, eqn: Any, value: StackedArray) -> StackedArray:
    """Add up the partial sums over mesh axes that the result is not unreduced over."""
    closed = unreduced_axes(eqn.invars[0].aval) - unreduced_axes(eqn.outvars[0].aval)
    return psum(axes, value, axes.in_mesh_order(closed & set(value.device_axes)))


def with_device_axes(axes: MeshAxes, value: StackedArray, aval: Any) -> StackedArray:
    """Give an unreduced value its device axes if the operation that made it has none.

    JAX puts the sum on the first device and zeros on the others when it reshards an array to an
    unreduced one; an operation that we compute as a sum is treated alike.
    """
    missing = unreduced_axes(aval) - set(value.device_axes)
    return place_partial_sum(value, missing, axes) if missing else value


def stack_partial_sums(value: StackedArray) -> Any:
    """Return the array with its device axes in front, in alphabetical order."""
    local = tuple(dim for dim in value.dims if isinstance(dim, int))
    names = tuple(dim for dim in value.dims if isinstance(dim, str))
    return arrange_dims(value, (*sorted(names), *local), value.array.shape)
