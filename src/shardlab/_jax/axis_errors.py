"""Explains a collective over a mesh axis that does not exist, and suggests the nearest name."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnboundAxis
from shardlab.sharding.mesh import mesh_text

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
    """Return `body` with errors about unknown axes that list the axes of the mesh.

    JAX raises a bare AssertionError for a wrong name in some collectives (psum, pmax, ppermute in
    0.10); that becomes an `UnboundAxis`. If JAX has a message of its own it stays, with ours as a
    note.
    """

    # `tracing.rejected_programs` finds the mesh axes in this frame by the name `sizes`.
    @functools.wraps(body)
    def call_body(*args: Any) -> Any:
        try:
            return body(*args)
        except AssertionError as error:
            unknown = _unknown_axis(error, sizes)
            if unknown is None or str(error):
                raise
            raise _unbound_axis_error(error, unknown, sizes) from None
        except (NameError, ValueError) as error:
            unknown = _unknown_axis(error, sizes)
            if unknown is not None and not isinstance(error, UnboundAxis):
                error.add_note(f"shardlab: {_suggestion(unknown, sizes)}")
            raise

    return call_body


def convert_axis_error(error: BaseException, sizes: Mapping[str, int]) -> UnboundAxis | None:
    """Return an `UnboundAxis` for the bare AssertionError that JAX raises for an unknown axis.

    None if the error has a message of its own, or is about something else.
    """
    if not isinstance(error, AssertionError) or str(error) or error.__traceback__ is None:
        return None
    unknown = _unknown_axis(error, sizes)
    if unknown is None:
        return None
    return _unbound_axis_error(error, unknown, sizes).with_traceback(error.__traceback__)


def _unbound_axis_error(
    error: BaseException, unknown: str, sizes: Mapping[str, int]
) -> UnboundAxis:
    location, operation = _user_call(error)
    unbound = UnboundAxis(
        f"{operation} is over mesh axis '{unknown}', which this mesh does not have.",
        where="{}:{} ({})".format(*location) if location else "inside the body",
        fix=_suggestion(unknown, sizes),
    )
    unbound.axis, unbound.operation, unbound.location = unknown, operation, location
    return unbound


def _suggestion(unknown: str, sizes: Mapping[str, int]) -> str:
    nearest = nearest_name(unknown, sizes)
    suggestion = f" Did you mean '{nearest}'?" if nearest else ""
    return f"the mesh is {mesh_text(sizes.items())}.{suggestion}"


def _traceback_frames(error: BaseException) -> Iterator[types.FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _unknown_axis(error: BaseException, sizes: Mapping[str, int]) -> str | None:
    """Return the axis name in the innermost frame that the mesh does not have."""
    innermost = list(_traceback_frames(error))[-1]
    if not _is_library_frame(innermost):
        return None
    # The bare AssertionError says nothing; the axes are locals of the function that raised it.
    for variable in ("axes", "axis_name", "named_axes"):
        names = innermost.f_locals.get(variable, ())
        for name in names if isinstance(names, (tuple, list)) else (names,):
            if isinstance(name, str) and name not in sizes:
                return name
    return None


def _user_call(error: BaseException) -> tuple[tuple[str, int, str] | None, str]:
    """Return the user's line, and the JAX function that it called."""
    location, operation = None, "A collective"
    for frame in _traceback_frames(error):
        if not _is_library_frame(frame):
            location = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            operation = "A collective"
        elif operation == "A collective" and not frame.f_code.co_name.startswith("_"):
            operation = frame.f_code.co_name
    return location, operation


def _is_library_frame(frame: types.FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return any(module == name or module.startswith(f"{name}.") for name in _LIBRARIES)
