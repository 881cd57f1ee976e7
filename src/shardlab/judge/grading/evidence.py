"""What one case shows of one output: numbers that a cause can be read from.

A cause is asked for over all cases of a part, whose meshes have other names and other inputs. So
mesh axes are counted here by their place (`0`, `1`), and each case brings its own arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardlab.checks.tolerance import Comparison, is_close
from shardlab.judge.protocol.run_result import Output
from shardlab.sharding.mesh import Mesh

Array = npt.NDArray[Any]
_MOST_AXES = 3  # of any mesh of a ladder

# Number of pieces -> what the reference makes of each piece alone, by path of the output.
Pieces = Callable[[int], Sequence[Mapping[str, Array]]]


def no_pieces(n: int) -> Sequence[Mapping[str, Array]]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One output of one case: what it is and what it should be."""

    output: Output
    expected: Array
    mesh: Mesh | None
    atol: float
    arguments: Mapping[str, Array] = field(default_factory=dict)
    pieces: Pieces = no_pieces
    is_judged_by_properties: bool = False

    @property
    def name(self) -> str:
        return f"result{self.output.path}"

    @property
    def whole(self) -> Array:
        return assembled(self.output)

    @property
    def comparison(self) -> Comparison:
        sizes = self.mesh.axis_sizes if self.mesh else ()
        padded = (*sizes, *(1,) * (_MOST_AXES - len(sizes)))
        by_place = tuple((str(place), size) for place, size in enumerate(padded))
        return Comparison(by_place, self.expected, self.whole, self.atol)

    def names(self, places: Sequence[str]) -> tuple[str, ...]:
        """Return this mesh's own names of the axes at some places."""
        own = self.mesh.axis_names if self.mesh else ()
        return tuple(own[int(place)] for place in places if int(place) < len(own))

    @property
    def agrees(self) -> bool:
        return is_close(self.whole, self.expected, self.atol)

    @property
    def wrong_devices(self) -> tuple[int, ...]:
        """Return the devices whose piece is not what it should be."""
        return tuple(
            shard.device
            for shard in self.output.shards
            if not is_close(shard.values, self.expected[slices(shard.ranges)], self.atol)
        )


def assembled(output: Output) -> Array:
    """Return the whole array, each element from the first device that holds it."""
    whole = np.zeros(output.shape, output.shards[0].values.dtype)
    for shard in reversed(output.shards):
        whole[slices(shard.ranges)] = shard.values
    return whole


def slices(ranges: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in ranges)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Say whether numbers of a dtype are rounded; bfloat16 has a kind of its own in NumPy."""
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def number(value: Any) -> str:
    """Return one number as a person writes it.

    >>> number(np.float32(1180416)), number(np.float32(0.1)), number(np.int32(7)), number(np.True_)
    ('1180416', '0.1', '7', 'True')
    """
    value = np.asarray(value)
    if value.dtype.kind in "biuc":
        return str(value.item())
    plain = float(value)
    return str(int(plain)) if abs(plain) < 1e9 and plain == int(plain) else f"{plain:.6g}"


def numbers(array: Array, most: int = 6) -> str:
    """Return an array in one line: all of it up to `most` elements, else its edges.

    >>> numbers(np.float32([[1, 2], [3, 4]])), numbers(np.arange(20))
    ('[[1 2] [3 4]]', '[0 1 2 ... 19]')
    >>> numbers(np.arange(12).reshape(4, 3)), numbers(np.arange(8), 8)
    ('[[0 1 2] ... [9 10 11]]', '[0 1 2 3 4 5 6 7]')
    """
    array = np.asarray(array)
    if array.ndim == 0:
        return number(array)
    if not array.size:  # rows without elements cost nothing to make, and there may be millions
        return "[]"
    if array.size <= most or len(array) <= 2:
        return f"[{' '.join(numbers(each, most) for each in array)}]"
    first = array[:3] if array.ndim == 1 else array[:1]
    return f"[{' '.join(numbers(each, most) for each in first)} ... {numbers(array[-1], most)}]"


def index(at: Sequence[int]) -> str:
    """Return the place of an element as one writes it; nothing for a scalar's.

    >>> index((2, 0)), index(())
    ('[2, 0]', '')
    """
    return f"[{', '.join(map(str, at))}]" if at else ""
