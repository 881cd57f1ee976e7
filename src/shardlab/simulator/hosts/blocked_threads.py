"""Whether the threads of this process could still do something, read from where they stand.

A thread is blocked if its innermost Python frame waits, without a time limit, in a function of the
standard library for another thread: `Condition.wait` (also below events, queues and futures),
`Thread.join`, the idle worker of a thread pool, an event loop without timers. Everything else, also
`time.sleep` and input, may go on.

A thread that was just woken still stands in that frame until it gets the interpreter lock. So the
threads are looked at twice, with the lock released in between, and the second time the operating
system must not see them as runnable.
"""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import FrameType

# Long enough for each thread that waits for the interpreter lock to get it; not a time limit.
_LOCK_RELEASED_S = 0.01
_STDLIB_FILES = {
    "threading": threading.__file__,
    "selectors": str(Path(threading.__file__).with_name("selectors.py")),
    "pool": str(Path(threading.__file__).parent / "concurrent" / "futures" / "thread.py"),
}


def others_are_blocked(waiting: Collection[int], ignored: Collection[int]) -> bool:
    """Return whether all threads but the `ignored` are blocked; those in `waiting` are."""
    first = _positions(waiting, ignored)
    if first is None:
        return False
    time.sleep(_LOCK_RELEASED_S)
    return _positions(waiting, ignored) == first and not any(map(_is_runnable, first))


def _positions(
    waiting: Collection[int], ignored: Collection[int]
) -> dict[int, tuple[int, int]] | None:
    """Return where each blocked thread stands; None if one of them is not blocked."""
    positions = {}
    for thread, frame in sys._current_frames().items():
        if thread in ignored:
            continue
        if thread not in waiting and not _is_blocked_frame(frame):
            return None
        positions[thread] = id(frame), frame.f_lasti
    return positions


def _is_blocked_frame(frame: FrameType) -> bool:
    file, name, values = frame.f_code.co_filename, frame.f_code.co_name, frame.f_locals
    if file == _STDLIB_FILES["threading"]:
        if name == "wait":  # Condition.wait: notify() releases the lock `waiter`
            return values.get("timeout") is None and values["waiter"].locked()
        if name == "_wait_for_tstate_lock":  # Thread.join before Python 3.13
            return bool(values.get("timeout", -1) in (-1, None))
        return name == "join" and values.get("timeout") is None
    if file == _STDLIB_FILES["pool"]:
        return name == "_worker" and values["work_queue"].empty()
    if file == _STDLIB_FILES["selectors"]:
        return name == "select" and values.get("timeout") in (None, -1) and not _has_input(values)
    return False


def _has_input(values: dict[str, object]) -> bool:
    files = list(getattr(values["self"], "get_map", dict)() or ())
    return bool(select.select(files, [], [], 0)[0]) if files else False


def _is_runnable(thread: int) -> bool:
    """Return whether Linux runs this thread or would; elsewhere its position has to do."""
    natives = {t.ident: t.native_id for t in threading.enumerate()}
    try:
        text = Path(f"/proc/self/task/{natives.get(thread)}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] == "R"
