"""Where a traced value comes from: words that JAX seeks for errors, some of which nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jax._src.interpreters.partial_eval import DynamicJaxprTracer


@contextmanager
def skip_tracer_origins() -> Iterator[None]:
    """Let errors about traced values not say where in the program these come from.

    To find that out JAX goes through the whole program. Flax asks each value for a sharding that it
    has not, and drops the error: making a model of many layers would take the square of its length
    (JAX 0.10 with Flax 0.12; JAX 0.12 no longer seeks).
    """
    original = DynamicJaxprTracer._origin_msg
    DynamicJaxprTracer._origin_msg = lambda self: ""
    try:
        yield
    finally:
        DynamicJaxprTracer._origin_msg = original
