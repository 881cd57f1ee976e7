"""Array shapes: parsed from text or sequences, with a check of every size.

>>> parse_array("4096x16384:bf16")
((4096, 16384), Dtype(name='bfloat16', short='bf16', bits=16))
>>> parse_array("f32[8,6]")[0], parse_array("8,6")[0], parse_array("()")[0]
((8, 6), (8, 6), ())
>>> parse_size(-2, "dimension 0")
Traceback (most recent call last):
    ...
shardlab.errors.InvalidSize: [layout.invalid_size] The size of dimension 0 is -2.
  try:   a size of 0 or more.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from shardlab._text.scanner import Scanner, syntax_error
from shardlab.errors import InvalidSize, InvalidType, UnknownDtype, short_repr
from shardlab.sharding.dtype import Dtype, parse_dtype

# Python integers are unbounded, so arithmetic is exact far beyond any array. The limit keeps
# products printable and fast; it is above 2**70, which JAX accepts as a size.
_SIZE_LIMIT = 1 << 128


def parse_size(size: Any, owner: str, *, at_least: int = 0, where: str = "") -> int:
    """Return `size` as an int; `owner` names the dimension or mesh axis in the error.

    Anything with `__index__` is accepted: NumPy integers are, 8.0 is not.
    """
    try:
        number = operator.index(size)
    except TypeError:
        raise InvalidType(
            f"The size of {owner} is {short_repr(size)}, a {type(size).__name__}.",
            where=where,
            fix="an integer, such as 8.",
        ) from None
    if at_least <= number < _SIZE_LIMIT:
        return number
    number_text = (
        number if abs(number) < _SIZE_LIMIT else f"an integer of {number.bit_length():,} bits"
    )
    limit = f"a size of {at_least} or more" if number < at_least else "a size below 2**128"
    raise InvalidSize(f"The size of {owner} is {number_text}.", where=where, fix=f"{limit}.")


_EXAMPLE = "write sizes and a dtype, such as 4096x16384:bf16, or bf16[4096,16384]."
_BRACKETED = re.compile(r"\s*([\w<>]+)\s*(\[[^\]]*\])\s*")
_UNCLOSED = re.compile(r"\s*[\w<>]+\s*\[[^\]]*")


def parse_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape from text, one size, or several sizes.

    >>> parse_shape("8x6"), parse_shape((8, 6)), parse_shape(8)
    ((8, 6), (8, 6), (8,))
    """
    # The common case first, without a call per size: a search makes layouts by the thousand.
    if isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape):
        return _check_upper_bounds(shape)
    if isinstance(shape, str):
        return _parse_shape_text(shape)
    if not isinstance(shape, Iterable):
        shape = (shape,) if hasattr(shape, "__index__") else shape
        if not isinstance(shape, tuple):
            raise InvalidType(
                f"{short_repr(shape)} is not a shape.", fix='sizes such as (8, 6), or "8x6".'
            )
    sizes = tuple(shape)
    where = f"shape {_sizes_text(sizes)}"
    return tuple(parse_size(n, f"dimension {i}", where=where) for i, n in enumerate(sizes))


@lru_cache(maxsize=1024)
def parse_array(source: str) -> tuple[tuple[int, ...], Dtype]:
    """Return the shape and dtype of text such as `8x6:f32`; the default dtype is float32."""
    if bracketed := _BRACKETED.fullmatch(source):
        return _parse_shape_text(bracketed[2]), _parse_marked_dtype(source, *bracketed.span(1))
    if _UNCLOSED.fullmatch(source):
        end = len(source.rstrip())
        raise syntax_error(
            "']' is missing at the end.", source, end, end + 1, kind="array", fix=_EXAMPLE
        )
    # A shape contains no colon, so the first one starts the dtype.
    head, colon, _ = source.partition(":")
    if not colon:
        return _parse_shape_text(source), parse_dtype("float32")
    return _parse_shape_text(head), _parse_marked_dtype(source, len(head) + 1, len(source))


def _parse_marked_dtype(source: str, start: int, stop: int) -> Dtype:
    try:
        return parse_dtype(source[start:stop])
    except UnknownDtype as error:
        raise syntax_error(
            error.what, source, start, max(stop, start + 1), kind="array", fix=error.fix
        ) from None


@lru_cache(maxsize=4096)
def _parse_shape_text(source: str) -> tuple[int, ...]:
    text = Scanner(source, kind="shape")
    closing = ")" if text.take("(") else "]" if text.take("[") else ""
    sizes: list[int] = []
    while not text.at_end and not (closing and text.next_is(closing)):
        if (size := text.take_int()) is None:
            raise text.error("A size was expected here.", fix=_EXAMPLE)
        sizes.append(parse_size(size, f"dimension {len(sizes)}", where=f"shape {source}"))
        if text.take(","):  # a trailing comma is allowed, as in Python's (8,)
            continue
        crossed = text.take("x") or text.take("×") or text.take("*")
        if crossed and text.at_end:
            raise text.error("A size was expected here.", fix=_EXAMPLE)
        if not crossed and not text.at_end and not (closing and text.next_is(closing)):
            raise text.error("'x' or ',' was expected here.", fix=_EXAMPLE)
    if closing and not text.take(closing):
        raise text.error(f"{closing!r} was expected here.", fix=_EXAMPLE)
    if not text.at_end or (not sizes and not closing):
        raise text.error("A size was expected here.", fix=_EXAMPLE)
    return tuple(sizes)


def _check_upper_bounds(shape: tuple[int, ...]) -> tuple[int, ...]:
    for dim, size in enumerate(shape):
        if size >> 128:
            parse_size(size, f"dimension {dim}", where=f"shape {_sizes_text(shape)}")
    return shape


def _sizes_text(sizes: tuple[Any, ...]) -> str:
    """Return the sizes as text; those with too many digits for Python to print as `…`."""
    parts = ["…" if isinstance(n, int) and n.bit_length() > 400 else repr(n) for n in sizes]
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
