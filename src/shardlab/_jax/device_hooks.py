"""Where JAX touches devices: the functions that simulated mode replaces, and restores afterwards.

JAX accepts devices that are plain Python objects until it touches a buffer. Four functions do that
(run a jit, put an array on a device, assemble an array from shards, find the backend), and a few
properties of an array say where it is. Nothing else is replaced.
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
from jax._src import array as array_lib  # assembles an array from single-device arrays
from jax._src import (
    core,  # the axis environment; avals with shardings
    dispatch,  # device_put of several values; debug_nans checks
    dtypes,  # extended dtypes (random keys)
    pjit,  # _resolve_and_lower: every jit that is called or lowered
    sharding_impls,  # the concrete mesh in context
    xla_bridge,  # get_backend: every query about devices
)
from jax._src import mesh as mesh_lib  # the mesh in context
from jax._src.interpreters import pxla  # MeshComputation, batched_device_put
from jax._src.lib import _jax as jaxlib  # the C++ classes of arrays, devices and settings
from jax._src.sharding_impls import physical_sharding  # of the uint32 array behind random keys
from jax.sharding import SingleDeviceSharding

ArrayImpl = jaxlib.ArrayImpl
Device = jaxlib.Device
Shard = array_lib.Shard

# A setting of our own in JAX's C++ config. It is part of the key of every compiled call, so that
# the C++ fast path of a jit never runs a program of the other mode, and of every trace, because a
# function may read the number of devices while it is traced.
_mode_key = jaxlib.config.Config(
    "shardlab_simulated", None, include_in_jit_key=True, include_in_trace_context=True
)

_thread_state = threading.local()


def set_mode_key(key: object) -> None:
    """Separate compiled calls and traces by `key`; None is JAX without simulated mode."""
    _mode_key.set_global(key)


@contextlib.contextmanager
def use_real_jax() -> Iterator[None]:
    """Within this block this thread sees the real JAX: one device, plain arrays, no mesh."""
    depth = getattr(_thread_state, "depth", 0)
    _thread_state.depth = depth + 1
    mode = _mode_key.swap_local(None)
    axis_env = core.trace_ctx.axis_env
    core.trace_ctx.set_axis_env(core.top_axis_env)
    try:
        with (
            mesh_lib.use_abstract_mesh(mesh_lib.empty_abstract_mesh),
            sharding_impls._internal_use_concrete_mesh(mesh_lib.empty_concrete_mesh),
            jax.default_device(None),
            jax.disable_jit(False),
            # Checked afterwards under the name of the user's function (`check_nans`).
            jax.debug_nans(False),
            jax.debug_infs(False),
        ):
            yield
    finally:
        core.trace_ctx.set_axis_env(axis_env)
        _mode_key.set_local(mode)
        _thread_state.depth = depth


@contextlib.contextmanager
def evaluate_now() -> Iterator[None]:
    """Within this block operations on arrays run at once with the real JAX, also amid a trace.

    JAX reads shards while it evaluates a body operation by operation (`jax_debug_nans`), and has no
    current trace then.
    """
    with use_real_jax(), core.eval_context():
        yield


def is_using_real_jax() -> bool:
    """Return whether this thread is inside a `use_real_jax` block."""
    return getattr(_thread_state, "depth", 0) > 0


def real_backend() -> Any:
    return _original_get_backend("cpu")


_original_get_backend = xla_bridge.get_backend


# -------------------------------------------------------------------------------------- patching

# The original attribute -> what to set in its place.
MakeReplacement = Callable[[Any], Any]


class AttributePatches:
    """Attributes replaced for a while, and restored in reverse order."""

    def __init__(self) -> None:
        self.originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make_replacement: MakeReplacement) -> None:
        """Set `owner.name` to `make_replacement(original)`."""
        original = owner.__dict__[name]
        self._set_attribute(owner, name, original, make_replacement(original))

    def replace_everywhere(self, owner: Any, name: str, make_replacement: MakeReplacement) -> None:
        """Replace a function also in modules, the program's too, that imported it by name."""
        original = owner.__dict__[name]
        new = make_replacement(original)
        for module in [m for m in sys.modules.values() if isinstance(m, types.ModuleType)]:
            if module.__name__ == __name__:
                continue  # `real_backend` above must call the original
            for alias in [k for k, v in vars(module).items() if v is original]:
                self._set_attribute(module, alias, original, new)

    def _set_attribute(self, owner: Any, name: str, original: Any, new: Any) -> None:
        self.originals.append((owner, name, original))
        setattr(owner, name, new)

    def restore_originals(self) -> None:
        while self.originals:
            owner, name, original = self.originals.pop()
            setattr(owner, name, original)


DEVICE_PATCHES = AttributePatches()


def is_simulated() -> bool:
    """Return whether this thread sees virtual devices."""
    # Read at every attribute of every array, so without further calls.
    return bool(DEVICE_PATCHES.originals) and not getattr(_thread_state, "depth", 0)


def when_simulated(replacement: Callable[..., Any]) -> MakeReplacement:
    """Replace a function by `replacement` in simulated mode, outside `use_real_jax` blocks."""

    def make_replacement(original: Any) -> Any:
        @functools.wraps(original)
        def call_replacement(*args: Any, **kwargs: Any) -> Any:
            # A module imported in simulated mode may keep this wrapper after the mode has ended.
            if not is_simulated():
                return original(*args, **kwargs)
            return replacement(*args, **kwargs)

        if hasattr(original, "cache_clear"):
            # jax.clear_caches calls it; a function has no such attribute for mypy.
            call_replacement.cache_clear = original.cache_clear  # type: ignore[attr-defined]
        return call_replacement

    return make_replacement


