"""The wire format between a client and a sandboxed process: a JSON header and raw buffers.

    4 bytes   length of the header, little endian
    4 bytes   length of the body
    header    JSON object; `sizes` lists the length of each buffer in the body
    body      the buffers, concatenated

Both lengths have a limit that is checked before anything is read.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import Any

MAX_HEADER = 1 << 20
MAX_BODY = 8 << 20
_LENGTHS = struct.Struct("<II")


class InvalidFrame(Exception):
    """A message that cannot be read: too long, truncated, not JSON, or with invalid content."""


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
    """Return a frame in its wire format."""
    sizes = [len(buffer) for buffer in frame.buffers]
    header = json.dumps({**frame.header, "sizes": sizes}).encode()
    return b"".join((_LENGTHS.pack(len(header), sum(sizes)), header, *frame.buffers))


def frame_lengths(prefix: bytes, max_body: int = MAX_BODY) -> tuple[int, int]:
    """Return the two lengths in the first eight bytes; raise `InvalidFrame` above the limits."""
    n_header, n_body = _LENGTHS.unpack(prefix)
    if n_header > MAX_HEADER or n_body > max_body:
        raise InvalidFrame(f"a frame of {n_header:,} + {n_body:,} bytes is too long")
    return n_header, n_body


def parse_frame(data: bytes, max_body: int = MAX_BODY) -> Frame:
    """Return the frame that `data` consists of; raise `InvalidFrame` if it is anything else."""
    if len(data) < _LENGTHS.size:
        raise InvalidFrame("the frame is truncated")
    n_header, n_body = frame_lengths(data[: _LENGTHS.size], max_body)
    if len(data) != _LENGTHS.size + n_header + n_body:
        raise InvalidFrame("the frame is truncated")
    body = data[_LENGTHS.size + n_header :]
    return _decode_frame(data[_LENGTHS.size : _LENGTHS.size + n_header], body)


def _decode_frame(header_bytes: bytes, body: bytes) -> Frame:
    try:
        header = json.loads(header_bytes)
        if b"\\ud" in header_bytes.lower():
            # A lone surrogate survives json.loads, and then fails wherever the text is encoded
            # (terminal, database). Replace it here, once.
            header = json.loads(json.dumps(header, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise InvalidFrame("the header is not JSON") from error
    sizes = header.pop("sizes", None) if isinstance(header, dict) else None
    # `type(n) is int` and not isinstance: True is an int as well.
    if not isinstance(sizes, list) or any(type(n) is not int or n < 0 for n in sizes):
        raise InvalidFrame("the header has no list of sizes")
    if sum(sizes) != len(body):
        raise InvalidFrame("the sizes do not add up to the body")
    buffers, start = [], 0
    for size in sizes:
        buffers.append(body[start : start + size])
        start += size
    return Frame(header, tuple(buffers))


def read_frame(fd: int, max_body: int = MAX_BODY) -> Frame | None:
    """Return the next frame of a pipe, None at the end of the pipe. Blocks until it is complete."""
    prefix = _read_exactly(fd, _LENGTHS.size, may_end=True)
    if prefix is None:
        return None
    n_header, n_body = frame_lengths(prefix, max_body)
    header, body = _read_exactly(fd, n_header), _read_exactly(fd, n_body)
    assert header is not None
    assert body is not None
    return _decode_frame(header, body)


def write_frame(fd: int, frame: Frame) -> None:
    """Write a complete frame to a pipe."""
    remaining = memoryview(frame_bytes(frame))
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]


def _read_exactly(fd: int, n_bytes: int, *, may_end: bool = False) -> bytes | None:
    chunks, n_missing = [], n_bytes
    while n_missing:
        chunk = os.read(fd, min(n_missing, 1 << 20))
        if not chunk:
            if may_end and n_missing == n_bytes:
                return None
            raise InvalidFrame("the frame is truncated")
        chunks.append(chunk)
        n_missing -= len(chunk)
    return b"".join(chunks)
