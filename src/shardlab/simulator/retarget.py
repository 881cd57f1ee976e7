"""Runs programs on a mesh of other sizes than their own meshes have."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardlab import _jax
from shardlab._jax.mesh_replacement import ReplaceMesh, replace_mesh, replace_meshes
from shardlab.errors import MeshAxesMismatch, Unsupported
from shardlab.sharding.mesh import mesh_text, parse_mesh
from shardlab.simulator.simulated_mode import simulated
from shardlab.simulator.virtual_devices.devices import is_virtual, virtual_mesh

# Enough devices for the program to build its own mesh, which is then replaced.
_MIN_DEVICES = 8


@contextlib.contextmanager
def retarget_programs(mesh: Any, *, n_devices: int | None = None) -> Iterator[Mesh]:
    """Run programs within this block in simulated mode, on the virtual mesh `mesh`.

    It is the mesh in context (`jax.set_mesh`), the result of `jax.make_mesh`, and replaces the mesh
    of every shard_map and of every `NamedSharding` of a jit, a constraint or a `device_put`: the
    same axis names with these sizes. A mesh with other axis names raises `MeshAxesMismatch`. Arrays
    that were placed before keep their mesh: see `move_arguments`. There are `n_devices` devices, by
    default enough for a program that builds its own mesh.
    """
    target = virtual_mesh(mesh_with_axis_types(mesh, [jax.sharding.get_abstract_mesh()]))
    with (
        simulated(n_devices or max(target.size, _MIN_DEVICES)),
        jax.set_mesh(target),
        replace_meshes(_mesh_replacer(target)),
    ):
        yield target


_observed_meshes: list[list[Any]] = []


@contextlib.contextmanager
def observe_program_meshes() -> Iterator[list[Any]]:
    """Collect the meshes that programs ask for within this block and that are replaced."""
    program_meshes: list[Any] = []
    _observed_meshes.append(program_meshes)
    try:
        yield program_meshes
    finally:
        # By identity: two lists of meshes may be equal.
        _observed_meshes[:] = [item for item in _observed_meshes if item is not program_meshes]


def has_explicit_axes(mesh: Any) -> bool:
    """Return whether a mesh has an axis of type Explicit, the default of `jax.make_mesh`."""
    return AxisType.Explicit in mesh.axis_types


def mesh_with_axis_types(mesh: Any, program_meshes: Iterable[Any]) -> Any:
    """Return `mesh` with the axis types of the first program mesh that has the same axes.

    Text gives only sizes, and a program for Explicit axes is a different program on Auto axes.
    """
    if isinstance(mesh, (Mesh, AbstractMesh)):
        return mesh
    parsed = parse_mesh(mesh)
    for program_mesh in program_meshes:
        if set(program_mesh.axis_names) == set(parsed.axis_names):
            type_of = dict(zip(program_mesh.axis_names, program_mesh.axis_types, strict=True))
            types = tuple(type_of[name] for name in parsed.axis_names)
            return AbstractMesh(tuple(parsed.axis_sizes), tuple(parsed.axis_names), types)
    return mesh


def move_arguments(args: Sequence[Any], target: Mesh) -> list[Any]:
    """Return the arguments, with shapes instead of the arrays that are on another mesh.

    Each shape has the sharding that the array would have on `target`.
    """
    move_leaf = functools.partial(_move_leaf, _mesh_replacer(target))
    return [jax.tree.map(move_leaf, arg) for arg in args]


def check_mesh_axes_match(meshes: Iterable[Any], target: Mesh) -> None:
    """Raise if a traced program still has a mesh of other sizes: its figures would be wrong."""
    for program_mesh in meshes:
        if not program_mesh.empty and dict(program_mesh.shape) != dict(target.shape):
            reason = "it is in a sharding that the program does not pass to JAX as such"
            raise _cannot_replace(reason, program_mesh, target)


def _move_leaf(replacement: ReplaceMesh, leaf: Any) -> Any:
    has_sharding = isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))
    original = leaf.sharding if has_sharding else None
    sharding = replace_mesh(original, replacement)
    # A shape, not a copy: tracing needs no values, and a real array may be large.
    if sharding is original:
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.weak_type)


def _mesh_replacer(target: Mesh) -> ReplaceMesh:
    sizes = dict(target.shape)

    def replace_program_mesh(program_mesh: Any, *, is_typed: bool = False) -> Any:
        for program_meshes in _observed_meshes:
            program_meshes.append(program_mesh)
        if set(program_mesh.axis_names) != set(sizes):
            raise _axes_mismatch(program_mesh, target)
        if has_explicit_axes(program_mesh):
            _leave_auto_context(target)
        is_same = dict(program_mesh.shape) == sizes
        # A real mesh is replaced also if its sizes match: its devices cannot be simulated.
        if is_same and isinstance(program_mesh, Mesh) and is_virtual(program_mesh):
            return program_mesh
        # Explicit: earlier array types already hold the old mesh, unless the context is Explicit
        # too, and then they come from the context mesh, which has been replaced.
        in_types = is_typed and has_explicit_axes(program_mesh)
        if in_types and not is_same and not has_explicit_axes(jax.sharding.get_abstract_mesh()):
            reason = "its axes are Explicit, so it is part of the types of arrays"
            raise _cannot_replace(reason, program_mesh, target)
        return virtual_mesh(_resize_mesh(program_mesh, sizes))

    return replace_program_mesh


def _leave_auto_context(target: Mesh) -> None:
    """Unset the mesh in context if it is `target` with Auto axes.

    The program has a mesh of its own with Explicit axes, and JAX rejects an operation on its arrays
    within another mesh, one with Auto axes included. Without a mesh in context it accepts them.
    """
    if has_explicit_axes(target) or jax.sharding.get_abstract_mesh() != target.abstract_mesh:
        return
    if _jax.is_outside_of_trace():  # within one, the mesh in context cannot change
        jax.set_mesh(None)


def _resize_mesh(program_mesh: Any, sizes: dict[str, int]) -> AbstractMesh:
    """Return the mesh with other sizes; the order and the types of its axes stay."""
    return AbstractMesh(
        tuple(sizes[name] for name in program_mesh.axis_names),
        program_mesh.axis_names,
        program_mesh.axis_types,
    )


def _axes_mismatch(program_mesh: Any, target: Mesh) -> MeshAxesMismatch:
    return MeshAxesMismatch(
        f"The program's mesh has the axes {', '.join(map(repr, program_mesh.axis_names))}; the "
        f"mesh given has {', '.join(map(repr, target.axis_names))}.",
        where=_describe_replacement(program_mesh, target),
        fix="give a mesh with the same axis names and the sizes that you want.",
    )


def _cannot_replace(reason: str, program_mesh: Any, target: Mesh) -> Unsupported:
    return Unsupported(
        f"The program uses its own mesh, {mesh_text(program_mesh.shape.items())}, in a place where "
        f"it cannot be replaced: {reason}.",
        where=_describe_replacement(program_mesh, target),
        fix="let the function take the mesh as its parameter `mesh`, or use only PartitionSpecs in "
        "it and call jax.set_mesh outside of it.",
    )


def _describe_replacement(program_mesh: Any, target: Mesh) -> str:
    target_text = mesh_text(target.shape.items())
    return (
        f"mesh {target_text} in place of the program's own {mesh_text(program_mesh.shape.items())}"
    )