def property_when_simulated(read: Callable[[Any, Callable[[Any], Any]], Any]) -> MakeReplacement:
    """Replace a property by `read(self, read_original)`, except inside `use_real_jax` blocks."""

    def make_replacement(original: Any) -> Any:
        read_original = original.__get__

        def read_property(self: Any) -> Any:
            if not is_simulated():
                return read_original(self)
            return read(self, read_original)

        # JAX sets the `aval` of an array that it unpickles.
        return property(read_property, getattr(original, "fset", None))

    return make_replacement


def run_with_real_jax(original: Any) -> Any:
    """Run a method or property of an array in a `use_real_jax` block."""
    if isinstance(original, property) or not callable(original):

        def read_property(self: Any) -> Any:
            with use_real_jax():
                return original.__get__(self)

        return property(read_property)

    @functools.wraps(original)
    def call_original(*args: Any, **kwargs: Any) -> Any:
        with use_real_jax():
            return original(*args, **kwargs)

    return call_original


# ---------------------------------------------------------------------------- JAX's own checks


def check_array_list(arrays: Any) -> None:
    """Raise as jax.make_array_from_single_device_arrays does for what is no list of arrays."""
    # JAX's own sentences: its constructor in C++ raises, and these explain why.
    if not isinstance(arrays, (list, tuple)):
        raise TypeError(
            "jax.make_array_from_single_device_arrays `arrays` argument must be a list or tuple, "
            f"but got {type(arrays)}."
        )
    if any(isinstance(array, core.Tracer) for array in arrays):
        raise ValueError(
            "jax.make_array_from_single_device_arrays requires a list of concrete arrays as "
            f"input, but got types {set(map(type, arrays))}"
        )


def check_shards(shape: Any, sharding: Any, arrays: list[Any], dtype: Any) -> Any:
    """Let JAX reject shards that do not make up the array, and return the array's type."""
    # What jax.make_array_from_single_device_arrays checks before it builds the array in C++.
    name = "make_array_from_single_device_arrays"
    dtype = array_lib._get_and_check_dtype(arrays, dtype, name)
    aval = core.update_aval_with_sharding(core.ShapedArray(shape, dtype), sharding)
    check = inspect.getattr_static(ArrayImpl, "_check_and_rearrange")
    if isinstance(check, staticmethod):  # from JAX 0.12
        check.__func__(arrays, sharding, aval)
    else:
        check(None, arrays, sharding, aval)
    return aval


def single_device(array: Any) -> Any:
    """Return the device of an array on one device."""
    return array_lib._get_device(array)


def alias_array(array: Any) -> Any:
    """Return a new array object over the same buffer; within a `use_real_jax` block."""
    target = getattr(array, "_base_array", array)
    alias = ArrayImpl(target.aval, target.sharding, [target], committed=True)
    if target is array:
        return alias
    return jax.random.wrap_key_data(alias, impl=jax.random.key_impl(array))


def has_full_value(sharding: Any, shape: Any) -> bool:
    """Return whether the shards of this host have every value of the array."""
    return bool(array_lib._process_has_full_value_in_mcjax(sharding, shape))


def aval_with_sharding(aval: Any, sharding: Any) -> Any:
    """Return the type that an array with this sharding has on devices."""
    return core.update_aval_with_sharding(aval, sharding)


def check_argument(arg: Any) -> None:
    """Raise for what cannot be passed to a compiled program; JAX then names the argument."""
    if type(arg) not in pxla.shard_arg_handlers:
        raise dtypes.InvalidInputException(f"Argument of type {type(arg)} is not a JAX type.")


def check_not_deleted(array: Any) -> None:
    """Raise for a deleted array as JAX does."""
    # Random keys wrap the array that can be deleted.
    getattr(array, "_base_array", array)._check_if_deleted()


def lowered_cost_analysis(computation: Any) -> Any:
    """Return XLA's estimate for a lowered program, which is the same on any devices."""
    return jaxlib.hlo_module_cost_analysis(real_backend(), computation.hlo().as_hlo_module())


def check_nans(name: str, outs: list[Any]) -> None:
    """Raise for NaNs and infinities if `jax_debug_nans` or `jax_debug_infs` is set."""
    if dispatch.needs_check_special():
        numbers = [out for out in outs if not dtypes.issubdtype(out.dtype, dtypes.extended)]
        dispatch.check_special(name, numbers)


__all__ = [
    "DEVICE_PATCHES",
    "ArrayImpl",
    "AttributePatches",
    "Device",
    "Shard",
    "SingleDeviceSharding",
    "alias_array",
    "array_lib",
    "aval_with_sharding",
    "check_argument",
    "check_array_list",
    "check_nans",
    "check_not_deleted",
    "check_shards",
    "dispatch",
    "evaluate_now",
    "has_full_value",
    "is_simulated",
    "is_using_real_jax",
    "lowered_cost_analysis",
    "physical_sharding",
    "pjit",
    "property_when_simulated",
    "pxla",
    "real_backend",
    "run_with_real_jax",
    "set_mode_key",
    "single_device",
    "use_real_jax",
    "when_simulated",
    "xla_bridge",
]
