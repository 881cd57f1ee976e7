"""Typed messages between the pool, its fork server and the supervisors. Every one has a version.

Over the control socket, each with a length in front and file descriptors beside it:

    pool -> fork server    StartRequest, once; then a ForkRequest for each process
    fork server -> pool    StartResponse, once, and for each ForkRequest without a role

Over each supervisor's socket: one-byte `SupervisorCommand`s to it, one `ExitReason` back.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_args

from shardlab.sandbox.fields import Fields
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sandbox.process import ExitKind, ExitReason, Level, ProcessLimits

VERSION = 1
_LENGTH = struct.Struct("<I")
_MAX_BYTES = 1 << 20
_MAX_FDS = 8
_MAX_SIGNAL = 128


class SupervisorCommand(enum.Enum):
    """What a client tells a supervisor; one byte, so that no write is ever partial."""

    REQUEST_STARTED = b"b"  # the wall clock runs while a request is pending
    REQUEST_FINISHED = b"i"
    END_FOR_OUTPUT = b"o"
    END_FOR_PROTOCOL = b"f"
    END_FOR_CLOSED_PIPE = b"c"  # it closed a pipe, or is exiting: the supervisor can tell which
    END_FOR_TIME = b"t"


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """The first message to a fork server: what to load, and how to confine."""

    message_type: ClassVar[str] = "start"
    level: Level
    hidden_paths: tuple[str, ...]
    entry_points: Mapping[str, str]
    warmup_module: str

    @classmethod
    def read_fields(cls, fields: Fields) -> StartRequest:
        entry_points = fields.value("entry_points")
        if not isinstance(entry_points, dict):
            raise InvalidFrame("start: 'entry_points' is not an object")
        return cls(
            level=_read_level(fields),
            hidden_paths=fields.texts("hidden_paths"),
            entry_points={str(role): str(module) for role, module in entry_points.items()},
            warmup_module=fields.text("warmup_module"),
        )


@dataclass(frozen=True, kw_only=True)
class StartResponse:
    """Whether the fork server is ready; `error` says why not.

    `is_internal` separates a failure that should not happen from a kernel that lacks a feature.
    """

    message_type: ClassVar[str] = "started"
    error: str = ""
    is_internal: bool = False

    @classmethod
    def read_fields(cls, fields: Fields) -> StartResponse:
        return cls(error=fields.text("error"), is_internal=fields.boolean("is_internal"))


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """A request for one process; its pipes, its supervisor's socket and its usage record travel
    beside it. Without a role it asks for nothing but a `StartResponse`: whether the server lives.
    """

    message_type: ClassVar[str] = "fork"
    role: str
    limits: ProcessLimits

    @classmethod
    def read_fields(cls, fields: Fields) -> ForkRequest:
        limits = Fields(fields.value("limits"), "limits")
        numbers = {
            field.name: _read_limit(limits, field) for field in dataclasses.fields(ProcessLimits)
        }
        limits.finish()
        return cls(role=fields.text("role"), limits=ProcessLimits(**numbers))


def _read_limit(limits: Fields, field: dataclasses.Field[Any]) -> Any:
    is_seconds = field.name.endswith("_seconds")
    return limits.number(field.name) if is_seconds else limits.integer(field.name)


def _read_level(fields: Fields) -> Level:
    level = fields.text("level")
    if level not in get_args(Level):
        raise InvalidFrame(f"{level[:40]!r} is not a level")
    return level  # type: ignore[return-value]  # checked above


# ------------------------------------------------------------------------- over the control socket

ControlMessage = StartRequest | StartResponse | ForkRequest
Message = TypeVar("Message", StartRequest, StartResponse, ForkRequest)


def send_message(peer: socket.socket, message: ControlMessage, fds: Sequence[int] = ()) -> None:
    content = {**dataclasses.asdict(message), "version": VERSION, "type": message.message_type}
    data = json.dumps(content).encode()
    packet = _LENGTH.pack(len(data)) + data
    # The descriptors go with the first byte that is sent; the rest follows without them.
    n_sent = socket.send_fds(peer, [packet], list(fds)) if fds else peer.send(packet)
    peer.sendall(packet[n_sent:])


def receive_message(
    peer: socket.socket, message_class: type[Message]
) -> tuple[Message, list[int]] | None:
    """Return the next message and its descriptors, None if the peer has closed the socket.

    Raises `InvalidFrame` for another type, another version or invalid content, `ConnectionError`
    if the peer ends in the middle of a message.
    """
    prefix, fds, _, _ = socket.recv_fds(peer, _LENGTH.size, _MAX_FDS)
    if not prefix:
        return None
    prefix += _receive_exactly(peer, _LENGTH.size - len(prefix))
    (length,) = _LENGTH.unpack(prefix)
    if length > _MAX_BYTES:
        raise InvalidFrame(f"a message of {length} bytes is too long")
    fields = _open_message(_receive_exactly(peer, length), message_class.message_type)
    message = message_class.read_fields(fields)
    fields.finish()
    return message, fds


def _open_message(data: bytes, message_type: str) -> Fields:
    try:
        fields = Fields(json.loads(data), message_type)
    except (ValueError, RecursionError) as error:
        raise InvalidFrame("the message is not JSON") from error
    if fields.integer("version") != VERSION:
        raise InvalidFrame(f"{message_type}: another version of the protocol")
    if fields.value("type") != message_type:
        raise InvalidFrame(f"another message than {message_type!r}")
    return fields


def _receive_exactly(peer: socket.socket, n_bytes: int) -> bytes:
    received = b""
    while len(received) < n_bytes:
        chunk = peer.recv(n_bytes - len(received))
        if not chunk:
            raise ConnectionError("the peer has closed the socket")
        received += chunk
    return received


# -------------------------------------------------------------------------- the supervisor's report


def exit_report_bytes(reason: ExitReason) -> bytes:
    content = {**dataclasses.asdict(reason), "version": VERSION, "type": "exit"}
    return json.dumps(content).encode()


def parse_exit_report(data: bytes) -> ExitReason:
    """Return what a supervisor reports. Raises `InvalidFrame`.

    >>> parse_exit_report(exit_report_bytes(ExitReason(kind="exit", exit_code=3))).exit_code
    3
    """
    fields = _open_message(data, "exit")
    kind = fields.text("kind")
    if kind not in get_args(ExitKind):
        raise InvalidFrame(f"{kind[:40]!r} is not a kind of exit")
    reason = ExitReason(
        kind=kind,  # type: ignore[arg-type]  # checked above
        detail=fields.text("detail"),
        exit_code=fields.optional_integer("exit_code", 255),
        signal=fields.optional_integer("signal", _MAX_SIGNAL),
        seconds=fields.number("seconds"),
        peak_bytes=fields.integer("peak_bytes"),
        idle_seconds=fields.number("idle_seconds"),
        is_self_inflicted=fields.boolean("is_self_inflicted"),
        cpu_seconds=fields.number("cpu_seconds"),
    )
    fields.finish()
    return reason
