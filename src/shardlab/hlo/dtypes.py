"""XLA's words for dtypes, in JAX's spelling, and their sizes."""

from __future__ import annotations

import math
import re

from shardlab.hlo.module import Array

_KINDS = {"s": "int", "u": "uint", "f": "float", "c": "complex"}
_OTHERS = {"pred": ("bool", 8), "bf16": ("bfloat16", 16)}


def dtype_name(word: str) -> str:
    """Return JAX's name of a dtype.

    >>> dtype_name("bf16"), dtype_name("s32"), dtype_name("f8e4m3fn"), dtype_name("pred")
    ('bfloat16', 'int32', 'float8_e4m3fn', 'bool')
    """
    if word in _OTHERS:
        return _OTHERS[word][0]
    match = re.fullmatch(r"([sufc])(\d+)(e\w+)?", word)
    if not match:
        return word
    tail = f"_{match[3]}" if match[3] else ""
    return f"{_KINDS[match[1]]}{match[2]}{tail}"


def n_bytes(array: Array) -> int:
    """Return the bytes of an array; narrower than a byte are packed.

    >>> n_bytes(Array("bf16", (4, 8))), n_bytes(Array("s4", (3,))), n_bytes(Array("token", ()))
    (64, 2, 0)
    """
    return -(-math.prod(array.shape) * _bits(array.dtype) // 8)


def _bits(word: str) -> int:
    if word in _OTHERS:
        return _OTHERS[word][1]
    match = re.fullmatch(r"[sufc](\d+)(?:e\w+)?", word)
    return int(match[1]) if match else 0
