"""Plans of whole models in one process and from the shell, each against JAX doing the same sum."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.contender import ROOT
from benchmarks.options import Options
from benchmarks.section import Bar, Section, milliseconds
from benchmarks.shell import installed, seconds_of

_MESH = "data=128,model=128"
_SHELL = [
    "plan",
    "llama3-70b",
    *("--mesh", "fsdp=64,tensor=8"),
    *("--strategy", "fsdp+tensor"),
    *("--hardware", "tpu-v5p"),
    *("--optimizer", "adamw"),
]


def run(options: Options) -> Section:
    """Time plans, and `NamedSharding.shard_shape` of every tensor for comparison."""
    section = Section("Plans of whole models", ["what", "ms (lowest-highest)"])
    n = max(5, options.rounds)
    for what, bound, work in _WORK:
        seconds = _timed(work, n)
        _note(section, what, seconds)
        section.bars.append(Bar(what, bound, statistics.median(seconds), unit=" s"))
    _headers(section, n)
    _note(section, "NamedSharding.shard_shape of the 1,137 tensors of 405b", _timed(_ask_jax(), n))
    _shell(section, n)
    return section


def _note(section: Section, what: str, seconds: list[float]) -> None:
    low, high = milliseconds(min(seconds)), milliseconds(max(seconds))
    section.rows.append([what, f"{milliseconds(statistics.median(seconds))} ({low}-{high})"])
    section.data.append({"what": what, "seconds": seconds})


def _timed(work: Callable[[], object], n: int) -> list[float]:
    """Time work n times, the first time in a process that has not done it before."""
    seconds = []
    for _ in range(n):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def _plan(model: str, mesh: str) -> object:
    import shardlab
    from shardlab.planner.models import presets

    presets._preset.cache_clear()  # reading the preset is part of it
    return shardlab.plan(model, mesh, strategy="fsdp+tensor", hardware="tpu-v5p", optimizer="adamw")


def _too_much() -> object:
    import shardlab

    made = shardlab.plan(
        "llama3.1-405b",
        _MESH,
        strategy="tensor",
        hardware="tpu-v5p",
        optimizer="adamw",
        workload={"batch": 4096, "sequence": 8192},
    )
    assert made.fits is False
    return made


def _advise(model: str) -> object:
    import shardlab

    return shardlab.advise(model, "tpu-v5p", 4096, optimizer="adamw", batch=2048, sequence=8192)


# what, the bar in seconds, the work
_WORK: tuple[tuple[str, float, Callable[[], object]], ...] = (
    ("plan llama3.1-405b on 16,384 devices", 0.05, lambda: _plan("llama3.1-405b", _MESH)),
    ("the same where it does not fit, changes tried", 0.05, _too_much),
    ("plan deepseek-v3, 91,991 tensors, same mesh", 1.0, lambda: _plan("deepseek-v3", _MESH)),
    ("advise llama3.1-405b on 4,096 tpu-v5p", 5.0, lambda: _advise("llama3.1-405b")),
    ("advise deepseek-v3-main on 4,096 tpu-v5p", 5.0, lambda: _advise("deepseek-v3-main")),
)


def _headers(section: Section, n: int) -> None:
    """Time reading the headers of checkpoints whose data is a hole."""
    from benchmarks.checkpoints import write_checkpoint
    from shardlab.planner.models.load import load_model

    for preset, n_files, bound in (("llama3-70b", 30, 1.0), ("deepseek-v3", 163, None)):
        with tempfile.TemporaryDirectory() as name:
            n_bytes = write_checkpoint(Path(name), preset, n_files)
            seconds = _timed(lambda folder=name: load_model(folder), n)
        what = f"read {n_bytes / 1e9:.0f} GB of safetensors in {n_files} files"
        _note(section, what, seconds)
        if bound is not None:
            section.bars.append(Bar(what, bound, statistics.median(seconds), unit=" s"))


def _ask_jax() -> Callable[[], None]:
    """Return what asks JAX for the shard shape of every tensor of the plan, one by one."""
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    import shardlab

    mesh = AbstractMesh((128, 128), ("data", "model"))
    arrays = [
        (row.parameter.shape, PartitionSpec(*row.parameter.spec.entries))
        for row in shardlab.plan("llama3.1-405b", _MESH, strategy="fsdp+tensor").rows
        for _ in range(row.n_tensors)
    ]

    def work() -> None:
        for shape, spec in arrays:
            NamedSharding(mesh, spec).shard_shape(shape)

    return work


def _shell(section: Section, n: int) -> None:
    commands = {
        "shardlab plan llama3-70b": [*installed(), *_SHELL],
        'python -c "import jax"': [sys.executable, "-c", "import jax"],
    }
    for command in commands.values():
        seconds_of(command)  # fill the disk cache
    seconds = {name: [seconds_of(each) for _ in range(n)] for name, each in commands.items()}
    for name, each in seconds.items():
        _note(section, name, each)
    ours, jax = (statistics.median(each) for each in seconds.values())
    section.bars.append(Bar('shardlab plan / python -c "import jax"', 0.5, ours / jax))
    section.notes.append(f"jax is {'' if _loads_jax() else 'not '}loaded by shardlab plan")


def _loads_jax() -> bool:
    code = "import sys; from shardlab.cli import main; main(standalone_mode=False); "
    code += "sys.exit('jax' in sys.modules)"
    command = [sys.executable, "-c", code, *_SHELL]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode != 0
