"""A program's own meshes replaced, for a while, by meshes of other sizes.

JAX asks about a shard_map's mesh in one function, `_shmap_checks`, and keeps the answer in the
closure of the wrapped function. So the answer given here is kept too, and taken back at the end:
a person's function must not remember a mesh that only a check has used.

The shardings of a jit and of a constraint all come through `_create_sharding_for_array`, those of
`device_put` through `pspec_to_sharding`, and those of any `out_sharding` and of `reshard` through
`canonicalize_sharding`; what JAX remembers of them it remembers by the mesh in context.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import api, pjit, sharding_impls
from jax._src import mesh as mesh_lib
from jax._src import shard_map as shard_map_lib
from jax.sharding import AbstractMesh, NamedSharding

from shardlab._jax.device_hooks import Seams

# A mesh of the program -> the mesh to use in its place. With `is_typed=True` for one that becomes
# part of an array's type.
ReplaceMesh = Callable[..., Any]


@contextlib.contextmanager
def replace_meshes(move: ReplaceMesh) -> Iterator[None]:
    """Within this block every mesh that the program uses goes through `move` first."""
    seams = Seams()
    kept = _Kept()
    try:
        seams.replace(
            shard_map_lib, "_shmap_checks", lambda original: _checks(original, move, kept)
        )
        seams.replace_everywhere(jax, "make_mesh", lambda original: _make_mesh(original, move))
        seams.replace_everywhere(jax, "set_mesh", lambda original: _set_mesh(original, move))
        seams.replace(pjit, "_create_sharding_for_array", lambda original: _given(original, move))
        seams.replace(api, "pspec_to_sharding", lambda original: _given(original, move))
        seams.replace_everywhere(
            sharding_impls, "canonicalize_sharding", lambda original: _asked(original, move)
        )
        yield
    finally:
        seams.put_back()
        kept.put_back()


def replace_mesh(sharding: Any, move: ReplaceMesh) -> Any:
    """Return a sharding over the mesh that takes the place of its own; its memory kind stays."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return sharding
    own, mesh = sharding.mesh, move(sharding.mesh)
    # An AbstractMesh of the same sizes stays: it may also tell what is manual at this place.
    is_there = mesh is own or (isinstance(own, AbstractMesh) and mesh.shape == own.shape)
    return sharding if is_there else sharding.update(mesh=mesh)


def _given(original: Any, move: ReplaceMesh) -> Any:
    return lambda *args, **kwargs: replace_mesh(original(*args, **kwargs), move)


def _asked(original: Any, move: ReplaceMesh) -> Any:
    def canonicalize_sharding(sharding: Any, *args: Any, **kwargs: Any) -> Any:
        in_type = functools.partial(move, is_typed=True)
        return original(replace_mesh(sharding, in_type), *args, **kwargs)

    return canonicalize_sharding


def _checks(original: Any, move: ReplaceMesh, kept: _Kept) -> Any:
    def checks(mesh: Any, axis_names: Any, *args: Any, **kwargs: Any) -> Any:
        kept.remember(sys._getframe(1), ("mesh", "axis_names"))
        asked = mesh_lib.get_abstract_mesh() if mesh is None else mesh
        if asked.empty or asked.manual_axes:
            return original(mesh, axis_names, *args, **kwargs)
        # Outside of the context mesh, which JAX would compare with it to the axis type.
        with mesh_lib.use_abstract_mesh(mesh_lib.empty_abstract_mesh):
            return original(move(asked), axis_names, *args, **kwargs)

    return checks


def _make_mesh(original: Any, move: ReplaceMesh) -> Any:
    def make_mesh(
        sizes: Any, axis_names: Any, axis_types: Any = None, *, devices: Any = None, **others: Any
    ) -> Any:
        made = mesh_lib.AbstractMesh(tuple(sizes), tuple(axis_names))
        sizes = move(made).axis_sizes
        return original(sizes, axis_names, axis_types, **others)

    return make_mesh


def _set_mesh(original: Any, move: ReplaceMesh) -> Any:
    return lambda mesh: original(None if mesh is None else move(mesh))


class _Kept:
    """What closures held before JAX wrote a moved mesh into them."""

    def __init__(self) -> None:
        self._were: dict[int, tuple[Any, Any]] = {}

    def remember(self, frame: types.FrameType, names: tuple[str, ...]) -> None:
        fun = _function_of(frame)
        if fun is None:
            return
        for name, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True):
            if name in names:
                self._were.setdefault(id(cell), (cell, cell.cell_contents))

    def put_back(self) -> None:
        for cell, contents in self._were.values():
            cell.cell_contents = contents


def _function_of(frame: types.FrameType) -> types.FunctionType | None:
    """Return the function that runs in `frame`, from the wrapper of JAX that called it."""
    caller = frame.f_back
    for value in caller.f_locals.values() if caller else ():
        if isinstance(value, types.FunctionType) and value.__code__ is frame.f_code:
            return value
    return None
