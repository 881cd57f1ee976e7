"""Where a program can run: on the real devices of another process, or simulated in this one."""

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
from program import N_DEVICES, Program, World, evaluate

from shardlab.simulator.shard_map import shard_map
from shardlab.simulator.simulated_mode import simulated
from shardlab.simulator.virtual_devices.devices import virtual_mesh

TIMEOUT_SECONDS = 300
# Each program runs once, so what it costs is compiling it: three times quicker without LLVM's
# optimizations, which change no result by more than the order of a sum.
_QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


class RealError(Exception):
    """The program raised on real devices."""


class RealDevices:
    """Answers what a program computes on real devices; questions are answered in order."""

    def __init__(self) -> None:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_QUICK_TO_COMPILE}",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("real_devices.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        self._answers: dict[str, Any] = {}
        self._arrived = threading.Condition()
        self._asked: set[str] = set()
        self._pending: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ask(self, request: dict[str, Any]) -> str:
        """Send a request, unless it has been sent before, and return its key."""
        line = json.dumps(request)
        if line not in self._asked:
            self._asked.add(line)
            self._pending.put(line)
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        return line

    def get(self, request: dict[str, Any]) -> dict[str, np.ndarray]:
        """Wait for the answer to a request."""
        key = self.ask(request)
        with self._arrived:
            arrived = self._arrived.wait_for(
                lambda: key in self._answers or "" in self._answers, TIMEOUT_SECONDS
            )
        assert arrived, f"no answer from real devices to {key}"
        assert key in self._answers, f"the process with real devices died before {key}"
        head, body = self._answers[key]
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

    def _listen(self) -> None:
        assert self._process.stdout is not None
        stream = self._process.stdout
        while line := stream.readline():
            head = json.loads(line)
            self._put(self._pending.get(), (head, stream.read(head["bytes"])))
        self._put("", None)

    def _put(self, key: str, answer: Any) -> None:
        with self._arrived:
            self._answers[key] = answer
            self._arrived.notify_all()


def simulate(program: Program) -> dict[str, np.ndarray]:
    """Evaluate a program with `shardlab.shard_map`, or as it stands in simulated mode."""
    if not program.explicit:
        return evaluate(program, World(shard_map, virtual_mesh(dict(program.mesh))))
    # Arrays with a sharding of their own live outside of shard_map too, so the whole program runs
    # as if the devices were there.
    with simulated(devices=N_DEVICES):
        return evaluate(program, devices_world(program))


def devices_world(program: Program) -> World:
    """JAX's own shard_map, on whatever devices there are."""
    shape = tuple(program.mesh.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    return World(jax.shard_map, Mesh(devices, tuple(program.mesh), axis_types=program.axis_types()))
