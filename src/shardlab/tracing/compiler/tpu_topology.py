"""What the real TPU compiler makes of a jit, for a topology such as `v5e:16x16`. Needs no TPU."""

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
from shardlab._jax.lowered import compiler_input
from shardlab.errors import InvalidTopology, TpuCompilerMissing
from shardlab.tracing.compiler.xla_process import LIMIT_S, Compiled, run_compiler
from shardlab.tracing.compiler.inserted_collectives import Seen, main_mesh, seen
from shardlab.tracing.hlo.hlo_module import parse_module
from shardlab.tracing.stage import StagedProgram, in_mode

_WORKER = Path(_jax.__file__).parent / "tpu_worker.py"
_NAME = re.compile(r"\w+(?: \w+)?[:=]\d+(?:x\d+)+")
# libtpu would ask a cloud machine who it is, and want to be the only one here.
_ALONE = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def observe_on_topology(staged: StagedProgram, topology: str, limit_s: float = LIMIT_S) -> Seen:
    """Return what `observe_compiled` does, as the TPU compiler has it in the end.

    Loops, merged sums and overlapped exchanges are the real ones, and so is the memory. The mesh
    must have as many devices as the topology.
    """
    _check(topology)
    with in_mode(staged.mesh):
        program = compiler_input(staged.traced.lower(lowering_platforms=("tpu",)), "tpu")
    mesh = main_mesh(program, staged.mesh)
    axes = dict(mesh.shape) if mesh is not None else {"devices": len(program.device_ids)}
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        place = Path(folder)
        (place / "module").write_bytes(program.module)
        (place / "options").write_bytes(program.options)
        (place / "topology").write_text(json.dumps({"name": topology, "axes": axes}))
        command = [sys.executable, "-P", str(_WORKER), folder]
        answer = run_compiler(command, place, _ALONE, staged.program, limit_s)
        _check_fit(answer, topology, axes)
        with (place / "text").open(encoding="utf-8") as lines:
            compiled = Compiled(parse_module(lines), answer["memory"])
    compiler = f"TPU {topology} (libtpu {importlib.metadata.version('libtpu')})"
    return seen(program, compiled, staged.mesh, compiler)


def _check(topology: str) -> None:
    if not _NAME.fullmatch(topology):
        raise InvalidTopology(
            f"{topology!r} is no name of a TPU topology.",
            where=f"topology {topology!r}",
            fix="name a generation and its shape, such as v5e:16x16 or v5p:8x8x8.",
        )
    if importlib.util.find_spec("libtpu") is None:
        raise TpuCompilerMissing(
            f"Compiling for '{topology}' needs the TPU compiler, which is not installed.",
            where=f"topology '{topology}'",
            fix='pip install "shardlab[tpu]", or leave the topology out: XLA for CPU inserts the '
            "same collectives.",
        )


def _check_fit(answer: dict[str, Any], topology: str, axes: dict[str, int]) -> None:
    if "unknown" in answer:
        raise InvalidTopology(
            f"The TPU compiler does not know the topology '{topology}': "
            f"{answer['unknown'].strip().splitlines()[0]}",
            where=f"topology '{topology}'",
            fix="name a generation and its shape, such as v5e:16x16 or v5p:8x8x8.",
        )
    if "n_devices" in answer:
        n_devices = math.prod(axes.values())
        mesh = ",".join(f"{name}={size}" for name, size in axes.items())
        raise InvalidTopology(
            f"The topology '{topology}' has {answer['n_devices']} devices, and the mesh {mesh} "
            f"has {n_devices}.",
            where=f"topology '{topology}'",
            fix=f"a topology of {n_devices} devices, or a mesh of {answer['n_devices']}.",
        )
