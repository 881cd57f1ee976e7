"""`jax.distributed` on virtual hosts: the client of the key-value store, and initialize.

Libraries such as Orbax use the client of `jax.distributed` for barriers and small values.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from shardlab._jax import host_hooks
from shardlab.errors import InvalidHosts
from shardlab.simulator.hosts.host_link import program_line
from shardlab.simulator.hosts.world import host_link, n_hosts, this_host


class VirtualDistributedClient:
    """The methods of JAX's client; the coordinator of the virtual hosts has the store."""

    def connect(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def wait_at_barrier(
        self, barrier_id: str, timeout_in_ms: int, process_ids: Sequence[int] | None = None
    ) -> None:
        hosts = tuple(sorted(process_ids)) if process_ids else tuple(range(n_hosts()))
        host_link().meet(
            f"barrier {barrier_id}",
            hosts,
            f"wait_at_barrier({barrier_id!r})",
            deadline=timeout_in_ms / 1000,
        )

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        self.key_value_set_bytes(key, value.encode(), allow_overwrite)

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        call = "replace" if allow_overwrite else "set"
        host_link().call_store(call, key, base64.b64encode(value).decode())

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        return self.blocking_key_value_get_bytes(key, timeout_in_ms).decode()

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        return base64.b64decode(host_link().get_key(key, timeout_in_ms / 1000))

    def key_value_try_get(self, key: str) -> str:
        return self.key_value_try_get_bytes(key).decode()

    def key_value_try_get_bytes(self, key: str) -> bytes:
        return base64.b64decode(host_link().call_store("try_get", key)[0])

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        return [(name, value.decode()) for name, value in self.key_value_dir_get_bytes(key)]

    def key_value_dir_get_bytes(self, key: str) -> list[tuple[str, bytes]]:
        entries = host_link().call_store("dir_get", key)
        pairs = zip(entries[::2], entries[1::2], strict=True)
        return [(name, base64.b64decode(value)) for name, value in pairs]

    def key_value_delete(self, key: str) -> None:
        host_link().call_store("delete", key)

    def key_value_increment(self, key: str, increment: int) -> int:
        return int(host_link().call_store("increment", key, str(increment))[0])

    def get_live_nodes(self, process_ids: Sequence[int]) -> dict[int, int]:
        live = map(int, host_link().call_store("live"))
        return {host: 1 for host in live if host in set(process_ids)}


class VirtualPreemptionSync:
    """No virtual host is ever preempted."""

    def reached_sync_point(self, step_id: int) -> bool:
        del step_id
        return False

    def shutdown(self) -> None:
        pass


class VirtualDistributed:
    """The functions of `jax.distributed` in a host process."""

    def __init__(self) -> None:
        self.was_initialized = False
        self._is_initialized = False

    def install(self) -> None:
        """Replace JAX's functions, and let libraries find the client from the start."""
        self._join()
        host_hooks.replace_distributed(self.initialize, self.is_initialized, self.shutdown)

    def initialize(
        self,
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        local_device_ids: Any = None,
        **options: Any,
    ) -> None:
        """Check the arguments: the world has existed from the start."""
        del coordinator_address, local_device_ids, options
        if host_hooks.is_backend_started():
            # JAX's own sentence.
            raise RuntimeError(
                "jax.distributed.initialize() must be called before any JAX calls that might "
                "initialise the XLA backend. This includes any computation, but also calls to "
                "jax.devices, jax.device_put, and others."
            )
        if self._is_initialized:
            raise RuntimeError("distributed.initialize should only be called once.")
        for name, given, own in (
            ("num_processes", num_processes, n_hosts()),
            ("process_id", process_id, this_host()),
        ):
            if given is not None and given != own:
                raise InvalidHosts(
                    f"jax.distributed.initialize was called with {name}={given!r}, and this is "
                    f"host {this_host()} of {n_hosts()}.",
                    where=program_line(),
                    fix="leave the arguments out, take them from JAX_PROCESS_ID and "
                    "JAX_NUM_PROCESSES, or change --hosts.",
                )
        self._is_initialized = self.was_initialized = True
        self._join()

    def is_initialized(self) -> bool:
        return self._is_initialized

    def shutdown(self) -> None:
        self._is_initialized = False
        host_hooks.leave_distributed()

    def _join(self) -> None:
        host_hooks.join_distributed(
            VirtualDistributedClient(), VirtualPreemptionSync(), this_host(), n_hosts()
        )
