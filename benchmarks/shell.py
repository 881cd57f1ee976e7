"""`shardlab layout` from the shell, against importing JAX."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.contender import ROOT
from benchmarks.options import Options
from benchmarks.section import Bar, Section, milliseconds

_LAYOUT = ["layout", "4096x16384:bf16", "--spec", "None,model", "--mesh", "data=2,model=4"]


def run(options: Options) -> Section:
    """Time both commands in turn, at least 5 times."""
    commands = {
        "shardlab layout": [*installed(), *_LAYOUT],
        'python -c "import jax"': [sys.executable, "-c", "import jax"],
        'python -c "pass"': [sys.executable, "-c", "pass"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        seconds_of(command)  # fill the disk cache
    for _ in range(max(5, options.rounds)):
        for name, command in commands.items():
            seconds[name].append(seconds_of(command))
    section = Section("From the shell", ["command", "ms (lowest-highest)"])
    for name, each in seconds.items():
        low, high = milliseconds(min(each)), milliseconds(max(each))
        section.rows.append([name, f"{milliseconds(statistics.median(each))} ({low}-{high})"])
        section.data.append({"command": name, "seconds": each})
    ours, jax, _ = (statistics.median(each) for each in seconds.values())
    section.bars = [Bar('shardlab layout / python -c "import jax"', 0.25, ours / jax)]
    return section


def installed() -> list[str]:
    """Return the installed command, or the module where the package is only on the path."""
    script = Path(sys.executable).with_name("shardlab")
    return [str(script)] if script.exists() else [sys.executable, "-m", "shardlab"]


def seconds_of(command: list[str]) -> float:
    """Return how long a command takes, from its start to its end."""
    # With bytecode kept between runs, as people have it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start
