"""What a supervisor measures, in a file that its client can read at any time.

An anonymous file of fixed size: the supervisor writes to it, the client reads it, and the sandboxed
process never has its descriptor. So the client knows the processor time of a process that is still
running, and the rejected system calls of one that ended well, without a message that could wait.

>>> fd = create_usage_file()
>>> record = UsageRecord(fd)
>>> record.write_figures(cpu_seconds=1.5, peak_bytes=4096)
>>> record.count_rejected_call(41), record.count_rejected_call(41)
(1, 2)
>>> read_usage(fd)
ProcessUsage(cpu_seconds=1.5, peak_bytes=4096, rejected_calls={41: 2})
>>> os.close(fd)
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field

_FIGURES = struct.Struct("<dQ")
_COUNT = struct.Struct("<I")
_MAX_CALLS = 512  # numbers of system calls; a larger one counts as the last
_MAX_COUNT = (1 << 32) - 1
_N_BYTES = _FIGURES.size + _MAX_CALLS * _COUNT.size


@dataclass(frozen=True)
class ProcessUsage:
    """The resources that a process has used so far."""

    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    rejected_calls: Mapping[int, int] = field(default_factory=dict)  # count by number of the call


def create_usage_file() -> int:
    """Return the descriptor of an empty record, in memory where the system can do that."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("usage", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp()
        os.unlink(path)
    os.truncate(fd, _N_BYTES)
    return fd


class UsageRecord:
    """The writing side of a record."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._counts: dict[int, int] = {}

    def write_figures(self, cpu_seconds: float, peak_bytes: int) -> None:
        os.pwrite(self._fd, _FIGURES.pack(cpu_seconds, peak_bytes), 0)

    def count_rejected_call(self, number: int) -> int:
        """Add one call, and return how many there were of it."""
        index = min(max(number, 0), _MAX_CALLS - 1)
        count = min(self._counts.get(index, 0) + 1, _MAX_COUNT)
        self._counts[index] = count
        os.pwrite(self._fd, _COUNT.pack(count), _FIGURES.size + index * _COUNT.size)
        return count


def read_usage(fd: int) -> ProcessUsage:
    """Return what was written so far."""
    data = os.pread(fd, _N_BYTES, 0).ljust(_N_BYTES, b"\0")
    cpu_seconds, peak_bytes = _FIGURES.unpack_from(data)
    counts = [count for (count,) in _COUNT.iter_unpack(data[_FIGURES.size :])]
    return ProcessUsage(
        cpu_seconds=cpu_seconds,
        peak_bytes=peak_bytes,
        rejected_calls={number: count for number, count in enumerate(counts) if count},
    )
