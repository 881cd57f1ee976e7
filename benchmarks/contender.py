"""The parent's side of a worker: starts it, asks, and gives up at a limit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import selectors
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# "ValueError: ...", or XLA's "F1115 21:15:07.323269 31253 rendezvous.cc:116] ..."
_REASON = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b|F\d{4} ")
_REASON_PREFIX = re.compile(r"F\d{4} [^\]]*\] ")

ROOT = Path(__file__).resolve().parent.parent


class NotMeasured(Exception):
    """Why a contender has no figure; its words go into the table."""


@dataclasses.dataclass
class Contender:
    """A running worker and the longest it may take to answer."""

    name: str
    process: subprocess.Popen[bytes]
    log: Any
    limit_s: float

    def ask(self, do: str, **question: Any) -> dict[str, Any]:
        """Return the worker's answer; raise `NotMeasured` once it is over its limit."""
        assert self.process.stdin is not None
        line = json.dumps({"do": do, **question}) + "\n"
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            ready = selector.select(self.limit_s)
        if not ready:
            self.close()
            raise NotMeasured(f"over the limit of {self.limit_s:g} s")
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise NotMeasured(f"failed: {self._last_words()}")
        return dict(json.loads(line))

    def _last_words(self) -> str:
        """Return the line that says why the worker died: an exception, or XLA's fatal message."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").splitlines()
        reasons = [line for line in lines if _REASON.match(line)] or lines[-1:]
        said = _REASON_PREFIX.sub("", reasons[-1])[:160] if reasons else "without a word"
        return f"{said} (exit code {self.process.returncode})"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def contender(name: str, command: list[str], limit_s: float) -> Iterator[Contender]:
    """Start a worker with `command`, wait until it is ready, and end it at the end."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        one = Contender(name, process, log, limit_s)
        try:
            one._answer()
            yield one
        finally:
            one.close()


def _environment() -> dict[str, str]:
    """Return our environment without what would give one contender another's work or devices."""
    hidden = ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
