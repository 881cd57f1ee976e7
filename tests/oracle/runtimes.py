"""Runs programs on the real devices of another process, or simulated in this one."""

from __future__ import annotations

import io
import json
import math
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from program import N_DEVICES, Program, Runtime, evaluate

from shardlab.simulator.shard_map import shard_map
from shardlab.simulator.simulated_mode import simulated
from shardlab.simulator.virtual_devices.devices import virtual_mesh

TIMEOUT_SECONDS = 300
# Each program runs once, so the time goes into compiling: three times less without LLVM's
# optimizations, which change no result by more than the order of a sum.
_FAST_COMPILATION = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


class RealError(Exception):
    """The program raised on real devices."""


class RealDevices:
    """A process that runs programs on real devices, in the order of the requests."""

    def __init__(self) -> None:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_FAST_COMPILATION}",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("real_devices.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        self._responses: dict[str, Any] = {}
        self._arrived = threading.Condition()
        self._sent: set[str] = set()
        self._pending: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._read_responses, daemon=True)
        self._listener.start()

    def send_request(self, request: dict[str, Any]) -> str:
        """Send a request, unless it has been sent before, and return its key."""
        line = json.dumps(request)
        if line not in self._sent:
            self._sent.add(line)
            self._pending.put(line)
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        return line

    def get_result(self, request: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the arrays that a program computes, once they have arrived."""
        key = self.send_request(request)
        with self._arrived:
            arrived = self._arrived.wait_for(
                lambda: key in self._responses or "" in self._responses, TIMEOUT_SECONDS
            )
        assert arrived, f"no response from real devices to {key}"
        assert key in self._responses, f"the process with real devices died before {key}"
        head, body = self._responses[key]
        if "error" in head:
            raise RealError(head["error"])
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            return dict(file)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.stdin.close()
        self._listener.join()
        self._process.stdout.close()
        self._process.wait()

    def _read_responses(self) -> None:
        assert self._process.stdout is not None
        stream = self._process.stdout
        while line := stream.readline():
            head = json.loads(line)
            self._add_response(self._pending.get(), (head, stream.read(head["bytes"])))
        self._add_response("", None)

    def _add_response(self, key: str, response: Any) -> None:
        with self._arrived:
            self._responses[key] = response
            self._arrived.notify_all()


def simulate_program(program: Program) -> dict[str, np.ndarray]:
    """Evaluate a program with `shardlab.shard_map`, or unchanged in simulated mode."""
    if not program.explicit:
        return evaluate(program, Runtime(shard_map, virtual_mesh(dict(program.mesh))))
    # Arrays of Explicit axes have shardings outside of shard_map too, so the full program needs
    # devices.
    with simulated(devices=N_DEVICES):
        return evaluate(program, device_runtime(program))


def device_runtime(program: Program) -> Runtime:
    """Return JAX's own shard_map on the devices of this process, real or virtual."""
    shape = tuple(program.mesh.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    return Runtime(
        jax.shard_map, Mesh(devices, tuple(program.mesh), axis_types=program.axis_types())
    )
