"""When two arrays count as the same result: equal up to rounding errors, and no further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardlab.sharding.mesh import MeshSizes
from shardlab.simulator.run_records import OutputLeaf

Array = np.ndarray[Any, Any]
# How many roundings of the largest element are allowed: each mesh sums in a different order. Types
# with fewer than about five digits get less: 64 roundings of bfloat16 are half of the value.
_ROUNDINGS = 64
_ROUNDINGS_NARROW = 8
_NOISE_FACTOR = 32  # times the change that perturbing the arguments by one rounding causes


@dataclass(frozen=True)
class Comparison:
    """One array on one device (`expected`) and on a mesh (`actual`), with its tolerance."""

    mesh: MeshSizes
    expected: Array
    actual: Array
    atol: float = 0.0

    @property
    def agrees(self) -> bool:
        return is_close(self.actual, self.expected, self.atol)

    def n(self, mesh_axes: tuple[str, ...]) -> int:
        """Return the number of devices along some mesh axes."""
        return int(np.prod([size for name, size in self.mesh if name in mesh_axes], dtype=int))


def result_tolerance(expected: OutputLeaf, actual: OutputLeaf | None = None) -> float:
    """Return how far a result may be from the one on one device.

    A sum taken in another order differs by a few roundings of its largest term. How much of that
    reaches the result was measured on one device: `noise` is how far the result moves when the
    arguments change by one rounding. Integers are exact unless that changes them too.
    """
    eps = max(expected.lineage.eps, actual.lineage.eps if actual else 0.0)
    # The measured noise is of two perturbations only; the factor covers the worst case.
    noise = _NOISE_FACTOR * float(np.max(expected.noise, initial=0.0))
    if np.asarray(expected.value).dtype.kind not in "fc":
        return noise
    return rounding_tolerance(expected.value, eps) + noise


def rounding_tolerance(value: Array, eps: float) -> float:
    """Return a few roundings of the largest element."""
    # An infinite element would make the tolerance infinite.
    finite = np.abs(value[np.isfinite(value)])
    n_roundings = _ROUNDINGS if eps < 1e-5 else _ROUNDINGS_NARROW
    return n_roundings * eps * float(finite.max(initial=0.0))


def is_close(actual: Array, expected: Array, atol: float) -> bool:
    """Return whether two arrays are equal up to `atol`; NaN equals NaN, infinity itself.

    >>> is_close(np.array([1.0, np.nan]), np.array([1.0, np.nan]), 0.0)
    True
    """
    return actual.shape == expected.shape and bool(compare_arrays(actual, expected, atol).all())


def compare_arrays(actual: Array, expected: Array, atol: float) -> Array:
    """Return a mask of the elements that are equal up to `atol`."""
    # float64 cannot hold every int64, so integers are compared as they are.
    if actual.dtype.kind in "biu" and expected.dtype.kind in "biu" and not atol:
        return np.asarray(actual == expected)
    a, b = _widen(actual), _widen(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        is_near = np.abs(a - b) <= atol
    # inf - inf is NaN, so equal infinities need the second comparison.
    return np.asarray(is_near | (a == b) | (np.isnan(a) & np.isnan(b)))


def _widen(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
