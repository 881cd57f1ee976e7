"""`with retargeted("data=4"):` programs run on this mesh, whatever sizes their own meshes have."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardlab._jax.mesh_replacement import ReplaceMesh, replace_mesh, replace_meshes
from shardlab.errors import MeshAxesMismatch, Unsupported
from shardlab.sharding.mesh import parse_mesh
from shardlab.simulator.simulated_mode import simulated
from shardlab.simulator.virtual_devices.devices import is_virtual, virtual_mesh

# So that a program can still build the mesh of its own that is then replaced.
_SPARE = 8


@contextlib.contextmanager
def retarget_programs(mesh: Any) -> Iterator[Mesh]:
    """Run what is inside in simulated mode, on a mesh of virtual devices.

    It is the mesh in context (`jax.set_mesh`), what `jax.make_mesh` gives, and what every shard_map
    and every `NamedSharding` of a jit, a constraint or a `device_put` gets in the place of its own:
    the same axis names with these sizes. A mesh with other axis names is refused with `MeshAxesMismatch`.
    Arrays that were placed before keep their mesh: see `move_arguments`.
    """
    target = virtual_mesh(mesh_with_axis_types(mesh, [jax.sharding.get_abstract_mesh()]))
    with simulated(max(target.size, _SPARE)), jax.set_mesh(target), replace_meshes(_mover(target)):
        yield target


def mesh_with_axis_types(mesh: Any, meshes: Iterable[Any]) -> Any:
    """Return `mesh`, with the axis types of the first of a program's own meshes that has its axes.

    Text gives sizes alone, and a program for Explicit axes is another one on Auto axes.
    """
    if isinstance(mesh, (Mesh, AbstractMesh)):
        return mesh
    parsed = parse_mesh(mesh)
    for own in meshes:
        if set(own.axis_names) == set(parsed.axis_names):
            kinds = dict(zip(own.axis_names, own.axis_types, strict=True))
            types = tuple(kinds[name] for name in parsed.axis_names)
            return AbstractMesh(tuple(parsed.axis_sizes), tuple(parsed.axis_names), types)
    return mesh


def move_arguments(args: Sequence[Any], target: Mesh) -> list[Any]:
    """Return the arguments, with shapes in the place of those that lie on another mesh.

    Each shape says where on `target` the array would be.
    """
    return [jax.tree.map(functools.partial(_moved, _mover(target)), arg) for arg in args]


def check_mesh_axes_match(meshes: Iterable[Any], target: Mesh) -> None:
    """Refuse a traced program that still has a mesh of other sizes: its figures would be wrong."""
    for own in meshes:
        if not own.empty and dict(own.shape) != dict(target.shape):
            raise _kept("a sharding that is not given to JAX as such holds it", own, target)


def _moved(move: ReplaceMesh, leaf: Any) -> Any:
    own = leaf.sharding if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) else None
    place = replace_mesh(own, move)
    if place is own:
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place, weak_type=leaf.weak_type)


def _mover(target: Mesh) -> ReplaceMesh:
    sizes = dict(target.shape)

    def move(own: Any, *, is_typed: bool = False) -> Any:
        if set(own.axis_names) != set(sizes):
            raise _other_axes(own, target)
        is_same = dict(own.shape) == sizes
        if is_same and isinstance(own, Mesh) and is_virtual(own):
            return own
        in_types = is_typed and _is_explicit(own)
        if in_types and not is_same and not _is_explicit(jax.sharding.get_abstract_mesh()):
            raise _kept("its axes are Explicit, so that the types of arrays hold it", own, target)
        return virtual_mesh(_resized(own, sizes))

    return move


def _resized(own: Any, sizes: dict[str, int]) -> AbstractMesh:
    """Return `own` with other sizes; the order and the types of its axes stay its own."""
    return AbstractMesh(
        tuple(sizes[name] for name in own.axis_names), own.axis_names, own.axis_types
    )


def _other_axes(own: Any, target: Mesh) -> MeshAxesMismatch:
    return MeshAxesMismatch(
        f"The program's mesh has the axes {', '.join(map(repr, own.axis_names))}; the mesh given "
        f"has {', '.join(map(repr, target.axis_names))}.",
        where=f"mesh {_text(target)} in the place of the program's own {_text(own)}",
        fix="give a mesh with the same axis names and the sizes that you want.",
    )


def _is_explicit(mesh: Any) -> bool:
    return AxisType.Explicit in mesh.axis_types


def _kept(why: str, own: Any, target: Mesh) -> Unsupported:
    return Unsupported(
        f"The program names its own mesh, {_text(own)}, in a place where it cannot be replaced: "
        f"{why}.",
        where=f"mesh {_text(target)} in the place of the program's own {_text(own)}",
        fix="let the function take the mesh as its parameter `mesh`, or let it name PartitionSpecs "
        "alone and call jax.set_mesh outside of it.",
    )


def _text(mesh: Any) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh.shape.items())
