"""Tries to break out, in a throw-away guest: the level that is promised is one that has held.

Every attempt here is a small version of an attack in the tests. An attempt that does not fail is
reported by its name.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
from collections.abc import Callable
from typing import Any

from shardlab.sandbox import kernel
from shardlab.sandbox.frame import Frame, read_frame, write_frame


def main(requests: int, answers: int) -> None:
    """Answer the one request of a trial: what succeeded that should not have."""
    request = read_frame(requests)
    if request is not None:
        write_frame(answers, Frame({"broken": broken(request.header)}))


def broken(asked: dict[str, Any]) -> list[str]:
    """Return the names of the attempts that succeeded."""
    attempts: dict[str, Callable[[], object]] = {
        "read /etc/passwd": lambda: open("/etc/passwd").close(),
        "write a file": lambda: _write("/tmp"),
        "write to packages": lambda: _write(os.path.dirname(os.__file__)),
        "open a socket": lambda: socket.socket().close(),
        "open a unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "fork": _fork,
        "run a program": lambda: os.execv("/bin/sh", ["sh", "-c", "exit 9"]),
        "signal the judge": lambda: os.kill(asked["judge"], 0),
        "signal the parent": lambda: os.kill(os.getppid(), 0),
        "trace the parent": lambda: kernel.done(kernel.libc().ptrace(16, os.getppid(), 0, 0), ""),
        "read the parent": lambda: open(f"/proc/{os.getppid()}/environ").close(),
        "new namespace": lambda: kernel.unshare(kernel.NEWUSER),
        "anonymous file": lambda: os.close(os.memfd_create("x")),
        "io_uring": lambda: kernel.system_call(425, 1, ctypes.create_string_buffer(256), what=""),
    }
    for path in asked["hidden"]:
        attempts[f"read {path}"] = functools.partial(_read, path)
    return [name for name, attempt in attempts.items() if _succeeds(attempt)]


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, AttributeError):
        return False
    return True


def _write(folder: str) -> None:
    path = os.path.join(folder, f"shardlab-trial-{os.getpid()}")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(path)


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _read(path: str) -> None:
    """Read one file of a hidden folder, or a hidden file; names alone are no secret."""
    if not os.path.isdir(path):
        with open(path, "rb") as file:
            if not file.read(1):
                raise FileNotFoundError(path)
        return
    for folder, _, files in os.walk(path):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                file.read(1)
            return
    raise FileNotFoundError(path)
