"""Tries to break out of a throw-away sandboxed process: a level is used only if it has held.

Each attempt is a small version of an attack in the tests. One that succeeds is reported by name.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from shardlab.sandbox import kernel
from shardlab.sandbox.fields import Fields
from shardlab.sandbox.frame import Frame, InvalidFrame, read_frame, write_frame

ROLE = "self_test"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class SelfTestRequest:
    """What the attempts are after beside what every machine has."""

    hidden_paths: tuple[str, ...]
    client_pid: int

    def to_frame(self) -> Frame:
        paths = list(self.hidden_paths)
        return Frame({"version": _VERSION, "hidden_paths": paths, "client_pid": self.client_pid})

    @classmethod
    def from_frame(cls, frame: Frame) -> SelfTestRequest:
        fields = _open_fields(frame)
        request = cls(
            hidden_paths=fields.texts("hidden_paths"), client_pid=fields.integer("client_pid")
        )
        fields.finish()
        return request


@dataclass(frozen=True, kw_only=True)
class SelfTestResponse:
    """The names of the attempts that succeeded."""

    breaches: tuple[str, ...]

    def to_frame(self) -> Frame:
        return Frame({"version": _VERSION, "breaches": list(self.breaches)})

    @classmethod
    def from_frame(cls, frame: Frame) -> SelfTestResponse:
        fields = _open_fields(frame)
        response = cls(breaches=fields.texts("breaches"))
        fields.finish()
        return response


def _open_fields(frame: Frame) -> Fields:
    fields = Fields(frame.header, "self test")
    if fields.integer("version") != _VERSION:
        raise InvalidFrame("self test: another version of the protocol")
    return fields


def main(requests_fd: int, responses_fd: int) -> None:
    """Respond to one request with what succeeded and should not have."""
    frame = read_frame(requests_fd)
    if frame is not None:
        breaches = find_breaches(SelfTestRequest.from_frame(frame))
        write_frame(responses_fd, SelfTestResponse(breaches=breaches).to_frame())


def find_breaches(request: SelfTestRequest) -> tuple[str, ...]:
    """Return the names of the attempts that succeed in this process."""
    attempts: dict[str, Callable[[], object]] = {
        "read /etc/passwd": lambda: open("/etc/passwd").close(),
        "write a file": lambda: _write_file("/tmp"),
        "write to packages": lambda: _write_file(os.path.dirname(os.__file__)),
        "open a socket": lambda: socket.socket().close(),
        "open a unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "fork": _fork_child,
        "run a program": lambda: os.execv("/bin/sh", ["sh", "-c", "exit 9"]),
        "signal the client": lambda: os.kill(request.client_pid, 0),
        "signal the parent": lambda: os.kill(os.getppid(), 0),
        "trace the parent": lambda: kernel.check_result(
            kernel.libc().ptrace(16, os.getppid(), 0, 0), ""
        ),
        "read the parent": lambda: open(f"/proc/{os.getppid()}/environ").close(),
        "new namespace": lambda: kernel.unshare(kernel.NEWUSER),
        "anonymous file": lambda: os.close(os.memfd_create("x")),
        "io_uring": lambda: kernel.system_call(425, 1, ctypes.create_string_buffer(256), name=""),
    }
    for path in request.hidden_paths:
        attempts[f"read {path}"] = functools.partial(_read_hidden, path)
        attempts[f"list {path}"] = functools.partial(_list_hidden, path)
    return tuple(name for name, attempt in attempts.items() if _succeeds(attempt))


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, AttributeError):
        return False
    return True


def _write_file(folder: str) -> None:
    path = os.path.join(folder, f"shardlab-self-test-{os.getpid()}")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(path)


def _fork_child() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _read_hidden(path: str) -> None:
    """Read one file of a hidden folder, or a hidden file.

    An empty file does not count as read: a hidden file is covered by /dev/null.
    """
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


def _list_hidden(path: str) -> None:
    """List a hidden folder; an empty one is what covers it."""
    if not os.listdir(path):
        raise FileNotFoundError(path)
