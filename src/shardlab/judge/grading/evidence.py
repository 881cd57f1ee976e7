"""What one case shows about one output: the numbers that a cause can be read from.

A cause must hold for all cases of a part, whose meshes have different axis names and whose inputs
differ. So mesh axes are identified by position here (`0`, `1`), and each case has arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardlab.checks.tolerance import Comparison, is_close
from shardlab.judge.protocol.run_result import RunOutput
from shardlab.sharding.mesh import Mesh

Array = npt.NDArray[Any]
_MAX_AXES = 3  # of a test mesh
_MAX_LISTED = 3  # elements that differ

# Number of shards -> what the reference computes from each shard alone, by path of the output.
ShardResults = Callable[[int], Sequence[Mapping[str, Array]]]


def no_shard_results(n_shards: int) -> Sequence[Mapping[str, Array]]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One output of one case: what it is and what it should be."""

    output: RunOutput
    expected: Array
    mesh: Mesh | None
    atol: float
    arguments: Mapping[str, Array] = field(default_factory=dict)
    shard_results: ShardResults = no_shard_results
    is_judged_by_properties: bool = False

    @property
    def name(self) -> str:
        return f"result{self.output.path}"

    @property
    def actual(self) -> Array:
        return assemble_output(self.output)

    @property
    def comparison(self) -> Comparison:
        """Return the values as the causes compare them, with mesh axes named by position."""
        sizes = self.mesh.axis_sizes if self.mesh else ()
        # All cases must have the same axes, so a mesh of fewer gets axes of size one.
        padded = (*sizes, *(1,) * (_MAX_AXES - len(sizes)))
        axes = tuple((str(position), size) for position, size in enumerate(padded))
        return Comparison(axes, self.expected, self.actual, self.atol)

    def axis_names(self, positions: Sequence[str]) -> tuple[str, ...]:
        """Return the names that this mesh has for the axes at some positions."""
        names = self.mesh.axis_names if self.mesh else ()
        return tuple(names[int(p)] for p in positions if int(p) < len(names))

    @property
    def agrees(self) -> bool:
        return is_close(self.actual, self.expected, self.atol)

    @property
    def wrong_devices(self) -> tuple[int, ...]:
        """Return the devices whose shard is not the expected one."""
        return tuple(
            shard.device
            for shard in self.output.shards
            if not is_close(shard.values, self.expected[range_slices(shard.ranges)], self.atol)
        )


def assemble_output(output: RunOutput) -> Array:
    """Return the full array, each element from the first device that holds it."""
    array = np.zeros(output.shape, output.shards[0].values.dtype)
    # Backwards, so that the first device is written last and wins.
    for shard in reversed(output.shards):
        array[range_slices(shard.ranges)] = shard.values
    return array


def range_slices(ranges: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in ranges)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype rounds; NumPy's kind of bfloat16 is not the one of floats."""
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def number_text(value: Any) -> str:
    """Return one number as one writes it by hand.

    >>> [number_text(n) for n in (np.float32(1180416), np.float32(0.1), np.int32(7), np.True_)]
    ['1180416', '0.1', '7', 'True']
    """
    value = np.asarray(value)
    if value.dtype.kind in "biuc":
        return str(value.item())
    number = float(value)
    return str(int(number)) if abs(number) < 1e9 and number == int(number) else f"{number:.6g}"


def array_text(array: Array, max_elements: int = 6) -> str:
    """Return an array in one line: all of it up to `max_elements`, otherwise its edges.

    >>> array_text(np.float32([[1, 2], [3, 4]])), array_text(np.arange(20))
    ('[[1 2] [3 4]]', '[0 1 2 ... 19]')
    >>> array_text(np.arange(12).reshape(4, 3)), array_text(np.arange(8), 8)
    ('[[0 1 2] ... [9 10 11]]', '[0 1 2 3 4 5 6 7]')
    """
    array = np.asarray(array)
    if array.ndim == 0:
        return number_text(array)
    if not array.size:  # a hostile result can have millions of rows without elements, for free
        return "[]"
    if array.size <= max_elements or len(array) <= 2:
        return f"[{' '.join(array_text(row, max_elements) for row in array)}]"
    first = array[:3] if array.ndim == 1 else array[:1]
    head = " ".join(array_text(row, max_elements) for row in first)
    return f"[{head} ... {array_text(array[-1], max_elements)}]"


def pair_texts(
    actual: Array, expected: Array, max_elements: int = 6, atol: float = 0.0
) -> tuple[str, str]:
    """Return both arrays as text in which a difference is visible.

    Where their edges or their rounded numbers look the same, the elements that differ are listed.

    >>> pair_texts(np.arange(4), np.arange(4) + 1)
    ('[0 1 2 3]', '[1 2 3 4]')
    >>> pair_texts(np.arange(20), np.where(np.arange(20) == 7, 70, np.arange(20)))
    ('[... [7]: 7 ...]', '[... [7]: 70 ...]')
    >>> pair_texts(np.float32(0.1234567), np.float32(0.1234568))
    ('0.123456702', '0.123456798')
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    texts = array_text(actual, max_elements), array_text(expected, max_elements)
    if texts[0] != texts[1] or actual.shape != expected.shape:
        return texts
    close = np.isclose(actual, expected, rtol=0.0, atol=atol, equal_nan=True)
    differing = np.argwhere(~close if not close.all() else actual != expected)
    if not len(differing):
        return texts
    indices = [tuple(int(i) for i in index) for index in differing[:_MAX_LISTED]]
    ellipsis = " ..." if len(differing) > _MAX_LISTED or actual.size > len(indices) else ""
    sides = []
    for array in (actual, expected):
        items = [
            f"{index_text(index)}: {precise_text(array[index])}"
            if index
            else precise_text(array[index])
            for index in indices
        ]
        items_text = ", ".join(items)
        sides.append(f"[... {items_text}{ellipsis}]" if indices[0] else items_text)
    return sides[0], sides[1]


def precise_text(value: Any) -> str:
    """Return a number with as many digits as tell any two float32 apart."""
    array = np.asarray(value)
    return number_text(array) if array.dtype.kind in "biuc" else f"{float(array):.9g}"


def index_text(index: Sequence[int]) -> str:
    """Return the index of an element as NumPy writes it; nothing for a scalar.

    >>> index_text((2, 0)), index_text(())
    ('[2, 0]', '')
    """
    return f"[{', '.join(map(str, index))}]" if index else ""
