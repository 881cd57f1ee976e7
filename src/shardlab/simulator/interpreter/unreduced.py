"""Unreduced arrays of a program with Explicit axes: sums whose terms stay on different devices.

`jnp.einsum(..., out_sharding=P(None, unreduced={"x"}))` leaves each device with the product of its
own shards, and a later `jax.reshard` adds them up. JAX only allows linear operations in between. So
outside of shard_map an unreduced value has a device axis for each of its unreduced mesh axes, as it
has inside; every other value of the outer program is one global array.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from shardlab import _jax
from shardlab.simulator.interpreter.rules.reductions import pmax, pmin, psum
from shardlab.simulator.interpreter.shard_boundary import (
    place_partial_sum,
    shard_input,
    spec_entries,
)
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    StackedArray,
    arrange_dims,
    broadcast_over,
)


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


SUMS = frozenset({"dot_general", "reduce_sum", "scatter-add"})
# From JAX 0.12 the terms may also be those of a maximum or minimum (`unreduced_kind` of a spec).
REDUCTIONS = SUMS | {"reduce_max", "reduce_min"}
_COMBINE_TERMS = {"sum": psum, "max": pmax, "min": pmin}


def combine_terms(
    axes: MeshAxes, value: StackedArray, names: Sequence[str], aval: Any
) -> StackedArray:
    """Add up the terms of an unreduced value of type `aval`, or take their maximum or minimum."""
    kind = getattr(aval.sharding.spec, "unreduced_kind", None) if _jax.has_sharding(aval) else None
    return _COMBINE_TERMS[getattr(kind, "name", "sum")](axes, value, names)


def split_reduced_dims(
    axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray]
) -> Sequence[StackedArray]:
    """Split the summed dimensions of an operation over the axes that its result leaves open."""
    names = unreduced_axes(eqn.outvars[0].aval)
    if not names:
        return ins
    if eqn.primitive.name == "scatter-add":
        # Each device adds its own updates; the array they are added to counts once.
        operand, *updates = ins
        shards = [
            _split_dims(axes, value, variable.aval, names, range(value.local_ndim))
            for value, variable in zip(updates, eqn.invars[1:], strict=True)
        ]
        return [place_partial_sum(operand, names - set(operand.device_axes), axes), *shards]
    if eqn.primitive.name == "dot_general":
        summed_dims = eqn.params["dimension_numbers"][0]
    else:
        summed_dims = (eqn.params["axes"],)
    return [
        _split_dims(axes, value, variable.aval, names, dims)
        for value, variable, dims in zip(ins, eqn.invars, summed_dims, strict=True)
    ]


def _split_dims(
    axes: MeshAxes, value: StackedArray, aval: Any, names: frozenset[str], dims: Collection[int]
) -> StackedArray:
    """Give each device its shard of those `dims` that `names` shard."""
    if not _jax.has_sharding(aval):
        return value
    entries = [
        tuple(name for name in entry if name in names and name not in value.device_axes)
        if dim in dims
        else ()
        for dim, entry in enumerate(spec_entries(aval.sharding.spec))
    ]
    return shard_input(value, PartitionSpec(*entries), axes)


def reshard(axes: MeshAxes, eqn: Any, value: StackedArray) -> StackedArray:
    """Add up partial sums that the result no longer has, and split it into those that it has."""
    before, after = eqn.invars[0].aval, eqn.outvars[0].aval
    closed = unreduced_axes(before) - unreduced_axes(after)
    closed_names = axes.in_mesh_order(closed & set(value.device_axes))
    value = combine_terms(axes, value, closed_names, before)
    # A sum inside `auto_axes` may be split already (`auto_sums.py`).
    opened = unreduced_axes(after) - unreduced_axes(before) - set(value.device_axes)
    return split_shards(axes, value, before, opened)


def split_shards(
    axes: MeshAxes, value: StackedArray, aval: Any, names: frozenset[str]
) -> StackedArray:
    """Split an array into partial sums over `names`: each device keeps the shard it has.

    Over an axis that shards a dimension, the partial sum of a device is its own shard in its place
    and zeros elsewhere; over any other axis the first device keeps everything.
    """
    entries = spec_entries(aval.sharding.spec) if _jax.has_sharding(aval) else []
    sharding_names = {
        name for entry in entries for name in axes.drop_size_one(entry) if name in names
    }
    for dim, entry in enumerate(entries):
        entry = axes.drop_size_one(entry)
        for name in entry:
            if name in names:
                value = _keep_own_shard(axes, value, dim, entry, name)
    return place_partial_sum(value, names - sharding_names, axes)


def _keep_own_shard(
    axes: MeshAxes, value: StackedArray, dim: int, entry: Sequence[str], name: str
) -> StackedArray:
    size = value.local_shape[dim]
    # The coordinate along `name` of the device that has each element of the dimension.
    n_minor = axes.size(entry[list(entry).index(name) + 1 :])
    owner = jnp.arange(size) // (size // axes.size(entry)) // n_minor % axes.sizes[name]
    stacked = broadcast_over(value, [name], axes)
    shape = [1] * stacked.array.ndim
    shape[stacked.position_of_local(dim)] = size
    coordinate = [1] * stacked.array.ndim
    coordinate[stacked.device_axes[name]] = axes.sizes[name]
    mask = owner.reshape(shape) == jnp.arange(axes.sizes[name]).reshape(coordinate)
    array = jnp.where(mask, stacked.array, jnp.zeros_like(stacked.array))
    return StackedArray(array, stacked.device_axes)


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
