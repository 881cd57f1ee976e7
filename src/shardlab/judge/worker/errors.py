"""An exception of an answer as data: its own words, the answer's line, and what it means here.

`family` says what it is about, for programs; `what` and `fix` are our words, where we have some.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

import jax

from shardlab.errors import LabError

ANSWER = "answer.py"
_MOST_WORDS = 4000


class AnswerError(Exception):
    """Something about an answer that keeps it from being judged."""

    def __init__(self, family: str, what: str, fix: str) -> None:
        super().__init__(what)
        self.family, self.what, self.fix = family, what, fix


_TRACED = "The judge traces the answer with arrays whose values are not known yet, as jax.jit does"

_LEAKED = (
    "An array of one traced function is used outside of it: kept in a list, a global or an "
    "attribute.",
    "return it from the function instead.",
)

# What JAX raises -> family, what it means, what to try. The first that fits counts.
_MEANS: tuple[tuple[type[Exception], str, str, str], ...] = (
    (
        jax.errors.TracerArrayConversionError,
        "numpy_round_trip",
        f"A JAX array was turned into a NumPy array. {_TRACED}, and on many devices this would "
        "gather the whole array on the host.",
        "stay in JAX: use jax.numpy instead of NumPy for arrays that come from the arguments.",
    ),
    (
        jax.errors.TracerBoolConversionError,
        "branch_on_value",
        f"Python decides by the value of an array (if, while, and, or, not). {_TRACED}.",
        "choose with jnp.where or jax.lax.cond, repeat with jax.lax.fori_loop or jax.lax.scan.",
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
        "keep it an array (leave out int(), float() and .item()); take sizes from .shape and "
        "mesh.shape.",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "shape_by_value",
        f"The shape of a result depends on the values of an array. {_TRACED}.",
        "keep the shape and mask: jnp.where(mask, x, 0).",
    ),
    (jax.errors.UnexpectedTracerError, "leaked", *_LEAKED),
)


def leaked() -> AnswerError:
    """Return the error for an array of another trace, where JAX itself does not see it."""
    return AnswerError("leaked", *_LEAKED)


def told(error: BaseException) -> dict[str, Any]:
    """Return an exception as text, with the last line of the answer that it came through."""
    family, what, fix = _meant(error)
    return {
        "kind": type(error).__name__,
        "words": _words(error)[:_MOST_WORDS],
        "line": line_of(error),
        "parents": [kind.__name__ for kind in type(error).__mro__],
        "family": family,
        "what": what,
        "fix": fix,
    }


# Where JAX names the function that the judge wraps around an answer.
_OUR_PLACE = re.compile(r" at \S*[/\\]shardlab[/\\]cell[/\\]\S+?:\d+")


def _words(error: BaseException) -> str:
    return error.what if isinstance(error, LabError) else _OUR_PLACE.sub("", str(error))


def _meant(error: BaseException) -> tuple[str, str, str]:
    if isinstance(error, AnswerError):
        return error.family, error.what, error.fix
    if isinstance(error, LabError):
        return "lab", error.what, error.fix or ""
    if isinstance(error, SystemExit):
        return "exit", "The answer ends the process (sys.exit).", "return a result instead."
    by_words = _by_words(str(error))
    if by_words[0]:
        return by_words
    for kind, *means in _MEANS:
        if isinstance(error, kind):
            family, what, fix = means
            return family, what, fix
    return "", "", ""


_CALLBACK = (
    "callback",
    "The program calls back into Python while it runs (jax.debug.print, jax.pure_callback, "
    "jax.experimental.io_callback). The judge runs it in another process, without the answer's "
    "Python.",
    "take the callback out for judging; the answer can still be tried on its own machine.",
)
_OF_WORDS = (
    (("host_callbacks",), _CALLBACK),
    (("xla_ffi_python",), _CALLBACK),
    (
        ("is not available on traced array",),
        (
            "not_while_traced",
            f"The answer asks an array for what only one that was computed has. {_TRACED}.",
            "do without .sharding, .addressable_shards and .block_until_ready(); the judge looks "
            "at what every device holds.",
        ),
    ),
    (
        ("Mesh", "abstract array"),
        (
            "mesh_is_traced",
            "A jax.jit was given a mesh as if it were an array.",
            "name it as static, @partial(jax.jit, static_argnames='mesh'), or put the jit inside "
            "of the function.",
        ),
    ),
)


def _by_words(words: str) -> tuple[str, str, str]:
    for parts, means in _OF_WORDS:
        if all(part.lower() in words.lower() for part in parts):
            return means
    return "", "", ""


def line_of(error: BaseException) -> int | None:
    """Return the last line of the answer that an exception came through."""
    if isinstance(error, SyntaxError) and error.filename == ANSWER:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == ANSWER]
    return lines[-1] if lines else None
