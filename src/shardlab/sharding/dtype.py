"""Dtypes: a name and the number of bits per element in device memory.

>>> parse_dtype("bf16")
Dtype(name='bfloat16', short='bf16', bits=16)
>>> parse_dtype("int4").n_bytes(3)
2
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidType, UnknownDtype, short_repr


@dataclass(frozen=True)
class Dtype:
    """A JAX dtype; `short` is its name in HLO text and jaxprs."""

    name: str
    short: str
    bits: int

    def n_bytes(self, n_elements: int) -> int:
        """Return the bytes of `n_elements` elements, packed: two int4 take one byte.

        Accelerators pack. NumPy and JAX's CPU backend use one byte per element, so
        `jax.Array.nbytes` of an int4 array on CPU is twice this.
        """
        return (n_elements * self.bits + 7) // 8

    def __str__(self) -> str:
        return self.name


def parse_dtype(dtype: Any) -> Dtype:
    """Return a dtype from its name, its short name, or a NumPy or JAX dtype or scalar type.

    >>> parse_dtype("f32") is parse_dtype("float32")
    True
    >>> parse_dtype("key<fry>").bits
    64
    """
    if isinstance(dtype, str):
        # Exact first: almost all calls pass a canonical name, and this runs once per tensor.
        match = _BY_NAME.get(dtype) or _BY_NAME.get(dtype.strip().lower())
        if match is None:
            raise _unknown_dtype_error(dtype)
        return match
    if isinstance(dtype, Dtype):
        return dtype
    return _convert_dtype_object(dtype)


def _convert_dtype_object(dtype: Any) -> Dtype:
    """Convert numpy.dtype('float32'), numpy.float32, jnp.float32 or a key dtype by its name."""
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


@lru_cache(maxsize=256)  # a file with one wrong dtype has it on thousands of tensors
def _suggest_dtype(name: str) -> str:
    nearest = nearest_name(name, _BY_NAME)
    return f" Did you mean {nearest!r}?" if nearest else ""


def _unknown_dtype_error(name: str) -> UnknownDtype:
    return UnknownDtype(
        f"Unknown dtype {name!r:.80}.{_suggest_dtype(name[:80])}",
        fix="a name such as 'bfloat16' or 'f32'.",
    )


def _build_dtype_table() -> dict[str, Dtype]:
    # XLA stores a predicate in one byte.
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
    # A key takes the bytes of its data: two uint32 for threefry2x32, four for rbg and unsafe_rbg.
    dtypes += [
        Dtype(f"key<{k}>", f"key<{k}>", b) for k, b in (("fry", 64), ("rbg", 128), ("urbg", 128))
    ]
    return {name: dtype for dtype in dtypes for name in (dtype.name, dtype.short)}


# Other common names: jaxprs print i32, NumPy has single, PyTorch checkpoints say fp16.
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
_BY_NAME = _build_dtype_table()
_BY_NAME.update({alias: _BY_NAME[name] for alias, name in _ALIASES.items()})
DTYPE_NAMES = tuple(_BY_NAME)  # every name and alias that `parse_dtype` accepts
