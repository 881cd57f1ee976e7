"""Runs `shardlab launch` as a user does, and finds what it leaves running."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from shardlab.cluster.report import LaunchReport

LIMIT_SECONDS = 1800  # ends a hang of the test only
_MARK = "SHARDLAB_TEST_LAUNCH"
# Each program runs once, so the time goes into compiling.
_FAST_COMPILATION = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


@dataclass(frozen=True)
class Launched:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    mark: str

    @property
    def error(self) -> str:
        """The last error that it printed, with its code."""
        return self.stderr[self.stderr.rindex("[launch.") :]

    def left_running(self) -> list[str]:
        return marked_processes(self.mark)


class Launch:
    """`shardlab launch` in a folder with a program, started and not yet ended."""

    def __init__(self, folder: Path, *arguments: str, program: str = "", **environment: str):
        self.mark = uuid.uuid4().hex
        if program:
            (folder / "train.py").write_text(program)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shardlab", "launch", *arguments],
            cwd=folder,
            env={
                **os.environ,
                "XLA_FLAGS": _FAST_COMPILATION,
                **environment,
                _MARK: self.mark,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> Launched:
        try:
            stdout, stderr = self.process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            stdout, stderr = self.process.communicate()
            raise AssertionError(f"the launch did not end:\n{stdout}\n{stderr}") from None
        return Launched(self.process.returncode, stdout, stderr, self.mark)


def launch(folder: Path, *arguments: str, **details: str) -> Launched:
    return Launch(folder, *arguments, **details).wait()


def read_report(folder: Path) -> LaunchReport:
    return LaunchReport.from_json(json.loads((folder / "report.json").read_text()))


def marked_processes(mark: str) -> list[str]:
    """Return the command lines of all processes of a launch, by a variable that they inherit."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                # A zombie has no environment, so it is not found.
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def wait_until_gone(mark: str) -> list[str]:
    """Return what is still running once the watchers had time to act; they need a processor."""
    end = time.monotonic() + 60
    while (found := marked_processes(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return found
