"""How long a process has been idle: evidence of a hang that does not depend on the machine's speed.

A process that computes, or that waits for a processor on a loaded machine, is not idle, however
slow it is. Linux counts both for each thread (`/proc/PID/task/*/schedstat`): nanoseconds on a
processor, and nanoseconds ready to run without one. A process that is blocked in a collective, in a
lock or in a read does neither.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

# A blocked JAX process still answers heartbeats: about a thousandth of a processor. While it is
# ready to run for that, it waits longer on a loaded machine, so waiting counts only if it is much.
_BUSY_SHARE = 0.02
_WAITING_SHARE = 0.5


@dataclass(frozen=True)
class ActivitySample:
    """Counters of a process at one moment, by thread."""

    seconds: float  # of time.monotonic
    on_processor: float
    ready_to_run: dict[int, float] = field(default_factory=dict)
    # How often the main thread waited for something: it counts up in a download, not in a lock.
    main_thread_waits: int = 0


def sample_activity(pid: int | None = None, without_thread: int | None = None) -> ActivitySample:
    """Return the counters of a process; of this one without a `pid`."""
    tasks = Path(f"/proc/{pid or 'self'}/task")
    if not tasks.is_dir():  # not Linux: processor time alone
        return ActivitySample(time.monotonic(), time.process_time())
    on_processor, ready = 0.0, dict[int, float]()
    for name in _list_folder(tasks):
        if int(name) == without_thread:
            continue
        # A thread may end while it is read.
        with contextlib.suppress(OSError, ValueError):
            running, waiting, _ = (tasks / name / "schedstat").read_text().split()
            on_processor += int(running) / 1e9
            ready[int(name)] = int(waiting) / 1e9
    main_thread = pid or os.getpid()
    return ActivitySample(time.monotonic(), on_processor, ready, _count_waits(tasks, main_thread))


def is_active(before: ActivitySample, after: ActivitySample, *, with_waits: bool) -> bool:
    """Return whether a process made progress between two samples.

    With `with_waits` it also counts that the main thread waited for something and went on.
    """
    elapsed = max(after.seconds - before.seconds, 1e-9)
    if (after.on_processor - before.on_processor) / elapsed >= _BUSY_SHARE:
        return True
    longest_wait = max(
        (
            seconds - before.ready_to_run.get(thread, 0.0)
            for thread, seconds in after.ready_to_run.items()
        ),
        default=0.0,
    )
    if longest_wait / elapsed >= _WAITING_SHARE:
        return True
    return with_waits and after.main_thread_waits != before.main_thread_waits


def process_state(pid: int) -> str:
    """Return the letter of a process's state in /proc ('T' is stopped); '' if there is none."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    return ""


def _count_waits(tasks: Path, thread: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in (tasks / str(thread) / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                return int(line.split()[1])
    return 0


def _list_folder(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []
