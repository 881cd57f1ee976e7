"""Guests as plain processes (level C): limits and a time-out, no confinement. A stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

from shardlab.frames.frame import BadFrame, Frame, read_frame, write_frame
from shardlab.sandbox.guest import Ended, Ending, Level, Limits, Role

_START = (
    "import sys; from importlib import import_module\n"
    "import_module('shardlab.cell.' + sys.argv[1]).main(int(sys.argv[2]), int(sys.argv[3]))"
)


class PlainHouse:
    """Starts an ordinary process for each guest."""

    level: Level = "C"

    def guest(self, role: Role, limits: Limits) -> PlainGuest:
        return PlainGuest(role, limits)

    def close(self) -> None:
        pass


class PlainGuest:
    def __init__(self, role: Role, limits: Limits) -> None:
        self._limits = limits
        theirs_in, self._requests = os.pipe()
        self._answers, theirs_out = os.pipe()
        self._output = b""
        env: dict[str, Any] = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, role, str(theirs_in), str(theirs_out)],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        assert self._process.stdout
        while chunk := os.read(self._process.stdout.fileno(), 1 << 16):
            self._output = (self._output + chunk)[: self._limits.output_bytes]

    def ask(self, request: Frame) -> Frame:
        timer = threading.Timer(self._limits.wall_seconds, self._process.kill)
        timer.start()
        try:
            write_frame(self._requests, request)
            answer = read_frame(self._answers, self._limits.answer_bytes)
        except (OSError, BadFrame) as error:
            raise Ended(Ending("frame", str(error))) from error
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
        if answer is None:
            code = self._process.wait()
            raise Ended(Ending("time" if is_late else "exit", exit_code=code))
        return answer

    @property
    def output(self) -> str:
        return self._output.decode("utf-8", "replace")

    def close(self) -> None:
        for fd in (self._requests, self._answers):
            os.close(fd)
        self._process.kill()
        self._process.wait()
        self._reader.join(2)
        assert self._process.stdout
        self._process.stdout.close()
