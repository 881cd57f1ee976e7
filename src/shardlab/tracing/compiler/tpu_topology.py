"""What XLA for TPU makes of a program, for a topology such as `v5e:16x16`. Needs no TPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from shardlab import _jax
from shardlab._jax.compile_process import COMPILE_LIMIT_S, run_compiler
from shardlab._jax.lowered import compiler_input
from shardlab.errors import InvalidTopology, TpuCompilerMissing
from shardlab.sharding.mesh import mesh_text
from shardlab.tracing.compiler.inserted_collectives import (
    CompiledObservation,
    choose_mesh,
    read_compiled_program,
)
from shardlab.tracing.compiler.xla_process import CompiledProgram
from shardlab.tracing.hlo.hlo_module import parse_module
from shardlab.tracing.stage import StagedProgram, simulated_on

_WORKER = Path(_jax.__file__).parent / "tpu_worker.py"
_TOPOLOGY_NAME = re.compile(r"\w+(?: \w+)?[:=]\d+(?:x\d+)+")
# Without these libtpu queries the cloud metadata server, and takes an exclusive lock.
_LIBTPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def observe_on_topology(
    staged: StagedProgram, topology: str, limit_s: float = COMPILE_LIMIT_S
) -> CompiledObservation:
    """Return what `observe_compiled` returns, from the final output of the TPU compiler.

    Loops, merged sums, overlapped collectives and memory are those of a real TPU. The mesh must
    have as many devices as the topology.
    """
    _check_topology(topology)
    with simulated_on(staged.mesh):
        # Lowered again, for TPU: some primitives lower differently by platform.
        program = compiler_input(staged.traced.lower(lowering_platforms=("tpu",)), "tpu")
    mesh = choose_mesh(program, staged.mesh)
    axes = dict(mesh.shape) if mesh is not None else {"devices": len(program.device_ids)}
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        path = Path(folder)
        (path / "module").write_bytes(program.module)
        (path / "options").write_bytes(program.options)
        (path / "topology").write_text(json.dumps({"name": topology, "axes": axes}))
        command = [sys.executable, "-P", str(_WORKER), folder]
        response = run_compiler(command, path, _LIBTPU_ENVIRONMENT, staged.program, limit_s)
        _check_device_count(response, topology, axes)
        with (path / "text").open(encoding="utf-8") as lines:
            compiled = CompiledProgram(parse_module(lines), response["memory"])
    compiler = f"TPU {topology} (libtpu {importlib.metadata.version('libtpu')})"
    return read_compiled_program(program, compiled, staged.mesh, compiler)


def _check_topology(topology: str) -> None:
    if not _TOPOLOGY_NAME.fullmatch(topology):
        raise InvalidTopology(
            f"{topology!r} is not the name of a TPU topology.",
            where=f"topology {topology!r}",
            fix="write a generation and its shape, such as v5e:16x16 or v5p:8x8x8.",
        )
    if importlib.util.find_spec("libtpu") is None:
        raise TpuCompilerMissing(
            f"Compiling for '{topology}' needs the TPU compiler, which is not installed.",
            where=f"topology '{topology}'",
            fix='pip install "shardlab[tpu]", or leave the topology out: XLA for CPU inserts the '
            "same collectives.",
        )


def _check_device_count(response: dict[str, Any], topology: str, axes: dict[str, int]) -> None:
    if "unknown" in response:
        raise InvalidTopology(
            f"The TPU compiler does not know the topology '{topology}': "
            f"{response['unknown'].strip().splitlines()[0]}",
            where=f"topology '{topology}'",
            fix="write a generation and its shape, such as v5e:16x16 or v5p:8x8x8.",
        )
    if "n_devices" in response:
        n_devices = math.prod(axes.values())
        raise InvalidTopology(
            f"The topology '{topology}' has {response['n_devices']} devices, but the mesh "
            f"{mesh_text(axes.items())} "
            f"has {n_devices}.",
            where=f"topology '{topology}'",
            fix=f"use a topology of {n_devices} devices, or a mesh of {response['n_devices']}.",
        )
