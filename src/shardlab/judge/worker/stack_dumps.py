"""Where a worker was when its time was up. Loads no JAX, because not every worker has it."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import time
from collections.abc import Iterator

from shardlab.judge.protocol.requests import StackDumps

_MIN_CPU_SECONDS = 0.1


@contextlib.contextmanager
def dump_stacks(stack_dumps: StackDumps) -> Iterator[None]:
    """Print the line that is executed shortly before a time limit is reached, and on a crash.

    It goes to the output, which the client still has when the process is gone. There is a timer for
    each clock: on a busy machine an endless loop reaches the limit of processor time long after a
    timer on the wall clock, which may have found it somewhere else.
    """
    if stack_dumps.wall_seconds:
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # output closed, no thread
            faulthandler.enable(file=2)
            faulthandler.dump_traceback_later(stack_dumps.wall_seconds, file=2)
    if stack_dumps.cpu_seconds:
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            # Written in C: works while the interpreter is inside of XLA, too.
            faulthandler.register(signal.SIGPROF, file=2)
            remaining = max(stack_dumps.cpu_seconds - time.process_time(), _MIN_CPU_SECONDS)
            signal.setitimer(signal.ITIMER_PROF, remaining)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
