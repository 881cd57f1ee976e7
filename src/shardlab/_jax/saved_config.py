"""Saves and restores JAX's settings and the mesh in context."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import config  # in JAX 0.10 the mesh in context is one of the settings
from jax._src import mesh as mesh_lib  # in JAX 0.12 it has moved here

# What `jax.set_mesh(mesh)` sets when it is called as a statement, as tutorials do.
_context_home = mesh_lib if hasattr(mesh_lib, "device_context") else config
_CONTEXT = (_context_home.abstract_mesh_context_manager, _context_home.device_context)


class SavedConfig:
    """The value of every setting when this object was created."""

    def __init__(self) -> None:
        # `jax.config.values` lists only global values; a setting may also be set for one thread.
        holders = [*jax.config._value_holders.values(), *_CONTEXT]
        self._saved = [(holder, _read_values(holder)) for holder in holders]

    def restore(self) -> None:
        """Restore each setting that has changed since, for this thread and globally."""
        for holder, saved in self._saved:
            if _read_values(holder) != saved:
                _write_values(holder, saved)


def _read_values(holder: Any) -> tuple[Any, Any]:
    """Return the global and the thread-local value of a setting."""
    if hasattr(holder, "get_global"):
        return holder.get_global(), holder.get_local()
    return holder.value, None


def _write_values(holder: Any, values: tuple[Any, Any]) -> None:
    """Write without validation: `jax_num_cpu_devices` cannot be updated once a backend exists."""
    global_value, local_value = values
    if not hasattr(holder, "set_global"):
        holder.value = global_value
        return
    holder.set_global(global_value)
    holder.set_local(local_value)
    # Settings that C++ or another module mirrors are passed on by this hook.
    hook = getattr(holder, "_update_global_hook", None)
    if hook is not None:
        hook(global_value)


@contextlib.contextmanager
def use_one_cpu_device() -> Iterator[None]:
    """Within this block `jax_num_cpu_devices` is unset."""
    holder = jax.config._value_holders["jax_num_cpu_devices"]
    saved = _read_values(holder)
    _write_values(holder, (-1, saved[1]))
    try:
        yield
    finally:
        _write_values(holder, saved)
