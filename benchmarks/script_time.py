"""Section `script`: an unchanged script with `shardlab run`, against 8 forced host devices."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.command_time import shardlab_command
from benchmarks.options import Options
from benchmarks.programs import three_axes
from benchmarks.report import Goal, Section
from benchmarks.worker_client import ROOT

_N_DEVICES = 8
_SCRIPT = str(Path(three_axes.__file__))


def measure_scripts(options: Options) -> Section:
    """Time the script from start to exit, alternately on host devices and simulated."""
    flag = f"--xla_force_host_platform_device_count={_N_DEVICES}"
    variants = {
        "forced": ([sys.executable, _SCRIPT], {"XLA_FLAGS": flag}),
        "simulated": ([*shardlab_command(), "run", "-n", str(_N_DEVICES), "-q", _SCRIPT], {}),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(options.processes):
        for name, (command, environment) in variants.items():
            seconds[name].append(_time_script(command, environment))
    section = Section(
        f"A script with every loop unrolled (data, pipe, model), {_N_DEVICES} devices",
        ["variant", "start to exit s"],
    )
    for name, repetitions in seconds.items():
        section.rows.append([name, f"{statistics.median(repetitions):.2f}"])
        section.data.append({"variant": name, "seconds": repetitions})
    ratio = statistics.median(seconds["simulated"]) / statistics.median(seconds["forced"])
    section.goals = [Goal("simulated / forced host devices, start to exit", 2.0, ratio)]
    return section


def _time_script(command: list[str], environment: dict[str, str]) -> float:
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    start = time.perf_counter()
    subprocess.run(
        command,
        cwd=ROOT,
        env={**inherited, **environment},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - start
