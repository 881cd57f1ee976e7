"""The compiler process: compiles one train step, and the parent reads XLA's memory from its dump.

Buffer assignment takes seconds; the machine code that follows takes minutes and changes no byte.
XLA writes its buffer assignment before it generates code, so the parent ends the process then.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tpu_memory.setups import MemorySetup, setup_from_json

# Without these libtpu queries the cloud metadata server, and takes an exclusive lock.
_LIBTPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
_LIMIT_S = 600
_POLL_S = 1.0
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(?:, color (\d+))?, (.*)$", re.MULTILINE)
_TOTAL = re.compile(r"Memory Space: (\w+) \(color=\d+\)\nTotal bytes: (\d+)")
_BUFFER = re.compile(r"^ *[0-9.]+\w+\([ 0-9]+%\); +([0-9.]+\w+); +\d+; +\d+; (.*)$", re.MULTILINE)
_OVERFLOW = re.compile(r"Used ([0-9.]+)([GM]) of")
_N_BUFFERS = 12  # largest buffers at the peak that are recorded


@dataclass(frozen=True, kw_only=True)
class CompiledMemory:
    """Bytes of one device: what XLA allocates, and its largest buffers at the peak."""

    argument: int
    output: int  # that does not reuse a donated argument
    alias: int  # donated arguments that are outputs too
    temp: int
    host_temp: int
    largest: tuple[str, ...]

    @property
    def peak(self) -> int:
        """What must fit: donated arguments are counted once."""
        return self.argument + self.output + self.temp


def compile_memory(setup: MemorySetup) -> CompiledMemory | str:
    """Return XLA's memory for a setup, or the compiler's message if it fails."""
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        dump = Path(folder) / "dump"
        flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
        with (Path(folder) / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.tpu_memory.compile_step"],
                env={**os.environ, **_LIBTPU_ENVIRONMENT, "XLA_FLAGS": flags},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(setup.to_json()))
            process.stdin.close()
            text = _wait_for_dump(process, dump)
            process.kill()
            process.wait()
        if text is None:
            return (Path(folder) / "log").read_text()[-3000:]
        return _parse_dump(*text)


def _wait_for_dump(process: subprocess.Popen[str], dump: Path) -> tuple[str, str] | None:
    """Return buffer assignment and memory report as soon as both are complete."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None
        # The last file that is written before code generation starts.
        if list(dump.glob("*after_optimizations_after_buffer_assignment.txt")):
            assignment = next(dump.glob("*-buffer-assignment.txt")).read_text()
            report = next(dump.glob("*-memory-usage-report.txt")).read_text()
            return assignment, report
        if has_ended:
            return None
        time.sleep(_POLL_S)
    return None


def _parse_dump(assignment: str, report: str) -> CompiledMemory:
    argument = output = alias = temp = 0
    for size, color, kind in _ALLOCATION.findall(assignment):
        if color not in ("", "0"):  # on-chip memory and the host
            continue
        if kind.startswith("parameter"):
            argument += int(size)
            alias += int(size) if "maybe-live-out" in kind else 0
        elif "maybe-live-out" in kind:
            output += int(size)
        elif kind.startswith("preallocated-temp"):
            temp += int(size)
    totals = {space: int(size) for space, size in _TOTAL.findall(report)}
    device_report = report.split("\nMemory Space:")[0]
    largest = [f"{size} {shapes}" for size, shapes in _BUFFER.findall(device_report)]
    return CompiledMemory(
        argument=argument,
        output=output,
        alias=alias,
        temp=temp,
        host_temp=totals.get("host", 0),
        largest=tuple(largest[:_N_BUFFERS]),
    )


if __name__ == "__main__":
    from benchmarks.tpu_memory.train_step import lower_step

    lower_step(setup_from_json(json.loads(sys.stdin.read()))).compile()
