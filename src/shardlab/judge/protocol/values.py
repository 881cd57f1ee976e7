"""Values -> JSON and buffers, and back: numbers, text, containers, arrays, specs, keys, slices.

Containers keep their kind by a tag, since JSON has neither tuples nor dicts with other keys:

>>> pack({(0, 1): (slice(0, 4), True)})[0]
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

# Never object: bytes from a confined process must not become anything but numbers.
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
MAX_SIZE = 1 << 28  # elements of an array; axes of size 0 count as 1


@dataclass(frozen=True)
class Key:
    """A random key: where a reference draws one, the answer gets `jax.random.key(seed)`."""

    seed: int


@dataclass(frozen=True)
class ArrayLeaf:
    """The place of an array in a packed value: its number, shape and dtype."""

    number: int
    shape: tuple[int, ...]
    dtype: str


def pack(value: Any) -> tuple[Any, list[npt.NDArray[Any]]]:
    """Return a value as JSON data, and the arrays that it refers to by number."""
    arrays: list[npt.NDArray[Any]] = []
    return _packed(value, arrays, 0), arrays


def unpack(
    data: Any,
    leaf: Callable[[ArrayLeaf], Any],
    spec: Callable[[Spec], Any] = lambda s: s,
    key: Callable[[Key], Any] = lambda k: k,
) -> Any:
    """Return the value that JSON data stands for; `leaf` gives each array.

    >>> data, arrays = pack({"x": np.arange(3)})
    >>> unpack(data, lambda at: arrays[at.number])
    {'x': array([0, 1, 2])}
    """
    return _Unpacking(leaf, spec, key).of(data, 0)


def array_bytes(array: npt.NDArray[Any]) -> bytes:
    """Return the numbers of an array, in C order."""
    return np.ascontiguousarray(array).tobytes()


def array_from(leaf: ArrayLeaf, buffer: bytes) -> npt.NDArray[Any]:
    """Return the array in a buffer; raise `InvalidFrame` where the two do not fit."""
    if leaf.dtype not in DTYPES and leaf.dtype != "bfloat16":
        raise InvalidFrame(f"{leaf.dtype[:40]!r} is not a dtype that may travel")
    dtype = _dtype(leaf.dtype)
    # Two negative sizes, or a huge one beside a zero, would pass for a right number of bytes.
    is_shape = min(leaf.shape, default=0) >= 0 and len(leaf.shape) <= MAX_DEPTH
    if not is_shape or math.prod(max(size, 1) for size in leaf.shape) > MAX_SIZE:
        raise InvalidFrame("an array has a shape that none has")
    if math.prod(leaf.shape) * dtype.itemsize != len(buffer):
        raise InvalidFrame("an array has another number of bytes than its shape")
    return np.frombuffer(buffer, dtype).reshape(leaf.shape)


def _dtype(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return DTYPES[name]
    import ml_dtypes  # comes with JAX; needed for this one only

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


# ------------------------------------------------------------------------------------- to JSON


def _packed(value: Any, arrays: list[npt.NDArray[Any]], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidFrame(f"a value is nested more than {MAX_DEPTH} deep")
    deeper = depth + 1
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, slice):
        return {"$slice": [_whole(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, Spec):
        return {"$spec": [list(names) for names in value.axes]}
    if isinstance(value, Key):
        return {"$key": value.seed}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _packed(each, arrays, deeper) for key, each in value.items()}
        pairs = [(_key(k), v) for k, v in value.items()]
        return {"$dict": [[_packed(each, arrays, deeper) for each in pair] for pair in pairs]}
    if isinstance(value, tuple):
        return {"$tuple": [_packed(each, arrays, deeper) for each in value]}
    if isinstance(value, list):
        return [_packed(each, arrays, deeper) for each in value]
    array = np.asarray(value)
    if array.dtype.name not in DTYPES and array.dtype.name != "bfloat16":
        raise InvalidFrame(f"a {type(value).__name__} cannot travel")
    arrays.append(array)
    return {"$array": [len(arrays) - 1, list(array.shape), array.dtype.name]}


def _whole(part: Any) -> int | None:
    """Return an end of a slice; NumPy's whole numbers are whole numbers too."""
    try:
        return None if part is None else index(part)
    except TypeError:
        raise InvalidFrame(f"a slice of {type(part).__name__} cannot travel") from None


def _key(key: Any) -> Any:
    """Return a key of a dict with plain numbers: an array could not be a key over there."""
    if isinstance(key, tuple):
        return tuple(map(_key, key))
    return key.item() if isinstance(key, np.generic) else key


# ----------------------------------------------------------------------------------- from JSON


_TAGS = ("$float", "$tuple", "$dict", "$slice", "$spec", "$key", "$array")


class _Unpacking:
    """Reads packed data of unknown origin: every shape of it is checked."""

    def __init__(
        self,
        leaf: Callable[[ArrayLeaf], Any],
        spec: Callable[[Spec], Any],
        key: Callable[[Key], Any],
    ) -> None:
        self._give_leaf, self._give_spec, self._give_key = leaf, spec, key
        self._left = MAX_NODES

    def of(self, data: Any, depth: int) -> Any:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise InvalidFrame("a value is nested too deep, or has too many parts")
        if isinstance(data, list):
            return [self.of(each, depth + 1) for each in data]
        if not isinstance(data, dict):
            return data
        tag = next((key for key in data if key.startswith("$")), None)
        if tag is None:
            return {key: self.of(each, depth + 1) for key, each in data.items()}
        if tag not in _TAGS or len(data) != 1:
            raise InvalidFrame(f"{tag[:40]!r} is not a kind of value")
        try:
            return getattr(self, f"_{tag[1:]}")(data[tag], depth + 1)
        except (TypeError, ValueError, LookupError, ArithmeticError, LabError) as error:
            raise InvalidFrame(f"{tag!r} holds something else") from error

    def _float(self, text: str, depth: int) -> float:
        return float({"nan": "nan", "inf": "inf", "-inf": "-inf"}.get(text, "nan"))

    def _tuple(self, items: Sequence[Any], depth: int) -> tuple[Any, ...]:
        return tuple(self.of(list(items), depth))

    def _dict(self, pairs: Sequence[Any], depth: int) -> dict[Any, Any]:
        return {self.of(key, depth): self.of(value, depth) for key, value in pairs}

    def _slice(self, parts: Sequence[Any], depth: int) -> slice:
        start, stop, step = parts
        if not all(part is None or type(part) is int for part in parts):
            raise ValueError("a slice of something else than whole numbers")
        return slice(start, stop, step)

    def _spec(self, entries: Sequence[Any], depth: int) -> Any:
        return self._give_spec(Spec(*map(tuple, entries)))

    def _key(self, seed: int, depth: int) -> Any:
        if type(seed) is not int:
            raise ValueError("a key of something else than a whole number")
        return self._give_key(Key(seed))

    def _array(self, parts: Sequence[Any], depth: int) -> Any:
        number, shape, dtype = parts
        if type(number) is not int or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError("an array without a shape")
        return self._give_leaf(ArrayLeaf(number, tuple(shape), str(dtype)))
