"""A collective over an axis that the mesh does not have: said in words, with the nearest name."""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardlab.errors import UnboundAxis

_LIBRARIES = (
    "jax",
    "jaxlib",
    "flax",
    "shardlab._jax",
    "shardlab.simulator",
    "shardlab.tracing",
    "shardlab.analysis",
)


def explain_axis_errors(body: Callable[..., Any], sizes: Mapping[str, int]) -> Callable[..., Any]:
    """Return `body`, whose complaints about unknown axes name the axes there are.

    JAX answers a wrong name in some collectives with a bare AssertionError, which becomes an
    `UnboundAxis`; where it has words of its own they stay, with ours as a note.
    """

    @functools.wraps(body)
    def call(*args: Any) -> Any:
        try:
            return body(*args)
        except AssertionError as error:
            unknown = _unknown_axis(error, sizes)
            if unknown is None or str(error):
                raise
            raise _unbound(error, unknown, sizes) from None
        except (NameError, ValueError) as error:
            unknown = _unknown_axis(error, sizes)
            if unknown is not None and not isinstance(error, UnboundAxis):
                error.add_note(f"shardlab: {_advice(unknown, sizes)}")
            raise

    return call


def convert_axis_error(error: BaseException, sizes: Mapping[str, int]) -> UnboundAxis | None:
    """Return the bare AssertionError that JAX raises for an unknown axis, with words.

    Where it has words of its own, or is about something else, there is nothing to say.
    """
    if not isinstance(error, AssertionError) or str(error) or error.__traceback__ is None:
        return None
    unknown = _unknown_axis(error, sizes)
    if unknown is None:
        return None
    return _unbound(error, unknown, sizes).with_traceback(error.__traceback__)


def _unbound(error: BaseException, unknown: str, sizes: Mapping[str, int]) -> UnboundAxis:
    location, operation = _place(error)
    unbound = UnboundAxis(
        f"{operation} is over mesh axis '{unknown}', which this mesh does not have.",
        where="{}:{} ({})".format(*location) if location else "inside the body",
        fix=_advice(unknown, sizes),
    )
    unbound.axis, unbound.operation, unbound.location = unknown, operation, location
    return unbound


def _advice(unknown: str, sizes: Mapping[str, int]) -> str:
    mesh = ", ".join(f"{name}={size}" for name, size in sizes.items())
    close = difflib.get_close_matches(unknown, sizes, n=1, cutoff=0.5)
    return f"the mesh is {mesh}" + (f"; did you mean '{close[0]}'?" if close else ".")


def _frames(error: BaseException) -> Iterator[types.FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _unknown_axis(error: BaseException, sizes: Mapping[str, int]) -> str | None:
    """Return the axis name that the innermost frame was asked for and the mesh does not have."""
    innermost = list(_frames(error))[-1]
    if not _is_library(innermost):
        return None
    for key in ("axes", "axis_name", "named_axes"):
        names = innermost.f_locals.get(key, ())
        for name in names if isinstance(names, (tuple, list)) else (names,):
            if isinstance(name, str) and name not in sizes:
                return name
    return None


def _place(error: BaseException) -> tuple[tuple[str, int, str] | None, str]:
    """Return the person's own line, and the function of JAX that it called."""
    location, operation = None, "A collective"
    for frame in _frames(error):
        if not _is_library(frame):
            location = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            operation = "A collective"
        elif operation == "A collective" and not frame.f_code.co_name.startswith("_"):
            operation = frame.f_code.co_name
    return location, operation


def _is_library(frame: types.FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return any(module == name or module.startswith(f"{name}.") for name in _LIBRARIES)
