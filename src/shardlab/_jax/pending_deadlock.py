"""Raises a deadlock as `Deadlock`, not as the runtime error in which JAX wraps it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import jax

from shardlab.errors import Deadlock

# Raised inside a host callback. JAX turns that into a JaxRuntimeError with only the text, so the
# exception itself is kept here.
pending_deadlocks: list[Deadlock] = []


@contextlib.contextmanager
def raise_pending_deadlock() -> Iterator[None]:
    """Within this block a deadlock is raised as `Deadlock`."""
    pending_deadlocks.clear()
    try:
        yield
    except jax.errors.JaxRuntimeError:
        if pending_deadlocks:
            raise pending_deadlocks.pop().with_traceback(None) from None
        raise


def _is_not_deadlock(record: logging.LogRecord) -> bool:
    """Drop JAX's log of the callback error: the user gets the same text as an exception."""
    return not (record.exc_info and isinstance(record.exc_info[1], Deadlock))


logging.getLogger("jax._src.debugging").addFilter(_is_not_deadlock)
