"""Section `pod-scale`: every command on 8 to 65,536 devices, against itself on 8.

Each command is a full process, and so are the processes that it starts. Processor time is reported,
because it depends less on what else the machine does than elapsed time. The sizes alternate.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.command_time import shardlab_command
from benchmarks.options import Options
from benchmarks.report import Goal, Section, ratio_text
from benchmarks.worker_client import ROOT

# The mesh axes of each number of devices.
MESHES = {8: (2, 4), 64: (8, 8), 512: (16, 32), 4096: (64, 64), 65536: (256, 256)}
_TARGET = 2.0
# A check compiles about twenty programs, which takes long on a busy machine.
_LIMIT_S = 180.0
_STEP = Path("benchmarks", "programs", "pod_step.py")
_SCRIPT = Path("benchmarks", "programs", "pod_script.py")


def _mesh(n_devices: int) -> str:
    data, model = MESHES[n_devices]
    return f"data={data},model={model}"


COMMANDS: dict[str, Callable[[int], list[str]]] = {
    "layout --to": lambda n: [
        *("layout", "65536x65536:bf16", "--spec", "data,model", "--to", "None,model"),
        *("--mesh", _mesh(n)),
    ],
    "plan --time": lambda n: [
        *("plan", "llama3-70b", "--mesh", f"fsdp={n // 2},tensor=2", "--strategy", "fsdp+tensor"),
        *("--hardware", "tpu-v5p", "--time", "--batch", str(n), "--sequence", "8192"),
    ],
    "advise": lambda n: [
        *("advise", "llama3-8b", "--devices", str(n), "--hardware", "tpu-v5p"),
        *("--batch", str(n), "--sequence", "8192"),
    ],
    "trace, shard_map": lambda n: ["trace", f"{_STEP}:shard_map_step", "--mesh", _mesh(n)],
    "trace, jit": lambda n: ["trace", f"{_STEP}:jit_step", "--mesh", _mesh(n)],
    "check, full mesh": lambda n: [
        *("check", f"{_STEP}:shard_map_step", "--mesh", _mesh(n), "--no-scaled"),
    ],
    "check, scaled down": lambda n: [
        *("check", f"{_STEP}:shard_map_step", "--mesh", _mesh(n), "--scaled"),
    ],
    "run": lambda n: ["run", "--devices", str(n), str(_SCRIPT)],
}


def measure_pod_scale(options: Options) -> Section:
    """Time each command at each size, alternately."""
    section = Section(
        "From 8 to 65,536 devices: processor seconds of a command, and its ratio to 8 devices",
        ["command", *(f"{n:,}" for n in MESHES)],
    )
    for name, arguments in COMMANDS.items():
        seconds: dict[int, list[float]] = {n: [] for n in MESHES}
        elapsed: dict[int, list[float]] = {n: [] for n in MESHES}
        failure = ""
        for _ in range(options.processes):
            for n in MESHES:
                if not failure:
                    processor_s, elapsed_s, failure = _time_command(
                        arguments(n), max(options.limit_s, _LIMIT_S)
                    )
                    seconds[n].append(processor_s)
                    elapsed[n].append(elapsed_s)
        if failure:
            section.rows.append([name, f"not measured: {failure}", *["-"] * (len(MESHES) - 1)])
            section.goals.append(Goal(_goal_name(name), _TARGET, None, note=failure))
            continue
        medians = {n: statistics.median(values) for n, values in seconds.items()}
        ratios = {n: medians[n] / medians[8] for n in MESHES}
        section.rows.append(
            [name, *(f"{medians[n]:.2f} ({ratio_text(ratios[n])})" for n in MESHES)]
        )
        section.goals.append(Goal(_goal_name(name), _TARGET, ratios[65536]))
        section.data += [
            {"command": name, "devices": n, "seconds": seconds[n], "elapsed": elapsed[n]}
            for n in MESHES
        ]
    section.notes = [
        "Processor time of the command and of all processes that it starts.",
        "8 devices are too few to be scaled down: that check runs them in full.",
    ]
    return section


def _goal_name(name: str) -> str:
    return f"{name}: 65,536 devices / 8 devices, processor time"


def _time_command(arguments: list[str], limit_s: float) -> tuple[float, float, str]:
    """Return processor seconds, elapsed seconds, and why the command failed."""
    before, start = os.times(), time.perf_counter()
    try:
        result = subprocess.run(
            [*shardlab_command(), *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 0.0, 0.0, f"over the limit of {limit_s:g} s"
    after = os.times()
    used = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    failure = "" if result.returncode == 0 else result.stderr.strip().splitlines()[-1]
    return used, time.perf_counter() - start, failure
