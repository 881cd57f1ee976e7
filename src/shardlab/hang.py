"""Patience with a limit: what takes longer fails with a message, and never sticks.

First the block is interrupted, which Python code allows. Code that never returns to Python (a loop
inside of a compiled program) cannot be interrupted; after a moment of grace `give_up` is called.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

GRACE = 3.0


class Hang(AssertionError):
    """A block that took longer than it was allowed."""


def _end_process(message: str) -> None:
    sys.stderr.write(f"\n{message}\n")
    sys.stderr.flush()
    os._exit(124)


@contextlib.contextmanager
def limited(
    seconds: float, what: str, *, give_up: Callable[[str], Any] = _end_process
) -> Iterator[None]:
    """Raise `Hang` in the block if it takes longer than `seconds`.

    Inside of another such block, or where another tool has set the alarm, or outside of the main
    thread, only the last resort is left: `give_up`, which ends the process.

    >>> import time
    >>> try:
    ...     with limited(0.05, "the nap"):
    ...         time.sleep(5)
    ... except Hang as hang:
    ...     print(str(hang)[:39])
    the nap took longer than 0.05 s and was
    """
    message = (
        f"{what} took longer than {seconds:g} s and was stopped. Look for a loop that does not "
        "end, or allow more time (shardlab_timeout)."
    )
    last_resort = threading.Timer(seconds + GRACE, give_up, [message])
    last_resort.daemon = True
    last_resort.start()
    try:
        with _interrupted(seconds, message):
            yield
    finally:
        last_resort.cancel()


@contextlib.contextmanager
def _interrupted(seconds: float, message: str) -> Iterator[None]:
    if not _may_set_alarm():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        __tracebackhide__ = True
        raise Hang(message)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _may_set_alarm() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )
