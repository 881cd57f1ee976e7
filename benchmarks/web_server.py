"""A `shardlab serve` process for the sections that measure pages."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator

from benchmarks.worker_client import ROOT


@dataclasses.dataclass(frozen=True)
class RunningServer:
    """Address and process of a server, and the seconds from its start to its first page."""

    url: str
    pid: int
    first_page_s: float


@contextlib.contextmanager
def running_server(first_page: str = "/", *options: str) -> Iterator[RunningServer]:
    """Start `shardlab serve` with an empty data folder; end it with the block."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shardlab", "serve", "--no-open", "--port", "0"]
        command += options
        env = {**os.environ, "SHARDLAB_DATA": folder, "PYTHONUNBUFFERED": "1"}
        start = time.perf_counter()
        with subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                url = "http://" + line.split("http://")[1].split("/")[0]
                with urllib.request.urlopen(url + first_page, timeout=60) as response:
                    response.read()
                yield RunningServer(url, process.pid, time.perf_counter() - start)
            finally:
                process.terminate()
                process.wait(60)


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far, without its children."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    with open(f"/proc/{pid}/status") as file:
        lines = [line for line in file if line.startswith("VmRSS")]
    return int(lines[0].split()[1]) / 1024
