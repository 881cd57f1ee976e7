"""When two arrays are the same result: equal up to what rounding can do, and no further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardlab.sharding.mesh import MeshSizes
from shardlab.simulator.run_records import OutputLeaf

Array = np.ndarray[Any, Any]
# How often a change by one rounding may be met: sums are taken in another order on each mesh.
_ROUNDINGS = 64
_ROUNDINGS_NARROW = 8  # of float types with less than about five decimal digits
_NOISE = 32


@dataclass(frozen=True)
class Comparison:
    """One array on one device and on a mesh, and how far apart they may be."""

    mesh: MeshSizes
    one: Array
    many: Array
    atol: float = 0.0

    @property
    def agrees(self) -> bool:
        return is_close(self.many, self.one, self.atol)

    def n(self, mesh_axes: tuple[str, ...]) -> int:
        """Return how many devices there are along some mesh axes."""
        return int(np.prod([size for name, size in self.mesh if name in mesh_axes], dtype=int))


def tolerance(one: OutputLeaf, many: OutputLeaf | None = None) -> float:
    """Return how far a result may be from that of one device.

    A sum taken in another order differs by a few roundings of its largest term. How large that is
    in the result, the run on one device has found out: `noise` is what a change of the arguments by
    one rounding does to it. Integers are exact unless that changes them too.
    """
    eps = max(one.lineage.eps, many.lineage.eps if many else 0.0)
    noise = _NOISE * float(np.max(one.noise, initial=0.0))
    if np.asarray(one.value).dtype.kind not in "fc":
        return noise
    return roundings(one.value, eps) + noise


def roundings(value: Array, eps: float) -> float:
    """Return a few roundings of the largest element."""
    finite = np.abs(value[np.isfinite(value)])
    n = _ROUNDINGS if eps < 1e-5 else _ROUNDINGS_NARROW
    return n * eps * float(finite.max(initial=0.0))


def is_close(found: Array, expected: Array, atol: float) -> bool:
    """Say whether two arrays are equal up to `atol`; NaN equals NaN, infinity itself.

    >>> is_close(np.array([1.0, np.nan]), np.array([1.0, np.nan]), 0.0)
    True
    """
    return found.shape == expected.shape and bool(compare_arrays(found, expected, atol).all())


def compare_arrays(found: Array, expected: Array, atol: float) -> Array:
    """Return where two arrays are equal up to `atol`."""
    if found.dtype.kind in "biu" and expected.dtype.kind in "biu" and not atol:
        return np.asarray(found == expected)
    a, b = _wide(found), _wide(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(a - b) <= atol
    return np.asarray(near | (a == b) | (np.isnan(a) & np.isnan(b)))


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
