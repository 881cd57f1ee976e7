"""Programs for several hosts give every host the same on 4 virtual hosts and in 4 real processes.

The real processes are connected by `jax.distributed`, with gloo over the loopback interface. Each
kind runs all programs of this session in one launch; what every host returned is compared: texts,
integers and shapes exactly, floats within a few roundings, because collectives sum in another
order.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import host_programs
import pytest

HERE = Path(__file__).parent
RUN = str(HERE / "run_host_programs.py")
HANG_S = 1200
N_HOSTS, N_LOCAL = host_programs.N_HOSTS, host_programs.N_LOCAL
# Each program compiles for its own; without LLVM's optimizations in a third of the time.
FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

# One of each kind; the others are in the long tier.
IN_DEFAULT_TIER = (
    "the_world",
    "data_of_each_host",
    "callback_is_called_for_local_shards",
    "fetching_what_is_not_here_raises",
    "gather_values_of_each_process",
    "broadcast_from_one_host",
    "equality_of_hosts_is_asserted",
    "local_arrays_to_global_and_back",
    "hosts_with_unequal_amounts_of_data",
    "random_numbers_of_each_host",
    "data_parallel_training",
    "collectives_over_all_hosts",
    "device_put_compares_hosts",
    "own_checkpoint_of_each_host",
    "key_value_store",
    "callbacks_of_each_device",
)
TESTED = [
    pytest.param(name, marks=() if name in IN_DEFAULT_TIER else pytest.mark.long)
    for name in host_programs.PROGRAMS
]


def environment():
    ignored = ("JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS")
    env = {key: value for key, value in os.environ.items() if key not in ignored}
    return {**env, "XLA_FLAGS": FAST}


def start(command, log):
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment())


def start_real_processes(folder, names):
    with socket.socket() as chosen:
        chosen.bind(("localhost", 0))
        port = chosen.getsockname()[1]
    return [
        start([sys.executable, RUN, "--real", f"{port}:{i}", folder, *names], folder / f"{i}.log")
        for i in range(N_HOSTS)
    ]


def start_virtual_hosts(folder, names):
    command = [sys.executable, "-m", "shardlab", "run", "--hosts", str(N_HOSTS)]
    devices = ["--devices", str(N_HOSTS * N_LOCAL)]
    return [start([*command, *devices, RUN, folder, *names], folder / "0.log")]


def results_of(folder, processes):
    """Wait for the processes; return what each host returned for each program."""
    try:
        for process in processes:
            process.wait(HANG_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    log = (folder / "0.log").read_text()[-4000:]
    assert [process.returncode for process in processes] == [0] * len(processes), log
    files = [folder / f"results-{host}.json" for host in range(N_HOSTS)]
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """What the hosts returned in real processes and on virtual hosts, for the selected tests."""
    selected = {
        item.callspec.params.get("name")
        for item in request.session.items
        if item.path == Path(__file__) and getattr(item, "callspec", None)
    }
    names = [name for name in host_programs.PROGRAMS if name in selected]
    real, virtual = tmp_path_factory.mktemp("real"), tmp_path_factory.mktemp("virtual")
    real_processes = start_real_processes(real, names)
    virtual_hosts = start_virtual_hosts(virtual, names)
    try:
        return results_of(real, real_processes), results_of(virtual, virtual_hosts)
    finally:
        for process in (*real_processes, *virtual_hosts):
            process.kill()


def differences(real, virtual, place=""):
    """Return where two plain values differ."""
    if type(real) is not type(virtual):
        return [f"{place}: {real!r} and {virtual!r}"]
    if isinstance(real, float):
        is_close = math.isclose(real, virtual, rel_tol=2e-5, abs_tol=2e-6)
        return [] if is_close else [f"{place}: {real!r} and {virtual!r}"]
    if isinstance(real, dict) and real.keys() == virtual.keys():
        return [d for key in real for d in differences(real[key], virtual[key], f"{place}.{key}")]
    if isinstance(real, list) and len(real) == len(virtual):
        pairs = zip(real, virtual, strict=True)
        return [d for i, pair in enumerate(pairs) for d in differences(*pair, f"{place}[{i}]")]
    return [] if real == virtual else [f"{place}: {real!r} and {virtual!r}"]


@pytest.mark.parametrize("name", TESTED)
def test_every_host_returns_the_same_as_a_real_process(name, results):
    real, virtual = results
    for host in range(N_HOSTS):
        assert not str(real[host][name]).startswith("raised"), real[host][name]
        assert differences(real[host][name], virtual[host][name], f"host {host}") == []


def test_the_default_tier_names_programs():
    assert set(IN_DEFAULT_TIER) < set(host_programs.PROGRAMS)
    assert len(host_programs.PROGRAMS) >= 30
