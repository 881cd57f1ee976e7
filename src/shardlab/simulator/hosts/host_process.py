"""What runs in the process of one virtual host: the program, as `shardlab run` runs it."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardlab._jax import host_hooks
from shardlab.errors import LabError
from shardlab.simulator.hosts.distributed_client import VirtualDistributed
from shardlab.simulator.hosts.host_link import HostLink
from shardlab.simulator.hosts.messages import Finished
from shardlab.simulator.hosts.world import join_world
from shardlab.simulator.interpreter.replicas import ReplicasDiffer
from shardlab.simulator.script_runner import run_script_file
from shardlab.simulator.simulated_mode import devices_per_host
from shardlab.simulator.virtual_devices.backend import start_real_backend
from shardlab.simulator.virtual_devices.devices import CLIENT, HostPlace


@dataclass(frozen=True, kw_only=True)
class HostProgram:
    """The program that every host runs."""

    program: str
    args: Sequence[str]
    is_module: bool
    devices: int | None  # of all hosts
    strict: bool
    n_hosts: int
    output: str = "all"  # what is printed: all, first, or a folder for a file of each host
    folder: Path = Path()  # where hosts exchange arrays


def run_host(options: HostProgram, index: int, connection: socket.socket) -> None:
    """Run the program as host `index`, in this process, and end the process."""
    code = 1
    try:
        code = _run(options, index, HostLink(connection, options.folder))
        # What `python` does at its end; the rest belongs to the process that was forked.
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(options: HostProgram, index: int, link: HostLink) -> int:
    CLIENT.become_host(
        HostPlace(index=index, n_hosts=options.n_hosts, devices_per_host=devices_per_host)
    )
    join_world(link)
    # Before JAX sees a distributed client: it would connect the real backend to other processes.
    start_real_backend()
    distributed = VirtualDistributed()
    distributed.install()
    host_hooks.replace_host_local_conversion()
    host_hooks.reject_transfers_between_hosts()
    host_hooks.disable_array_buffers()
    if index > 0:
        # Every host finds the same replicas; the first one warns.
        warnings.filterwarnings("ignore", category=ReplicasDiffer)
    os.environ.update(JAX_PROCESS_ID=str(index), JAX_NUM_PROCESSES=str(options.n_hosts))
    try:
        code, summary = run_script_file(
            options.program,
            options.args,
            is_module=options.is_module,
            devices=options.devices,
            strict=options.strict,
        )
    except LabError as error:
        link.fail(error)
    link.finish(
        Finished(exit_code=code, summary=summary, is_distributed=distributed.was_initialized)
    )
    return code
