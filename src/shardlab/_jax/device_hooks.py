"""The places where JAX touches devices, which simulated mode takes over and gives back.

JAX is content with devices that are plain Python objects until a buffer is touched. Four functions
do that (run a jit, put on a device, build from a callback, find the backend), and a few properties
of an array say where it lives. Nothing else is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import array as array_lib
from jax._src import core, dispatch, dtypes, pjit, sharding_impls, stages, xla_bridge
from jax._src import mesh as mesh_lib
from jax._src.interpreters import pxla
from jax._src.lib import _jax as jaxlib
from jax._src.named_sharding import NamedSharding, UnspecifiedValue
from jax._src.sharding_impls import SingleDeviceSharding, physical_sharding

ArrayImpl = jaxlib.ArrayImpl
Device = jaxlib.Device
Shard = array_lib.Shard

# Part of the key of every compiled call, so that no fast path crosses into or out of the mode.
# Of every trace too: a function may ask for the number of devices while it is traced.
_mode = jaxlib.config.Config(
    "shardlab_simulated", None, include_in_jit_key=True, include_in_trace_context=True
)

_here = threading.local()


def is_unspecified(sharding: Any) -> bool:
    return isinstance(sharding, UnspecifiedValue)


@contextlib.contextmanager
def real() -> Iterator[None]:
    """Within this block this thread sees JAX as it is: one device, plain arrays."""
    depth = getattr(_here, "depth", 0)
    _here.depth = depth + 1
    mode = _mode.swap_local(None)
    axis_env = core.trace_ctx.axis_env
    core.trace_ctx.set_axis_env(core.top_axis_env)
    try:
        with (
            mesh_lib.use_abstract_mesh(mesh_lib.empty_abstract_mesh),
            sharding_impls._internal_use_concrete_mesh(mesh_lib.empty_concrete_mesh),
            jax.default_device(None),
            jax.disable_jit(False),
            jax.debug_nans(False),  # looked at afterwards, for the person's function
            jax.debug_infs(False),
        ):
            yield
    finally:
        core.trace_ctx.set_axis_env(axis_env)
        _mode.set_local(mode)
        _here.depth = depth


def is_real() -> bool:
    """Say whether this thread is inside a `real` block."""
    return getattr(_here, "depth", 0) > 0


def real_backend() -> Any:
    return _original_get_backend("cpu")


_original_get_backend = xla_bridge.get_backend


# ---------------------------------------------------------------------------------------- seams

Replace = Callable[[Any], Any]


class Seams:
    """Attributes replaced for a while; restored in reverse order, whatever happened between."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    @property
    def is_on(self) -> bool:
        return bool(self._undo)

    def replace(self, owner: Any, name: str, make: Replace) -> None:
        """Put `make(original)` in the place of `owner.name`."""
        original = owner.__dict__[name]
        self._put(owner, name, original, make(original))

    def replace_everywhere(self, owner: Any, name: str, make: Replace) -> None:
        """Replace a function also where modules, the program's own too, imported it by name."""
        original = owner.__dict__[name]
        new = make(original)
        for module in [m for m in sys.modules.values() if isinstance(m, types.ModuleType)]:
            if module.__name__ == __name__:
                continue  # what `real_backend` calls
            for alias in [k for k, v in vars(module).items() if v is original]:
                self._put(module, alias, original, new)

    def _put(self, owner: Any, name: str, original: Any, new: Any) -> None:
        self._undo.append((owner, name, original))
        setattr(owner, name, new)

    def enter(self, key: object) -> None:
        """Let compiled calls be kept apart by `key`."""
        _mode.set_global(key)

    def restore(self) -> None:
        _mode.set_global(None)
        self.put_back()

    def put_back(self) -> None:
        """Put every original back in its place."""
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)


SEAMS = Seams()


def is_simulated() -> bool:
    """Say whether this thread sees virtual devices."""
    return SEAMS.is_on and not is_real()


def in_mode(replacement: Callable[..., Any]) -> Replace:
    """Replace a function by `replacement`, while the mode is on and outside of `real` blocks."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            # A module imported inside the mode may keep this wrapper when the mode is over.
            if not is_simulated():
                return original(*args, **kwargs)
            return replacement(*args, **kwargs)

        if hasattr(original, "cache_clear"):
            # JAX clears it by this name; a function has no such attribute for mypy.
            call.cache_clear = original.cache_clear  # type: ignore[attr-defined]
        return call

    return make


def property_in_mode(read: Callable[[Any, Callable[[], Any]], Any]) -> Replace:
    """Replace a property by `read(self, original)`, except inside `real` blocks."""

    def make(original: Any) -> Any:
        def get(self: Any) -> Any:
            if not is_simulated():
                return original.__get__(self)
            return read(self, lambda: original.__get__(self))

        return property(get)

    return make


def really(original: Any) -> Any:
    """Run a method or property of an array in a `real` block."""
    if isinstance(original, property) or not callable(original):

        def get(self: Any) -> Any:
            with real():
                return original.__get__(self)

        return property(get)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with real():
            return original(*args, **kwargs)

    return call


# ------------------------------------------------------------------------- what JAX itself checks


def check_pieces(shape: Any, sharding: Any, arrays: list[Any], dtype: Any) -> Any:
    """Let JAX refuse pieces that do not make up an array, and return the array's type."""
    name = "make_array_from_single_device_arrays"
    dtype = array_lib._get_and_check_dtype(arrays, dtype, name)
    aval = core.update_aval_with_sharding(core.ShapedArray(shape, dtype), sharding)
    check = inspect.getattr_static(ArrayImpl, "_check_and_rearrange")
    if isinstance(check, staticmethod):  # from JAX 0.12
        check.__func__(arrays, sharding, aval)
    else:
        check(None, arrays, sharding, aval)
    return aval


def device_of(array: Any) -> Any:
    """Return the one device of an array that has just one."""
    return array_lib._get_device(array)


def check_alive(array: Any) -> None:
    """Refuse a deleted array as JAX does."""
    getattr(array, "_base_array", array)._check_if_deleted()


def lowered_cost(computation: Any) -> Any:
    """Return XLA's estimate for a lowered program, which is the same on any devices."""
    return jaxlib.hlo_module_cost_analysis(real_backend(), computation.hlo().as_hlo_module())


def check_special(name: str, outs: list[Any]) -> None:
    """Refuse NaNs and infinities where `jax_debug_nans` or `jax_debug_infs` ask for it."""
    if dispatch.needs_check_special():
        numbers = [out for out in outs if not dtypes.issubdtype(out.dtype, dtypes.extended)]
        dispatch.check_special(name, numbers)


__all__ = [
    "SEAMS",
    "ArrayImpl",
    "Device",
    "NamedSharding",
    "Seams",
    "Shard",
    "SingleDeviceSharding",
    "array_lib",
    "check_alive",
    "check_pieces",
    "check_special",
    "device_of",
    "dispatch",
    "in_mode",
    "is_real",
    "is_simulated",
    "is_unspecified",
    "lowered_cost",
    "physical_sharding",
    "pjit",
    "property_in_mode",
    "pxla",
    "real",
    "real_backend",
    "really",
    "stages",
    "xla_bridge",
]
