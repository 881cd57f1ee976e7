"""`with retargeted("data=4"):` programs run on this mesh, whatever sizes their own meshes have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardlab.engine._jax.moving import moving
from shardlab.engine.simulated import simulated
from shardlab.engine.virtual import virtual_mesh
from shardlab.errors import OtherAxes

# So that a program can still build the mesh of its own that is then replaced.
_SPARE = 8


@contextlib.contextmanager
def retargeted(mesh: Any) -> Iterator[Mesh]:
    """Run what is inside in simulated mode, on a mesh of virtual devices.

    It is the mesh in context (`jax.set_mesh`), what `jax.make_mesh` gives, and what every shard_map
    gets in the place of its own: the same axis names with these sizes. A mesh with other axis names
    is refused with `OtherAxes`. A `NamedSharding` that holds a mesh of its own keeps it.
    """
    target = virtual_mesh(mesh)
    sizes = dict(target.shape)

    def move(own: Any) -> Any:
        if set(own.axis_names) != set(sizes):
            raise _other_axes(own, target)
        if dict(own.shape) == sizes and isinstance(own, Mesh):
            return own
        return virtual_mesh(_resized(own, sizes))

    with simulated(max(target.size, _SPARE)), jax.set_mesh(target), moving(move):
        yield target


def _resized(own: Any, sizes: dict[str, int]) -> AbstractMesh:
    """Return `own` with other sizes; the order and the types of its axes stay its own."""
    return AbstractMesh(
        tuple(sizes[name] for name in own.axis_names), own.axis_names, own.axis_types
    )


def _other_axes(own: Any, target: Mesh) -> OtherAxes:
    given = ",".join(f"{name}={size}" for name, size in target.shape.items())
    wanted = ",".join(f"{name}={size}" for name, size in own.shape.items())
    return OtherAxes(
        f"The program's mesh has the axes {', '.join(map(repr, own.axis_names))}; the mesh given "
        f"has {', '.join(map(repr, target.axis_names))}.",
        where=f"mesh {given} in the place of the program's own {wanted}",
        fix="give a mesh with the same axis names and the sizes that you want.",
    )
