"""Where JAX knows about other processes: what a virtual host replaces, for the whole process."""

from __future__ import annotations

import ctypes
import sysconfig
from typing import Any

import jax
from jax._src import (
    core,  # ShapedArray
    dispatch,  # decides what device_put does with devices of other processes
    distributed,  # global_state: the client of the key-value store, read by libraries
)
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from shardlab._jax import device_hooks


def join_distributed(client: Any, sync_manager: Any, index: int, n_processes: int) -> None:
    """Set what `jax.distributed.initialize` sets; libraries such as Orbax read it."""
    state = distributed.global_state
    state.process_id, state.num_processes = index, n_processes
    state.client, state.preemption_sync_manager = client, sync_manager
    state.coordinator_address = "localhost:0"


def leave_distributed() -> None:
    state = distributed.global_state
    state.client = state.preemption_sync_manager = None


def replace_distributed(initialize: Any, is_initialized: Any, shutdown: Any) -> None:
    """Replace the functions of `jax.distributed`, for good: a host process is one until it ends."""
    patches = device_hooks.AttributePatches()
    patches.replace_everywhere(distributed, "initialize", lambda _: initialize)
    patches.replace_everywhere(distributed, "is_initialized", lambda _: is_initialized)
    patches.replace_everywhere(distributed, "shutdown", lambda _: shutdown)


def is_backend_started() -> bool:
    return bool(device_hooks.xla_bridge.backends_are_initialized())


def plan_device_put(x: Any, aval: Any, target: Any, copy: Any) -> Any:
    """Let JAX decide what `device_put` does where other hosts are involved.

    Returns None to put this host's value on its own devices, or the array if JAX has made it
    itself. Raises what JAX raises.
    """
    plan = dispatch._device_put_sharding_impl(x, aval, target, copy)
    return None if isinstance(plan, dispatch._DeferredShardArg) else plan


def reject_transfers_between_hosts() -> None:
    """Replace JAX's question whether the backend moves arrays to other hosts; no CPU does."""

    def is_supported(n_dims: int, source: Any, target: Any) -> bool:
        if source._to_xla_hlo_sharding(n_dims) != target._to_xla_hlo_sharding(n_dims):
            return False
        hosts, new_hosts = (s._internal_device_list.process_indices for s in (source, target))
        if hosts == new_hosts:
            return False
        raise ValueError(
            "The backend (virtual hosts) does not support cross-host device transfers. On real "
            "devices the flag jax_cross_host_transfer_socket_address may enable them."
        )

    patches = device_hooks.AttributePatches()
    patches.replace(dispatch, "_is_supported_cross_host_transfer", lambda _: is_supported)


# The offset of `tp_as_buffer` in a type object of CPython 3.8 to 3.14 on 64-bit machines.
_BUFFER_SLOT = 160


def disable_array_buffers() -> None:
    """Let NumPy read arrays through `__array__` only, for the whole process.

    NumPy asks for an array's buffer first, a slot of its C++ type. It has all values of an array
    over several hosts, where JAX raises in `_value`; `__array__` calls that. Python 3.12 could
    replace the slot by a `__buffer__` method, older ones cannot.
    """
    is_known = ctypes.sizeof(ctypes.c_void_p) == 8 and not sysconfig.get_config_var(
        "Py_GIL_DISABLED"
    )
    if is_known:
        slot = ctypes.c_void_p.from_address(id(device_hooks.ArrayImpl) + _BUFFER_SLOT)
        slot.value = None


def replace_host_local_conversion() -> None:
    """Replace the two places that read the buffers behind an array of several hosts.

    They turn an array into one of this host, or back: in multihost_utils, and in `jax.pmap`.
    """
    primitive = multihost_utils.global_array_to_host_local_array_p
    original = primitive.impl

    def convert(array: Any, *, global_mesh: Any, pspec: Any) -> Any:
        is_global = isinstance(array, jax.Array) and not array.is_fully_addressable
        if pspec is None or not is_global:
            return original(array, global_mesh=global_mesh, pspec=pspec)
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            data = convert(jax.random.key_data(array), global_mesh=global_mesh, pspec=pspec)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
        target = NamedSharding(global_mesh, pspec)
        if not array.sharding.is_equivalent_to(target, array.ndim):
            array = jax.device_put(array, target)
        local_aval = multihost_utils._global_to_local_aval(
            core.ShapedArray(array.shape, array.dtype), global_mesh, pspec
        )
        return _with_same_shards(array, local_aval, NamedSharding(global_mesh.local_mesh, pspec))

    primitive.def_impl(convert)
    if hasattr(device_hooks.ArrayImpl, "_rewrap_with_aval_and_sharding"):
        patches = device_hooks.AttributePatches()
        patches.replace(
            device_hooks.ArrayImpl, "_rewrap_with_aval_and_sharding", lambda _: _with_same_shards
        )


def _with_same_shards(array: Any, aval: Any, sharding: Any) -> Any:
    shards = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(aval.shape, sharding, shards)
