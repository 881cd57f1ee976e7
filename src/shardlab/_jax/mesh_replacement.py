"""Replaces a program's own meshes, for a while, by meshes of other sizes.

JAX checks the mesh of a shard_map in one function, `_shmap_checks`, and stores the result in the
closure of the wrapped function. So the replacement is stored there too, and removed at the end: the
user's function must not remember a mesh that only a check has used.

The shardings of a jit and of a constraint all pass through `_create_sharding_for_array`, those of
`device_put` through `pspec_to_sharding`, and those of any `out_sharding` and of `reshard` through
`canonicalize_sharding`. JAX caches what it derives from them by the mesh in context, so no cache
needs clearing.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import (
    api,  # pspec_to_sharding
    pjit,  # _create_sharding_for_array
    sharding_impls,  # canonicalize_sharding
)
from jax._src import mesh as mesh_lib  # the mesh in context
from jax._src import shard_map as shard_map_lib  # _shmap_checks
from jax.sharding import AbstractMesh, NamedSharding

from shardlab._jax.device_hooks import AttributePatches

# A mesh of the program -> the mesh to use instead. With `is_typed=True` for a mesh that becomes
# part of an array's type (Explicit axes).
ReplaceMesh = Callable[..., Any]


@contextlib.contextmanager
def replace_meshes(replacement: ReplaceMesh) -> Iterator[None]:
    """Within this block every mesh that the program uses goes through `replacement` first."""
    patches = AttributePatches()
    closures = _SavedClosures()
    _active_replacements.append(replacement)
    in_result = functools.partial(_replace_in_result, replacement=replacement)
    try:
        patches.replace(
            shard_map_lib,
            "_shmap_checks",
            lambda original: _replace_in_checks(original, replacement, closures),
        )
        patches.replace_everywhere(
            jax, "make_mesh", lambda original: _replace_in_make_mesh(original, replacement)
        )
        patches.replace_everywhere(
            jax, "set_mesh", lambda original: _replace_in_set_mesh(original, replacement)
        )
        patches.replace(pjit, "_create_sharding_for_array", in_result)
        patches.replace(api, "pspec_to_sharding", in_result)
        patches.replace_everywhere(
            sharding_impls,
            "canonicalize_sharding",
            lambda original: _replace_in_argument(original, replacement),
        )
        yield
    finally:
        _active_replacements.remove(replacement)
        patches.restore_originals()
        closures.restore_contents()


def is_replacing_meshes() -> bool:
    """Return whether a program runs on other meshes than its own."""
    return bool(_active_replacements)


_active_replacements: list[ReplaceMesh] = []


def replace_mesh(sharding: Any, replacement: ReplaceMesh) -> Any:
    """Return a sharding over the replacement of its mesh; its memory kind stays."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return sharding
    program_mesh, mesh = sharding.mesh, replacement(sharding.mesh)
    # An AbstractMesh of the same sizes stays: inside shard_map its axis types also say which axes
    # are manual.
    is_current = mesh is program_mesh or (
        isinstance(program_mesh, AbstractMesh) and mesh.shape == program_mesh.shape
    )
    return sharding if is_current else sharding.update(mesh=mesh)


def _replace_in_result(original: Any, replacement: ReplaceMesh) -> Any:
    return lambda *args, **kwargs: replace_mesh(original(*args, **kwargs), replacement)


def _replace_in_argument(original: Any, replacement: ReplaceMesh) -> Any:
    def canonicalize_sharding(sharding: Any, *args: Any, **kwargs: Any) -> Any:
        in_type = functools.partial(replacement, is_typed=True)
        return original(replace_mesh(sharding, in_type), *args, **kwargs)

    return canonicalize_sharding


def _replace_in_checks(original: Any, replacement: ReplaceMesh, closures: _SavedClosures) -> Any:
    def check_shard_map(mesh: Any, axis_names: Any, *args: Any, **kwargs: Any) -> Any:
        # The caller assigns our result to its nonlocals `mesh` and `axis_names`.
        closures.save_contents(sys._getframe(1), ("mesh", "axis_names"))
        program_mesh = mesh_lib.get_abstract_mesh() if mesh is None else mesh
        # Nested in another shard_map: the outer one has replaced the mesh already.
        if program_mesh.empty or program_mesh.manual_axes:
            return original(mesh, axis_names, *args, **kwargs)
        # Without the context mesh: JAX compares the two including axis types.
        with mesh_lib.use_abstract_mesh(mesh_lib.empty_abstract_mesh):
            return original(replacement(program_mesh), axis_names, *args, **kwargs)

    return check_shard_map


def _replace_in_make_mesh(original: Any, replacement: ReplaceMesh) -> Any:
    def make_mesh(
        sizes: Any, axis_names: Any, axis_types: Any = None, *, devices: Any = None, **options: Any
    ) -> Any:
        requested = mesh_lib.AbstractMesh(tuple(sizes), tuple(axis_names))
        # `devices` is dropped: there may be too few or too many of them for the new sizes.
        mesh = original(replacement(requested).axis_sizes, axis_names, axis_types, **options)
        # Once more, with the axis types: which ones are the default depends on the version of JAX.
        return replacement(mesh)

    return make_mesh


def _replace_in_set_mesh(original: Any, replacement: ReplaceMesh) -> Any:
    return lambda mesh: original(None if mesh is None else replacement(mesh))


class _SavedClosures:
    """The contents of closure cells before JAX wrote a replaced mesh into them."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}

    def save_contents(self, frame: types.FrameType, names: tuple[str, ...]) -> None:
        fun = _function_in_frame(frame)
        if fun is None:
            return
        for name, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True):
            if name in names:
                self._saved.setdefault(id(cell), (cell, cell.cell_contents))

    def restore_contents(self) -> None:
        for cell, contents in self._saved.values():
            cell.cell_contents = contents


def _function_in_frame(frame: types.FrameType) -> types.FunctionType | None:
    """Return the function that runs in `frame`.

    A frame knows only its code. JAX's api_boundary wrapper, the caller, holds the function object
    in a local variable, and with it the closure cells.
    """
    caller = frame.f_back
    for value in caller.f_locals.values() if caller else ():
        if isinstance(value, types.FunctionType) and value.__code__ is frame.f_code:
            return value
    return None
