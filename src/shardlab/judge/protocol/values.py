"""Python values to JSON and buffers, and back: numbers, text, containers, arrays, specs, slices.

A tag keeps the type of a container, because JSON has no tuples and no dicts with other keys:

>>> pack_value({(0, 1): (slice(0, 4), True)})[0]
{'$dict': [[{'$tuple': [0, 1]}, {'$tuple': [{'$slice': [0, 4, None]}, True]}]]}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from shardlab.errors import LabError
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sharding.spec import Spec

# Never `object`: bytes from a sandboxed process must not become anything but numbers.
DTYPES = {
    **{name: np.dtype(name) for name in ("bool", "float16", "float32", "float64", "complex64")},
    **{
        f"{kind}{bits}": np.dtype(f"{kind}{bits}")
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
}
MAX_DEPTH = 16
MAX_NODES = 100_000
MAX_SIZE = 1 << 28  # elements of an array; dimensions of size 0 count as 1


@dataclass(frozen=True)
class Key:
    """A random key: a submission receives `jax.random.key(seed)` in its place."""

    seed: int


@dataclass(frozen=True)
class ArrayLeaf:
    """An array in a packed value: its number among the buffers, its shape and its dtype."""

    number: int
    shape: tuple[int, ...]
    dtype: str


def pack_value(value: Any) -> tuple[Any, list[npt.NDArray[Any]]]:
    """Return a value as JSON data, and the arrays that it refers to by number."""
    arrays: list[npt.NDArray[Any]] = []
    return _pack_node(value, arrays, 0), arrays


def unpack_value(
    data: Any,
    leaf: Callable[[ArrayLeaf], Any],
    spec: Callable[[Spec], Any] = lambda s: s,
    key: Callable[[Key], Any] = lambda k: k,
) -> Any:
    """Return the value that JSON data represents; `leaf` supplies each array.

    >>> data, arrays = pack_value({"x": np.arange(3)})
    >>> unpack_value(data, lambda leaf: arrays[leaf.number])
    {'x': array([0, 1, 2])}
    """
    return _Unpacker(leaf, spec, key).unpack_node(data, 0)


def array_bytes(array: npt.NDArray[Any]) -> bytes:
    """Return the numbers of an array, in C order."""
    return np.ascontiguousarray(array).tobytes()


def array_from_buffer(leaf: ArrayLeaf, buffer: bytes) -> npt.NDArray[Any]:
    """Return the array in a buffer. Raises `InvalidFrame` if shape, dtype and buffer disagree."""
    if leaf.dtype not in DTYPES and leaf.dtype != "bfloat16":
        raise InvalidFrame(f"{leaf.dtype[:40]!r} is not a supported dtype")
    dtype = _numpy_dtype(leaf.dtype)
    # Two negative sizes, or a huge one next to a zero, could match the number of bytes too.
    is_shape = min(leaf.shape, default=0) >= 0 and len(leaf.shape) <= MAX_DEPTH
    if not is_shape or math.prod(max(size, 1) for size in leaf.shape) > MAX_SIZE:
        raise InvalidFrame("an array has an impossible shape")
    if math.prod(leaf.shape) * dtype.itemsize != len(buffer):
        raise InvalidFrame("an array's shape and its number of bytes disagree")
    return np.frombuffer(buffer, dtype).reshape(leaf.shape)


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return DTYPES[name]
    import ml_dtypes  # installed with JAX; needed for bfloat16 only

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


# ------------------------------------------------------------------------------------- to JSON


def _pack_node(value: Any, arrays: list[npt.NDArray[Any]], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidFrame(f"a value is nested more than {MAX_DEPTH} deep")
    deeper = depth + 1
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, slice):
        return {"$slice": [_slice_bound(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, Spec):
        return {"$spec": [list(names) for names in value.axes]}
    if isinstance(value, Key):
        return {"$key": value.seed}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _pack_node(item, arrays, deeper) for key, item in value.items()}
        pairs = [(_plain_key(k), v) for k, v in value.items()]
        return {"$dict": [[_pack_node(item, arrays, deeper) for item in pair] for pair in pairs]}
    if isinstance(value, tuple):
        return {"$tuple": [_pack_node(item, arrays, deeper) for item in value]}
    if isinstance(value, list):
        return [_pack_node(item, arrays, deeper) for item in value]
    # NumPy scalars, NumPy arrays and jax.Arrays alike; a list of numbers stays a list above.
    array = np.asarray(value)
    if array.dtype.name not in DTYPES and array.dtype.name != "bfloat16":
        raise InvalidFrame(f"a {type(value).__name__} cannot be sent")
    arrays.append(array)
    return {"$array": [len(arrays) - 1, list(array.shape), array.dtype.name]}


def _slice_bound(bound: Any) -> int | None:
    """Return the start, stop or step of a slice; NumPy's integers are integers too."""
    try:
        return None if bound is None else index(bound)
    except TypeError:
        raise InvalidFrame(f"a slice of {type(bound).__name__} cannot be sent") from None


