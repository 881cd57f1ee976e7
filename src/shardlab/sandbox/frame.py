"""One message: a JSON header and raw bytes, each with its length before it, and a cap on both.

4 bytes   length of the header, little endian
4 bytes   length of the body
header    JSON object; `sizes` lists how the body is divided into buffers
body      the buffers, one after the other
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_HEADER = 1 << 20
MAX_BODY = 8 << 20
_LENGTHS = struct.Struct("<II")


class InvalidFrame(Exception):
    """A message that is not one: too long, cut off, not JSON."""


@dataclass(frozen=True)
class Frame:
    """A header and its buffers.

    >>> frame = Frame({"case": 3}, (b"ab", b"c"))
    >>> parse_frame(frame_bytes(frame)) == frame
    True
    """

    header: dict[str, Any]
    buffers: tuple[bytes, ...] = ()


def frame_bytes(frame: Frame) -> bytes:
    """Return a frame as it travels."""
    sizes = [len(buffer) for buffer in frame.buffers]
    header = json.dumps({**frame.header, "sizes": sizes}).encode()
    return b"".join((_LENGTHS.pack(len(header), sum(sizes)), header, *frame.buffers))


def frame_lengths(start: bytes, max_body: int = MAX_BODY) -> tuple[int, int]:
    """Return the lengths that the first eight bytes announce; raise `InvalidFrame` beyond the caps."""
    n_header, n_body = _LENGTHS.unpack(start)
    if n_header > MAX_HEADER or n_body > max_body:
        raise InvalidFrame(f"a frame of {n_header:,} + {n_body:,} bytes is too long")
    return n_header, n_body


def parse_frame(data: bytes, max_body: int = MAX_BODY) -> Frame:
    """Return the frame that bytes hold, all of them."""
    if len(data) < _LENGTHS.size:
        raise InvalidFrame("the frame is cut off")
    n_header, n_body = frame_lengths(data[: _LENGTHS.size], max_body)
    if len(data) != _LENGTHS.size + n_header + n_body:
        raise InvalidFrame("the frame is cut off")
    body = data[_LENGTHS.size + n_header :]
    return _opened(data[_LENGTHS.size : _LENGTHS.size + n_header], body)


def _opened(header_bytes: bytes, body: bytes) -> Frame:
    try:
        header = json.loads(header_bytes)
        if b"\\ud" in header_bytes.lower():
            # Half a surrogate pair is text that can be neither printed nor stored.
            header = json.loads(json.dumps(header, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise InvalidFrame("the header is not JSON") from error
    sizes = header.pop("sizes", None) if isinstance(header, dict) else None
    if not isinstance(sizes, list) or any(type(n) is not int or n < 0 for n in sizes):
        raise InvalidFrame("the header has no list of sizes")
    if sum(sizes) != len(body):
        raise InvalidFrame("the sizes do not add up to the body")
    buffers, at = [], 0
    for size in sizes:
        buffers.append(body[at : at + size])
        at += size
    return Frame(header, tuple(buffers))


def read_frame(fd: int, max_body: int = MAX_BODY) -> Frame | None:
    """Return the next frame of a pipe; None at its end. Waits for it."""
    start = _read_exactly(fd, _LENGTHS.size, may_end=True)
    if start is None:
        return None
    n_header, n_body = frame_lengths(start, max_body)
    header, body = _read_exactly(fd, n_header), _read_exactly(fd, n_body)
    assert header is not None
    assert body is not None
    return _opened(header, body)


def write_frame(fd: int, frame: Frame) -> None:
    """Write a frame to a pipe, all of it."""
    view = memoryview(frame_bytes(frame))
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, n_bytes: int, *, may_end: bool = False) -> bytes | None:
    parts, missing = [], n_bytes
    while missing:
        chunk = os.read(fd, min(missing, 1 << 20))
        if not chunk:
            if may_end and missing == n_bytes:
                return None
            raise InvalidFrame("the frame is cut off")
        parts.append(chunk)
        missing -= len(chunk)
    return b"".join(parts)


Buffers = Sequence[bytes]
