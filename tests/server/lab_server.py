"""A real `shardlab serve` process for tests, and a client that behaves like its pages."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

# Only to end a hang: nothing here measures the speed of the machine.
PATIENCE_SECONDS = 300.0

PROGRAM = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

def body(x):
    return jax.lax.psum(x, "data")

def step(x):
    return jax.shard_map(body, in_specs=P("data"), out_specs=P())(x)

def step_args():
    return (jnp.arange(8.0),)
"""
ENDLESS = "import time\nwhile True:\n    time.sleep(0.001)\n"


class LabServer:
    """One server process with a data folder."""

    def __init__(self, data_folder, *options, port=0):
        command = [sys.executable, "-m", "shardlab", "serve", "--no-open", "--port", str(port)]
        environment = {**os.environ, "SHARDLAB_DATA": str(data_folder), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        line = self.process.stdout.readline()
        if "http://" not in line:
            _, errors = self.process.communicate()
            raise RuntimeError(f"the server did not start: {line}{errors}")
        self.url = line.split(" at ")[1].split()[0].rstrip("/")
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS)
        page = self.client.get("/")
        token = re.search(r'csrf-token" content="(\w+)"', page.text)[1]
        self.client.headers["x-csrf-token"] = token
        self.health()  # is answered once the complete application is loaded, behind the first page

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self, number=signal.SIGINT):
        """End the server as Ctrl-C does, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE_SECONDS)
        self.client.close()
        return self.process.returncode

    def kill(self):
        """End the server as a crash does."""
        self.stop(signal.SIGKILL)

    def health(self):
        return self.client.get("/health").json()

    def wait_until_ready(self):
        wait_for(lambda: self.health()["status"] == "ready")

    def submit(self, source=PROGRAM, mesh="data=4", **options):
        body = {"source": source, "mesh": mesh, **options}
        response = self.client.post("/api/v1/recordings", json=body)
        assert response.status_code == 202, response.text
        return response.json()["id"]

    def job(self, job_id):
        return self.client.get(f"/api/v1/jobs/{job_id}").json()

    def wait_for_state(self, job_id, *states):
        wait_for(lambda: self.job(job_id)["state"] in states)
        return self.job(job_id)

    def wait_for_end(self, job_id):
        return self.wait_for_state(job_id, "done", "failed", "cancelled")

    def events(self, job_id, **headers):
        """Yield the id and the job of each event until the stream ends."""
        with self.client.stream("GET", f"/api/v1/jobs/{job_id}/events", headers=headers) as stream:
            event_id = ""
            for line in stream.iter_lines():
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    yield event_id, json.loads(line.removeprefix("data: "))

    def worker_pids(self):
        return [pid for pid in descendants(self.process.pid) if "jobs.worker" in command_of(pid)]


def wait_for(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def descendants(pid):
    """Return the processes that a process has started, and those that they have started."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in _read(task).split()
    ]
    return children + [further for child in children for further in descendants(child)]


def command_of(pid):
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")


def is_running(pid):
    status = _read(Path(f"/proc/{pid}/stat"))
    return bool(status) and status.rpartition(")")[2].split()[0] != "Z"


def _read(path):
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
