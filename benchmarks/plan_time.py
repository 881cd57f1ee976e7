"""Section `plan`: plans of full models in one process and from the command line.

`NamedSharding.shard_shape` of every tensor of one plan is timed for comparison.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.command_time import IMPORT_JAX, shardlab_command, time_command
from benchmarks.options import Options
from benchmarks.report import Goal, Section, milliseconds_range_text
from benchmarks.worker_client import ROOT

_MESH = "data=128,model=128"
_PLAN_ARGUMENTS = [
    "plan",
    "llama3-70b",
    *("--mesh", "fsdp=64,tensor=8"),
    *("--strategy", "fsdp+tensor"),
    *("--hardware", "tpu-v5p"),
    *("--optimizer", "adamw"),
]


def measure_plans(options: Options) -> Section:
    """Time plans and advice, safetensors headers, JAX's shard shapes, and the command."""
    section = Section("Plans of full models", ["what", "ms, median (min-max)"])
    n = max(5, options.rounds)
    for name, target_s, function in _PLANS:
        seconds = _time_repeatedly(function, n)
        _add_row(section, name, seconds)
        section.goals.append(Goal(name, target_s, statistics.median(seconds), unit=" s"))
    _measure_headers(section, n)
    jax_seconds = _time_repeatedly(_jax_shard_shapes(), n)
    _add_row(section, "NamedSharding.shard_shape of the 1,137 tensors of 405b", jax_seconds)
    _measure_command(section, n)
    return section


def _add_row(section: Section, name: str, seconds: list[float]) -> None:
    section.rows.append([name, milliseconds_range_text(seconds)])
    section.data.append({"name": name, "seconds": seconds})


def _time_repeatedly(function: Callable[[], object], n: int) -> list[float]:
    """Time n calls; the first one includes the imports of a process that never planned."""
    seconds = []
    for _ in range(n):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


def _plan_model(model: str, mesh: str) -> object:
    import shardlab
    from shardlab.planner.models import presets

    # A user's first plan reads the preset's file, so no cached preset may answer.
    for function in vars(presets).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    return shardlab.plan(model, mesh, strategy="fsdp+tensor", hardware="tpu-v5p", optimizer="adamw")


def _plan_over_budget() -> object:
    import shardlab

    plan = shardlab.plan(
        "llama3.1-405b",
        _MESH,
        strategy="tensor",
        hardware="tpu-v5p",
        optimizer="adamw",
        workload=shardlab.Workload(batch=4096, sequence=8192),
    )
    assert plan.fits is False  # the suggested changes are part of what is timed
    return plan


def _advise_mesh(model: str) -> object:
    import shardlab

    return shardlab.advise(model, "tpu-v5p", 4096, optimizer="adamw", batch=2048, sequence=8192)


# name, target in seconds, function
_PLANS: tuple[tuple[str, float, Callable[[], object]], ...] = (
    ("plan llama3.1-405b on 16,384 devices", 0.05, lambda: _plan_model("llama3.1-405b", _MESH)),
    ("the same, does not fit, with suggested changes", 0.05, _plan_over_budget),
    ("plan deepseek-v3, 91,991 tensors, same mesh", 1.0, lambda: _plan_model("deepseek-v3", _MESH)),
    ("advise llama3.1-405b on 4,096 tpu-v5p", 5.0, lambda: _advise_mesh("llama3.1-405b")),
    ("advise deepseek-v3-main on 4,096 tpu-v5p", 5.0, lambda: _advise_mesh("deepseek-v3-main")),
)


def _measure_headers(section: Section, n: int) -> None:
    """Time reading the headers of checkpoints whose files are sparse."""
    from benchmarks.checkpoints import write_checkpoint
    from shardlab.planner.models.load import load_model

    for preset, n_files, target_s in (("llama3-70b", 30, 1.0), ("deepseek-v3", 163, None)):
        with tempfile.TemporaryDirectory() as folder:
            n_bytes = write_checkpoint(Path(folder), preset, n_files)
            seconds = _time_repeatedly(lambda folder=folder: load_model(folder), n)
        name = f"read headers of {n_bytes / 1e9:.0f} GB of safetensors in {n_files} files"
        _add_row(section, name, seconds)
        if target_s is not None:
            section.goals.append(Goal(name, target_s, statistics.median(seconds), unit=" s"))


def _jax_shard_shapes() -> Callable[[], None]:
    """Return a function that computes the shard shape of every tensor of a plan with JAX."""
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    import shardlab

    # 16,384 devices exist nowhere; shard_shape needs only the sizes of the mesh axes.
    mesh = AbstractMesh((128, 128), ("data", "model"))
    # One entry per tensor, not per row: JAX has no notion of tensors that differ in a number only.
    arrays = [
        (row.parameter.shape, PartitionSpec(*row.parameter.spec.entries))
        for row in shardlab.plan("llama3.1-405b", _MESH, strategy="fsdp+tensor").rows
        for _ in range(row.n_tensors)
    ]

    def compute_shard_shapes() -> None:
        for shape, spec in arrays:
            NamedSharding(mesh, spec).shard_shape(shape)

    return compute_shard_shapes


def _measure_command(section: Section, n: int) -> None:
    commands = {
        "shardlab plan llama3-70b": [*shardlab_command(), *_PLAN_ARGUMENTS],
        'python -c "import jax"': IMPORT_JAX,
    }
    for command in commands.values():
        time_command(command)  # the first run reads files into the page cache
    seconds = {
        name: [time_command(command) for _ in range(n)] for name, command in commands.items()
    }
    for name, repetitions in seconds.items():
        _add_row(section, name, repetitions)
    ours, jax = (statistics.median(repetitions) for repetitions in seconds.values())
    section.goals.append(Goal('shardlab plan / python -c "import jax"', 0.5, ours / jax))
    section.notes.append(f"shardlab plan {'loads' if _loads_jax() else 'does not load'} JAX.")


def _loads_jax() -> bool:
    # In another process: JAX is loaded here, by the comparison with NamedSharding.
    code = "import sys; from shardlab.cli import main; main(standalone_mode=False); "
    code += "sys.exit('jax' in sys.modules)"
    command = [sys.executable, "-c", code, *_PLAN_ARGUMENTS]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode != 0
