"""Runs a compiler in a separate process with a time limit: a crash of XLA ends only that."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardlab.errors import CompileFailed, CompileTimeout

COMPILE_LIMIT_S = 600.0

# The line of an XLA crash, "F1115 21:15:07.323269 31253 file.cc:116] ...", or of an exception.
_ERROR_LINE = re.compile(r"F\d{4} [^\]]*\] |[\w.]*(?:Error|Exception)\b")


def run_compiler(
    command: Sequence[str], folder: Path, changes: dict[str, str], name: str, limit_s: float
) -> dict[str, Any]:
    """Return the response that a compiler process writes to `folder`; the process is ended."""
    # The user's XLA_FLAGS are in the compile options already; here they could request devices.
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = {**inherited, "TF_CPP_MIN_LOG_LEVEL": "2", **changes}
    with (
        (folder / "said").open("wb") as output,
        _start_process(command, environment, output) as process,
    ):
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise CompileTimeout(
                f"XLA did not finish compiling '{name}' in {limit_s:g} s and was killed.",
                where=f"the compile-only process for '{name}'",
                fix="trace fewer layers, scan over them instead of unrolling, or allow more time.",
            ) from None
    # A crash of XLA (a failed CHECK) leaves no result file, only its last line of output.
    with contextlib.suppress(FileNotFoundError):
        response: dict[str, Any] = json.loads((folder / "result.json").read_text())
        if "error" not in response:
            return response
        raise compile_failed(name, response["error"])
    lines = (folder / "said").read_text(errors="replace").splitlines()
    error_lines = [line for line in lines if _ERROR_LINE.match(line)] or lines[-1:]
    message = error_lines[-1] if error_lines else f"no output, exit code {process.returncode}"
    raise compile_failed(name, message)


def compile_failed(name: str, message: str) -> CompileFailed:
    """Return the error for a program that XLA does not compile."""
    lines = message.strip().splitlines()
    is_unknown = re.search("No FFI handler|No registered implementation", message)
    return CompileFailed(
        f"XLA cannot compile '{name}': {lines[0] if lines else 'no message'}",
        where="\n         ".join([f"the compile-only process for '{name}'", *lines[1:12]]),
        fix="trace the program without it: a custom kernel or partitioning rule is registered in "
        "your process only."
        if is_unknown
        else "change what XLA names; on real devices the same compiler would reject it too.",
    )


@contextlib.contextmanager
def _start_process(
    command: Sequence[str], environment: dict[str, str], output: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in its own process group, and kill the group at the end."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,  # closed if this process dies, which ends the compiler too
        stdout=output,
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
