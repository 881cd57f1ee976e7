"""A lowered program -> what XLA makes of it for many devices, from a process with a time limit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardlab._jax import compile_worker
from shardlab._jax.lowered import CompilerInput
from shardlab.errors import CompileFailed, CompileTimeout
from shardlab.tracing.hlo.hlo_module import Module, parse_module

LIMIT_S = 600.0

_WORKER = Path(compile_worker.__file__)
# After this pass and before any that only a CPU needs: those widen bf16 and merge collectives.
_PASS = "spmd-partitioning"
# A table by device id tells a reduce-scatter; beyond this size other constants would cost more.
_LARGE_MODULE = 8 * 2**20
# XLA's last words: "F1115 21:15:07.323269 31253 file.cc:116] ...", or a Python exception.
_LAST_WORDS = re.compile(r"F\d{4} [^\]]*\] |[\w.]*(?:Error|Exception)\b")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The partitioned program (None where one device is all), and the bytes that a device needs."""

    module: Module | None
    memory: dict[str, int]


def compile_for_devices(program: CompilerInput, name: str, limit_s: float = LIMIT_S) -> Compiled:
    """Return the program as XLA partitions it; raise where it refuses or takes too long."""
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        place = Path(folder)
        (place / "module").write_bytes(program.module)
        (place / "options").write_bytes(program.options)
        (place / "dump_options").write_text(json.dumps(_dump_options(place / "dump", program)))
        command = [sys.executable, "-P", str(_WORKER), folder]
        answer = run_compiler(command, place, {}, name, limit_s)
        if len(program.device_ids) == 1:
            return Compiled(None, answer["memory"])
        dump = next((place / "dump").glob(f"*.after_{_PASS}.*.txt"), None)
        if dump is None:
            raise _failed(name, "its partitioner left no text")
        with dump.open(encoding="utf-8") as lines:
            return Compiled(parse_module(lines), answer["memory"])


def _dump_options(folder: Path, program: CompilerInput) -> dict[str, Any]:
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_pass_re": f"^{_PASS}$",
        "xla_dump_hlo_as_text": True,
        "xla_dump_buffer_assignment_analysis": False,
        "xla_dump_large_constants": len(program.module) < _LARGE_MODULE,
    }


# ------------------------------------------------------------------------------- the process


def run_compiler(
    command: Sequence[str], folder: Path, changes: dict[str, str], name: str, limit_s: float
) -> dict[str, Any]:
    """Return the answer that a compiler process leaves in `folder`; nothing of it stays behind."""
    # What the person asks of XLA is in the options already; here it might ask for devices.
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = {**kept, "TF_CPP_MIN_LOG_LEVEL": "2", **changes}
    with (folder / "said").open("wb") as said, _process(command, environment, said) as process:
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise CompileTimeout(
                f"XLA did not finish compiling '{name}' in {limit_s:g} s; it was ended.",
                where=f"the compile-only process for '{name}'",
                fix="trace fewer layers, scan over them instead of unrolling, or give more time.",
            ) from None
    with contextlib.suppress(FileNotFoundError):
        answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
        if "refused" not in answer:
            return answer
        raise _failed(name, answer["refused"])
    words = (folder / "said").read_text(errors="replace").splitlines()
    last = [line for line in words if _LAST_WORDS.match(line)] or words[-1:]
    told = last[-1] if last else f"without a word, exit code {process.returncode}"
    raise _failed(name, told)


def _failed(name: str, words: str) -> CompileFailed:
    lines = words.strip().splitlines()
    is_unknown = re.search("No FFI handler|No registered implementation", words)
    return CompileFailed(
        f"XLA refuses to compile '{name}': {lines[0] if lines else 'without a word'}",
        where="\n         ".join([f"the compile-only process for '{name}'", *lines[1:12]]),
        fix="trace the program without it: a kernel or a partitioning rule of your own is known to "
        "your process only."
        if is_unknown
        else "change what XLA names; on real devices the same compiler would refuse it too.",
    )


@contextlib.contextmanager
def _process(
    command: Sequence[str], environment: dict[str, str], said: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a group of its own, and end the whole group whatever happens."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,  # closed when we die, which ends it too
        stdout=said,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
