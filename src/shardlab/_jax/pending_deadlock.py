"""Raises a deadlock as `Deadlock`, not as the runtime error that JAX makes of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import jax

from shardlab.errors import Deadlock

# Raised in a callback, which JAX wraps; kept here so that it can be raised as it is.
pending_deadlocks: list[Deadlock] = []


@contextlib.contextmanager
def raise_pending_deadlock() -> Iterator[None]:
    """Within this block a deadlock is a `Deadlock`, not the runtime error that JAX makes of it."""
    pending_deadlocks.clear()
    try:
        yield
    except jax.errors.JaxRuntimeError:
        if pending_deadlocks:
            raise pending_deadlocks.pop().with_traceback(None) from None
        raise


def _is_news(record: logging.LogRecord) -> bool:
    """A deadlock reaches the person as an error; JAX's log of it would say everything twice."""
    return not (record.exc_info and isinstance(record.exc_info[1], Deadlock))


logging.getLogger("jax._src.debugging").addFilter(_is_news)
