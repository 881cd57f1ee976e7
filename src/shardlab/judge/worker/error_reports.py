"""Exceptions of a submission as data: type and message, the submission's line, what it means."""

from __future__ import annotations

import re
import traceback

import jax

from shardlab._jax import explicit_axes
from shardlab.errors import LabError
from shardlab.judge.protocol.reports import ExceptionReport
from shardlab.judge.submission_source import SUBMISSION_FILE

_MAX_MESSAGE = 4000


class SubmissionError(Exception):
    """A property of a submission because of which it cannot be judged."""

    def __init__(self, family: str, what: str, fix: str) -> None:
        super().__init__(what)
        self.family, self.what, self.fix = family, what, fix


_TRACED = "The judge traces the submission with arrays that have no values yet, as jax.jit does"

_LEAKED = (
    "An array of one traced function is used outside of it: stored in a list, a global or an "
    "attribute.",
    "return it from the function instead.",
)

# What JAX raises -> family, what it means, what to try. The first match counts: the second is a
# subclass of the fourth.
_BY_TYPE: tuple[tuple[type[Exception], str, str, str], ...] = (
    (
        jax.errors.TracerArrayConversionError,
        "numpy_round_trip",
        f"A JAX array is converted to a NumPy array. {_TRACED}, and on many devices this would "
        "gather the full array on the host.",
        "use jax.numpy instead of NumPy for arrays that come from the arguments.",
    ),
    (
        jax.errors.TracerBoolConversionError,
        "branch_on_value",
        f"Python branches on the value of an array (if, while, and, or, not). {_TRACED}.",
        "use jnp.where or jax.lax.cond to branch, jax.lax.fori_loop or jax.lax.scan to loop.",
    ),
    (
        jax.errors.TracerIntegerConversionError,
        "value_in_python",
        f"The value of an array is used as a Python number. {_TRACED}.",
        "take sizes from .shape and mesh.shape, or index with jax.lax.dynamic_slice.",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "value_in_python",
        f"The value of an array is used as a Python number. {_TRACED}.",
        "leave it an array (no int(), float() or .item()); take sizes from .shape and mesh.shape.",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "shape_by_value",
        f"The shape of a result depends on the values of an array. {_TRACED}.",
        "use a mask of the same shape: jnp.where(mask, x, 0).",
    ),
    (jax.errors.UnexpectedTracerError, "leaked", *_LEAKED),
)


def leaked_tracer_error() -> SubmissionError:
    """Return the error for an array of another trace, if JAX itself does not detect it."""
    return SubmissionError("leaked", *_LEAKED)


def report_exception(error: BaseException) -> ExceptionReport:
    """Return an exception as data, with the last line of the submission in its traceback."""
    family, explanation, fix = _explain_exception(error)
    return ExceptionReport(
        exception_type=type(error).__name__,
        message=_exception_message(error)[:_MAX_MESSAGE],
        line=submission_line(error),
        base_types=tuple(base.__name__ for base in type(error).__mro__),
        family=family,
        what=explanation,
        fix=fix,
    )


# JAX names the file of a function in some messages; the judge's wrapper is of no use to a learner.
_OWN_LOCATION = re.compile(r" at \S*[/\\]shardlab[/\\]judge[/\\]worker[/\\]\S+?:\d+")


def _exception_message(error: BaseException) -> str:
    return error.what if isinstance(error, LabError) else _OWN_LOCATION.sub("", str(error))


def _explain_exception(error: BaseException) -> tuple[str, str, str]:
    """Return the family of an exception, what it means and what to try; empty if unknown."""
    if isinstance(error, SubmissionError):
        return error.family, error.what, error.fix
    if isinstance(error, LabError):
        return "lab", error.what, error.fix or ""
    if isinstance(error, SystemExit):
        return "exit", "The submission ends the process (sys.exit).", "return a result instead."
    if isinstance(error, KeyboardInterrupt):
        return (
            "interrupt",
            "The submission raises KeyboardInterrupt.",
            "raise an exception such as ValueError, or return a result.",
        )
    # Before the types: a callback raises a plain ValueError, and so do many others.
    by_message = _explain_message(str(error))
    if by_message[0]:
        return by_message
    if explicit_axes.is_explicit_axes_error(error):
        return "explicit_axes", explicit_axes.EXPLANATION, explicit_axes.FIX
    for exception_type, *explanation in _BY_TYPE:
        if isinstance(error, exception_type):
            family, meaning, fix = explanation
            return family, meaning, fix
    return "", "", ""


_CALLBACK = (
    "callback",
    "The program calls back into Python while it runs (jax.pure_callback, "
    "jax.experimental.io_callback). The judge runs it in another process, without the submission's "
    "Python.",
    "compute it with jax.numpy; to see a value, use jax.debug.print.",
)
# JAX has no exception type for these; parts of its message that have been stable (0.10 to 0.11).
_BY_MESSAGE = (
    (("host_callbacks",), _CALLBACK),
    (("xla_ffi_python",), _CALLBACK),
    (
        ("is not available on traced array",),
        (
            "not_while_traced",
            f"The submission reads a property that only a computed array has. {_TRACED}.",
            "do without .sharding, .addressable_shards and .block_until_ready(); the judge itself "
            "inspects the shards of every device.",
        ),
    ),
    (
        ("Mesh", "abstract array"),
        (
            "mesh_is_traced",
            "A mesh is passed to a jax.jit as if it were an array.",
            "declare it static, @partial(jax.jit, static_argnames='mesh'), or call jax.jit inside "
            "of the function.",
        ),
    ),
)


def _explain_message(message: str) -> tuple[str, str, str]:
    for phrases, explanation in _BY_MESSAGE:
        if all(phrase.lower() in message.lower() for phrase in phrases):
            return explanation
    return "", "", ""


def submission_line(error: BaseException) -> int | None:
    """Return the last line of the submission in an exception's traceback."""
    if isinstance(error, SyntaxError) and error.filename == SUBMISSION_FILE:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == SUBMISSION_FILE]
    return lines[-1] if lines else None
