"""Section `torch`: the same programs in PyTorch's LocalTensor, which loops over ranks in Python.

PyTorch has its own environment, `.venv-torch`, which the first run creates.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import jax_worker, programs
from benchmarks.comparison import Measurement, Variant, compare_variants, time_ratio
from benchmarks.options import Options
from benchmarks.report import Goal, Section, milliseconds_text, ratio_text
from benchmarks.worker_client import ROOT

_PROGRAMS = ("mlp", "gather", "ring")
# The goal is to be faster than LocalTensor from this many ranks on.
_FASTER_FROM = 64
_TORCH_VERSION = "2.13.0"
_TORCH_FOLDER = ROOT / ".venv-torch"


def measure_local_tensor(options: Options) -> Section:
    """Measure simulated against LocalTensor at every rank count."""
    section = Section(
        "PyTorch LocalTensor",
        ["program", "ranks", "simulated ms / MB", "LocalTensor ms / MB", "LocalTensor / simulated"],
    )
    for name in _PROGRAMS:
        for n_ranks in options.devices:
            _add_program(section, name, n_ranks, options)
    return section


def _add_program(section: Section, name: str, n_ranks: int, options: Options) -> None:
    measurements = _compare(name, n_ranks, options)
    ours, theirs = measurements["simulated"], measurements["torch"]
    ratio = time_ratio(theirs, ours)
    median = ratio.median if ratio else None
    title = programs.TITLES[name]
    cells = [_measurement_cell(ours), _measurement_cell(theirs), ratio_text(median)]
    section.rows.append([title, str(n_ranks), *cells])
    section.data += [
        {
            "program": name,
            "ranks": n_ranks,
            "variant": kind,
            "rounds": measurement.rounds,
            "peak_mb": measurement.peak_mb,
            "failure": measurement.failure,
        }
        for kind, measurement in measurements.items()
    ]
    if n_ranks >= _FASTER_FROM:
        section.goals.append(
            Goal(
                f"{title}: LocalTensor / simulated, {n_ranks} ranks",
                1.0,
                median,
                at_most=False,
                note=theirs.failure or ours.failure,
            )
        )


def _compare(name: str, n_ranks: int, options: Options) -> dict[str, Measurement]:
    program = programs.make_program(name, n_ranks)
    with tempfile.TemporaryDirectory() as folder:
        # The PyTorch environment has no JAX to make the inputs with, so it reads them from a file.
        path = str(Path(folder, "inputs.npz"))
        np.savez(path, **_inputs_by_name(name, program.inputs()))
        settings = {"program": name, "mesh": program.mesh, "inputs": path}
        commands = {
            kind: jax_worker.worker_command(kind=kind, program=name, devices=n_ranks)
            for kind in ("unsharded", "simulated")
        }
        commands["torch"] = [
            _torch_python(),
            "-m",
            "benchmarks.torch_worker",
            json.dumps(settings),
        ]
        variants = {kind: Variant(command, options.limit_s) for kind, command in commands.items()}
        return compare_variants(variants, options.rounds)


def _inputs_by_name(name: str, inputs: tuple[object, ...]) -> dict[str, object]:
    if name == "mlp":
        params, x, y = inputs
        assert isinstance(params, dict)
        return {**params, "x": x, "y": y}
    a, b = inputs
    return {"a": a, "b": b}


def _measurement_cell(measurement: Measurement) -> str:
    if not measurement.rounds:
        return f"not measured: {measurement.failure}"
    return f"{milliseconds_text(measurement.seconds)} / {measurement.peak_mb:,.0f}"


def _torch_python() -> str:
    """Return the interpreter of an environment with PyTorch and NumPy; create it if needed."""
    python = _TORCH_FOLDER / "bin" / "python"
    stamp = _TORCH_FOLDER / f"torch-{_TORCH_VERSION}"
    if not stamp.exists():
        print(f"Installing torch {_TORCH_VERSION} into {_TORCH_FOLDER.name} (once) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(_TORCH_FOLDER)], check=True)
        requirements = [f"torch=={_TORCH_VERSION}", "numpy"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *requirements], check=True)
        stamp.touch()
    return str(python)
