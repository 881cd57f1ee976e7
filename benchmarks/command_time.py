"""Section `shell`: `shardlab layout` from the command line, against importing JAX."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.options import Options
from benchmarks.report import Goal, Section, milliseconds_range_text
from benchmarks.worker_client import ROOT

_LAYOUT = ["layout", "4096x16384:bf16", "--spec", "None,model", "--mesh", "data=2,model=4"]
IMPORT_JAX = [sys.executable, "-c", "import jax"]


def measure_commands(options: Options) -> Section:
    """Time the commands alternately, at least 5 times."""
    commands = {
        "shardlab layout": [*shardlab_command(), *_LAYOUT],
        'python -c "import jax"': IMPORT_JAX,
        'python -c "pass"': [sys.executable, "-c", "pass"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        time_command(command)  # the first run reads files into the page cache
    for _ in range(max(5, options.rounds)):
        for name, command in commands.items():
            seconds[name].append(time_command(command))
    section = Section("From the command line", ["command", "ms, median (min-max)"])
    for name, repetitions in seconds.items():
        section.rows.append([name, milliseconds_range_text(repetitions)])
        section.data.append({"command": name, "seconds": repetitions})
    ours, jax, _ = (statistics.median(repetitions) for repetitions in seconds.values())
    section.goals = [Goal('shardlab layout / python -c "import jax"', 0.25, ours / jax)]
    return section


def shardlab_command() -> list[str]:
    """Return the installed command, or `python -m shardlab` if there is none."""
    script = Path(sys.executable).with_name("shardlab")
    return [str(script)] if script.exists() else [sys.executable, "-m", "shardlab"]


def time_command(command: list[str]) -> float:
    """Return how long a command takes, from its start to its exit."""
    # Users have cached bytecode, so the command must be able to write it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start
