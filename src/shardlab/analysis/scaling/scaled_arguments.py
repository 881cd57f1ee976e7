"""Small meshes for a large one, and the arguments that give a device the same shards on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from shardlab import _jax
from shardlab.analysis.run_arguments import is_array
from shardlab.sharding.mesh import Mesh
from shardlab.simulator.interpreter import shard_boundary
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import IDENTITY_COLLECTIVES
from shardlab.tracing.stage import parse_shape_argument

# A mesh axis of this size or less is not scaled.
_LARGEST_KEPT_AXIS = 4
# Three sizes test a rule with two numbers; 3 is not a power of two. Programs that need powers of
# two, such as a recursive exchange, get the second set.
_SIZE_SETS = ((2, 3, 4), (2, 4, 8))
# By dimension, the mesh axes over which some shard_map shards it.
ShardedDims = dict[int, frozenset[str]]


def list_scaled_meshes(full: Mesh) -> list[list[Mesh]]:
    """Return sets of small meshes with the axes of a large one; empty if no axis is large.

    >>> [str(mesh) for mesh in list_scaled_meshes(Mesh(data=256, model=256))[0]]
    ['data=2,model=3', 'data=3,model=4', 'data=4,model=2']

    The sizes are rotated, so that each axis and each product takes several values.
    """
    large = [name for name, size in full.shape.items() if size > _LARGEST_KEPT_AXIS]
    if not large:
        return []
    sets = []
    for sizes in _SIZE_SETS:
        rotations = [
            {name: sizes[(row + column) % 3] for column, name in enumerate(large)}
            for row in range(3)
        ]
        if len(large) > 2:
            # With three rotated axes the product is the same on each mesh.
            rotations += [dict.fromkeys(large, size) for size in sizes[:2]]
        sets.append([Mesh([*{**full.shape, **new}.items()]) for new in rotations])
    return sets


def find_sharded_dims(closed: Any) -> dict[int, ShardedDims]:
    """Return over which mesh axes the dimensions of each argument are sharded, by its number.

    An argument is followed through jit and elementwise operations into the shard_maps that take it.
    """
    jaxpr, _ = _jax.open_jaxpr(closed)
    dims: dict[int, ShardedDims] = {}
    origins = {var: frozenset([number]) for number, var in enumerate(jaxpr.invars)}
    _collect_dims(jaxpr, origins, dims)
    return dims


def _collect_dims(
    jaxpr: Any, origins: dict[Any, frozenset[int]], dims: dict[int, ShardedDims]
) -> None:
    for eqn in jaxpr.eqns:
        operands = [
            frozenset() if isinstance(atom, _jax.Literal) else origins.get(atom, frozenset())
            for atom in eqn.invars
        ]
        if eqn.primitive.name == "shard_map":
            for numbers, spec in zip(operands, eqn.params["in_specs"], strict=True):
                for number in numbers:
                    known = dims.setdefault(number, {})
                    for dim, axes in enumerate(shard_boundary.spec_entries(spec)):
                        known[dim] = known.get(dim, frozenset()) | set(axes)
            continue
        body = called_jaxpr(eqn.primitive.name, eqn.params)
        if body is not None:
            inner, _ = _jax.open_jaxpr(body)
            inside = dict(zip(inner.invars, operands, strict=False))
            _collect_dims(inner, inside, dims)
            for var, out in zip(eqn.outvars, inner.outvars, strict=True):
                if not isinstance(out, _jax.Literal):
                    origins[var] = inside.get(out, frozenset())
        elif _keeps_dims(eqn):
            shape = eqn.outvars[0].aval.shape
            origins[eqn.outvars[0]] = frozenset().union(
                *(
                    numbers
                    for numbers, atom in zip(operands, eqn.invars, strict=True)
                    if getattr(atom.aval, "shape", None) == shape
                )
            )


def _keeps_dims(eqn: Any) -> bool:
    if len(eqn.outvars) != 1:
        return False
    return eqn.primitive.name in IDENTITY_COLLECTIVES or _jax.is_elementwise(eqn.primitive)


def argument_shapes(args: Sequence[Any]) -> tuple[list[Any], Any, list[int]]:
    """Return the flat arguments with shapes for arrays, their structure, and which are arrays."""
    leaves, tree = jax.tree.flatten(tuple(args), is_leaf=lambda leaf: isinstance(leaf, str))
    shapes = [parse_shape_argument(leaf) for leaf in leaves]
    shapes = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if _has_shape(leaf) else leaf
        for leaf in shapes
    ]
    indices = [i for i, leaf in enumerate(shapes) if isinstance(leaf, jax.ShapeDtypeStruct)]
    return shapes, tree, indices


def _has_shape(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def scale_arguments(
    args: Sequence[Any],
    dims: Mapping[int, ShardedDims],
    full: Mesh,
    small: Mesh,
) -> tuple[Any, ...] | None:
    """Return the arguments whose shards on `small` have the sizes that they have on `full`.

    Arrays keep their first elements. None if a dimension is not divisible over all its mesh axes
    together, so that no smaller size has the same shards.
    """
    leaves, tree = jax.tree.flatten(tuple(args), is_leaf=lambda leaf: isinstance(leaf, str))
    shapes, _, indices = argument_shapes(args)
    scaled = list(leaves)
    for number, index in enumerate(indices):
        shape = list(shapes[index].shape)
        for dim, axes in dims.get(number, {}).items():
            before = math.prod(full.shape.get(name, 1) for name in axes)
            after = math.prod(small.shape.get(name, 1) for name in axes)
            if shape[dim] % before:
                return None
            shape[dim] = shape[dim] // before * after
        if tuple(shape) == tuple(shapes[index].shape):
            continue
        if is_array(leaves[index]):
            scaled[index] = leaves[index][tuple(slice(size) for size in shape)]
        else:
            scaled[index] = jax.ShapeDtypeStruct(tuple(shape), shapes[index].dtype)
    return tuple(jax.tree.unflatten(tree, scaled))
