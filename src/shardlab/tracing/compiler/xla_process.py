"""Compiles a lowered program for many devices, in a separate process with a time limit."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from shardlab._jax import compile_worker
from shardlab._jax.compile_process import COMPILE_LIMIT_S, compile_failed, run_compiler
from shardlab._jax.lowered import CompilerInput
from shardlab.tracing.hlo.hlo_module import Module, parse_module

_WORKER = Path(compile_worker.__file__)
# The dump after this pass is read: later passes of XLA for CPU widen bf16 and merge collectives.
_PARTITIONING_PASS = "spmd-partitioning"
# Constant tables by device id identify a reduce-scatter. In modules larger than this, all the
# other constants would make the dump too large.
_MAX_CONSTANT_MODULE = 8 * 2**20


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """The partitioned program (None for a single device), and the memory per device."""

    module: Module | None
    memory: dict[str, int]


def compile_for_devices(
    program: CompilerInput, name: str, limit_s: float = COMPILE_LIMIT_S
) -> CompiledProgram:
    """Return the program as XLA partitions it; raise if XLA rejects it or takes too long."""
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        path = Path(folder)
        (path / "module").write_bytes(program.module)
        (path / "options").write_bytes(program.options)
        (path / "dump_options").write_text(json.dumps(_dump_options(path / "dump", program)))
        # -P keeps the folder of the worker, whose modules may shadow others, off sys.path.
        command = [sys.executable, "-P", str(_WORKER), folder]
        response = run_compiler(command, path, {}, name, limit_s)
        if len(program.device_ids) == 1:
            return CompiledProgram(None, response["memory"])
        dump = next((path / "dump").glob(f"*.after_{_PARTITIONING_PASS}.*.txt"), None)
        if dump is None:
            raise compile_failed(name, "its partitioner wrote no dump")
        with dump.open(encoding="utf-8") as lines:
            return CompiledProgram(parse_module(lines), response["memory"])


def _dump_options(folder: Path, program: CompilerInput) -> dict[str, Any]:
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_pass_re": f"^{_PARTITIONING_PASS}$",
        "xla_dump_hlo_as_text": True,
        "xla_dump_buffer_assignment_analysis": False,
        "xla_dump_large_constants": len(program.module) < _MAX_CONSTANT_MODULE,
    }
