"""JAX's settings and the mesh in context, remembered and put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import config
from jax._src import mesh as mesh_lib

# What `jax.set_mesh(mesh)` sets when it is called as a statement, as tutorials do.
_home = mesh_lib if hasattr(mesh_lib, "device_context") else config  # moved in JAX 0.12
_CONTEXT = (_home.abstract_mesh_context_manager, _home.device_context)


class SavedConfig:
    """Every setting as it was when this was made."""

    def __init__(self) -> None:
        holders = [*jax.config._value_holders.values(), *_CONTEXT]
        self._were = [(holder, _read(holder)) for holder in holders]

    def restore(self) -> None:
        """Put back each setting that has changed since, of this thread and of all threads."""
        for holder, were in self._were:
            if _read(holder) != were:
                _write(holder, were)


def _read(holder: Any) -> tuple[Any, Any]:
    if hasattr(holder, "get_global"):
        return holder.get_global(), holder.get_local()
    return holder.value, None


def _write(holder: Any, were: tuple[Any, Any]) -> None:
    """Write past the validators: `jax_num_cpu_devices` refuses once there is a backend."""
    everywhere, here = were
    if not hasattr(holder, "set_global"):
        holder.value = everywhere
        return
    holder.set_global(everywhere)
    holder.set_local(here)
    hook = getattr(holder, "_update_global_hook", None)
    if hook is not None:
        hook(everywhere)


@contextlib.contextmanager
def use_one_cpu_device() -> Iterator[None]:
    """Within this block `jax_num_cpu_devices` asks for nothing; afterwards it is as it was."""
    holder = jax.config._value_holders["jax_num_cpu_devices"]
    were = _read(holder)
    _write(holder, (-1, were[1]))
    try:
        yield
    finally:
        _write(holder, were)
