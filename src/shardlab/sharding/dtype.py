"""The dtype: a name and how many bits an element takes in device memory.

>>> parse_dtype("bf16")
Dtype(name='bfloat16', short='bf16', bits=16)
>>> parse_dtype("int4").n_bytes(3)
2
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from shardlab.errors import InvalidType, UnknownDtype, short_repr


@dataclass(frozen=True)
class Dtype:
    """A JAX dtype by name; `short` is the name that HLO text and jaxprs print."""

    name: str
    short: str
    bits: int

    def n_bytes(self, n_elements: int) -> int:
        """Return the bytes of that many elements, packed: two int4 fill one byte.

        Accelerators pack. NumPy and JAX's CPU backend spend a whole byte on each, so
        `jax.Array.nbytes` of an int4 array on CPU is twice this.
        """
        return (n_elements * self.bits + 7) // 8

    def __str__(self) -> str:
        return self.name


def parse_dtype(dtype: Any) -> Dtype:
    """Return the dtype meant by a name, a short name, or a NumPy or JAX dtype or scalar type.

    >>> parse_dtype("f32") is parse_dtype("float32")
    True
    >>> parse_dtype("key<fry>").bits
    64
    """
    if isinstance(dtype, str):
        found = _BY_NAME.get(dtype) or _BY_NAME.get(dtype.strip().lower())
        if found is None:
            raise _unknown(dtype)
        return found
    if isinstance(dtype, Dtype):
        return dtype
    return _from_object(dtype)


def _from_object(dtype: Any) -> Dtype:
    """Read numpy.dtype('float32'), numpy.float32, jnp.float32 or a key dtype by its name."""
    name = getattr(dtype, "name", None)  # numpy.dtype, and JAX's key dtypes
    if not isinstance(name, str):
        inner = getattr(dtype, "dtype", None)  # jnp.float32, a JAX scalar type, carries a dtype
        name = getattr(inner, "name", None) or getattr(dtype, "__name__", None)
    if not isinstance(name, str):
        raise InvalidType(
            f"{short_repr(dtype)} is not a dtype.",
            fix='a name such as "bfloat16" or "bf16", or a dtype.',
        )
    return parse_dtype(name)


@lru_cache(maxsize=256)
def _closest(name: str) -> str:
    close = get_close_matches(name.lower(), _BY_NAME, n=1)
    return f"{close[0]!r}, the nearest name" if close else "a name such as 'bfloat16' or 'f32'"


def _unknown(name: str) -> UnknownDtype:
    return UnknownDtype(f"There is no dtype {name!r:.80}.", fix=f"{_closest(name[:80])}.")


def _table() -> dict[str, Dtype]:
    dtypes = [Dtype("bool", "pred", 8), Dtype("bfloat16", "bf16", 16)]
    dtypes += [Dtype(f"float{bits}", f"f{bits}", bits) for bits in (16, 32, 64)]
    dtypes += [Dtype(f"complex{bits}", f"c{bits}", bits) for bits in (64, 128)]
    for bits in (1, 2, 4, 8, 16, 32, 64):
        dtypes += [Dtype(f"int{bits}", f"s{bits}", bits), Dtype(f"uint{bits}", f"u{bits}", bits)]
    for kind in (
        "e3m4",
        "e4m3",
        "e4m3b11fnuz",
        "e4m3fn",
        "e4m3fnuz",
        "e5m2",
        "e5m2fnuz",
        "e8m0fnu",
    ):
        dtypes.append(Dtype(f"float8_{kind}", f"f8{kind}", 8))
    dtypes += [Dtype(f"float6_{kind}", f"f6{kind}", 6) for kind in ("e2m3fn", "e3m2fn")]
    dtypes.append(Dtype("float4_e2m1fn", "f4e2m1fn", 4))
    dtypes += [
        Dtype(f"key<{k}>", f"key<{k}>", b) for k, b in (("fry", 64), ("rbg", 128), ("urbg", 128))
    ]
    return {name: dtype for dtype in dtypes for name in (dtype.name, dtype.short)}


# Names that people use and JAX also understands somewhere: jaxprs print i32, NumPy has single.
_ALIASES = {
    **{f"i{bits}": f"int{bits}" for bits in (1, 2, 4, 8, 16, 32, 64)},
    "half": "float16",
    "single": "float32",
    "double": "float64",
    "bool_": "bool",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "key": "key<fry>",
    "csingle": "complex64",
    "cdouble": "complex128",
}
_BY_NAME = _table()
_BY_NAME.update({alias: _BY_NAME[name] for alias, name in _ALIASES.items()})