def _plain_key(key: Any) -> Any:
    """Return a dict key with Python numbers: arrays cannot be keys when they are unpacked."""
    if isinstance(key, tuple):
        return tuple(map(_plain_key, key))
    return key.item() if isinstance(key, np.generic) else key


# ----------------------------------------------------------------------------------- from JSON


_TAGS = ("$float", "$tuple", "$dict", "$slice", "$spec", "$key", "$array")


class _Unpacker:
    """Reads packed data from an untrusted process: every part of it is checked."""

    def __init__(
        self,
        leaf: Callable[[ArrayLeaf], Any],
        spec: Callable[[Spec], Any],
        key: Callable[[Key], Any],
    ) -> None:
        self._convert_array, self._convert_spec, self._convert_key = leaf, spec, key
        self._nodes_left = MAX_NODES

    def unpack_node(self, data: Any, depth: int) -> Any:
        self._nodes_left -= 1
        if depth > MAX_DEPTH or self._nodes_left < 0:
            raise InvalidFrame("a value is nested too deep, or has too many nodes")
        if isinstance(data, list):
            return [self.unpack_node(item, depth + 1) for item in data]
        if not isinstance(data, dict):
            return data
        # A dict of the submission's own that has such a key is packed as `$dict`, never like this.
        tag = next((key for key in data if key.startswith("$")), None)
        if tag is None:
            return {key: self.unpack_node(item, depth + 1) for key, item in data.items()}
        if tag not in _TAGS or len(data) != 1:
            raise InvalidFrame(f"{tag[:40]!r} is not a tag")
        try:
            return getattr(self, f"_unpack_{tag[1:]}")(data[tag], depth + 1)
        except (TypeError, ValueError, LookupError, ArithmeticError, LabError) as error:
            raise InvalidFrame(f"{tag!r} has invalid content") from error

    def _unpack_float(self, text: str, depth: int) -> float:
        return float({"nan": "nan", "inf": "inf", "-inf": "-inf"}.get(text, "nan"))

    def _unpack_tuple(self, items: Sequence[Any], depth: int) -> tuple[Any, ...]:
        return tuple(self.unpack_node(list(items), depth))

    def _unpack_dict(self, pairs: Sequence[Any], depth: int) -> dict[Any, Any]:
        return {
            self.unpack_node(key, depth): self.unpack_node(value, depth) for key, value in pairs
        }

    def _unpack_slice(self, bounds: Sequence[Any], depth: int) -> slice:
        start, stop, step = bounds
        if not all(bound is None or type(bound) is int for bound in bounds):
            raise ValueError("a slice of something else than integers")
        return slice(start, stop, step)

    def _unpack_spec(self, entries: Sequence[Any], depth: int) -> Any:
        return self._convert_spec(Spec(*map(tuple, entries)))

    def _unpack_key(self, seed: int, depth: int) -> Any:
        if type(seed) is not int:
            raise ValueError("a key of something else than an integer")
        return self._convert_key(Key(seed))

    def _unpack_array(self, parts: Sequence[Any], depth: int) -> Any:
        number, shape, dtype = parts
        # `type(n) is int`: True and False are ints for isinstance.
        if type(number) is not int or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError("an array without a valid shape")
        return self._convert_array(ArrayLeaf(number, tuple(shape), str(dtype)))
