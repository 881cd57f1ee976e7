"""What the judge asks of the zygote: one JSON object and some descriptors, over a socket."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
_MAX_BYTES = 1 << 20
_MAX_FDS = 8


def send_errand(to: socket.socket, errand: dict[str, Any], fds: Sequence[int] = ()) -> None:
    data = json.dumps(errand).encode()
    message = _LENGTH.pack(len(data)) + data
    sent = socket.send_fds(to, [message], list(fds)) if fds else to.send(message)
    to.sendall(message[sent:])


def receive_errand(on: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next errand and its descriptors; None when the other side is gone."""
    start, fds, _, _ = socket.recv_fds(on, _LENGTH.size, _MAX_FDS)
    if not start:
        return None
    start += _exactly(on, _LENGTH.size - len(start))
    (length,) = _LENGTH.unpack(start)
    if length > _MAX_BYTES:
        raise ConnectionError(f"an errand of {length} bytes")
    errand: dict[str, Any] = json.loads(_exactly(on, length))
    return errand, fds


def _exactly(on: socket.socket, n_bytes: int) -> bytes:
    parts = b""
    while len(parts) < n_bytes:
        chunk = on.recv(n_bytes - len(parts))
        if not chunk:
            raise ConnectionError("the other side is gone")
        parts += chunk
    return parts
