"""Inputs that no reference draws: they tell an equivalent mutant from one that cases do not decide.

A mutant that survives every hidden case is equivalent only if it also agrees on inputs that do not
come from the problem's own `inputs`: arrays of other values and sizes, other numbers. What the
statement does not allow is left out by the reference itself: it raises, its result is not finite,
or its function `accepts(mesh, **inputs)` returns False.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardlab.course.hidden_samples import (
    RAISED,
    Array,
    Sample,
    argument_of,
    call_expected,
    input_leaves,
    map_leaves,
)
from shardlab.sharding.mesh import Mesh

_MAX_SIZE = 4_000  # elements of a sample to start from
_MAX_ATTEMPTS = 6  # per sample: most inputs may be ones that the reference rejects
_KEEP_PROBABILITY = 0.45
_RESIZE_PROBABILITY = 0.3
Rng = np.random.Generator

FLOAT_MODES: Mapping[str, Callable[[Rng, Array], Array]] = {
    "normal": lambda rng, x: 3 * rng.standard_normal(x.shape),
    "integers": lambda rng, x: rng.integers(-9, 10, x.shape),
    "wide": lambda rng, x: rng.standard_normal(x.shape) * 10.0 ** rng.integers(-2, 3, x.shape),
    "zeros": lambda rng, x: np.zeros(x.shape),
    "ones": lambda rng, x: np.ones(x.shape),
    "negated": lambda rng, x: -x,
    "positive": lambda rng, x: np.abs(x) + 0.5,
    "large": lambda rng, x: 100 * x,
    "small": lambda rng, x: x / 64,
    "shifted": lambda rng, x: x + 60,
    "constant": lambda rng, x: np.full(x.shape, rng.integers(-5, 6)),
    "some zeros": lambda rng, x: np.where(rng.random(x.shape) < 0.3, 0, x),
    "permuted": lambda rng, x: rng.permutation(x.reshape(-1)).reshape(x.shape),
    "halves": lambda rng, x: np.round(4 * rng.standard_normal(x.shape)) / 2,
}


def draw_free_samples(
    samples: Sequence[Sample],
    expected: Callable[..., Any],
    accepts: Callable[..., bool] | None,
    *,
    count: int,
    seed: int = 0,
) -> Iterator[Sample]:
    """Yield samples with other inputs, for which the reference gives a finite result."""
    rng = np.random.default_rng(seed)
    bases = [sample for sample in samples if sample.size <= _MAX_SIZE] or list(samples[:1])
    pools, dims = _value_pools(samples), _shared_dims(samples)
    n_accepted = 0
    for _ in range(_MAX_ATTEMPTS * count):
        base = bases[int(rng.integers(len(bases)))]
        inputs = dict(base.inputs)
        if rng.random() < _RESIZE_PROBABILITY:
            inputs = _resize(rng, inputs, dims, base.mesh)
        inputs = _perturb_inputs(rng, inputs, pools)
        sample = complete_sample(base, inputs, expected, accepts)
        if sample is not None:
            yield sample
            n_accepted += 1
            if n_accepted == count:
                return


def complete_sample(
    base: Sample,
    inputs: Mapping[str, Any],
    expected: Callable[..., Any],
    accepts: Callable[..., bool] | None,
    mesh: Mesh | None = None,
) -> Sample | None:
    """Return a sample with the reference's result, None if the statement does not allow it."""
    mesh = mesh or base.mesh
    try:
        if accepts is not None and not accepts(mesh, **inputs):
            return None
        result = call_expected(expected, mesh, inputs)
    except Exception:  # of any kind: these inputs mean nothing to the reference
        return None
    if result is not RAISED and not is_finite(result):
        return None
    return replace(base, inputs=inputs, result=result, mesh=mesh)


def widen_sample(sample: Sample, expected: Callable[..., Any]) -> Sample | None:
    """Return a sample with float64 inputs and its result; None if the reference rejects them."""

    def widen(path: str, leaf: Any) -> Any:
        is_float = isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"
        return leaf.astype(np.float64) if is_float else leaf

    return complete_sample(sample, map_leaves(sample.inputs, widen), expected, None)


def is_finite(result: Any) -> bool:
    """Return whether a result has no infinities and no NaNs."""
    for _, leaf in input_leaves(result):
        array = np.asarray(leaf)
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            return False
    return True


def _value_pools(samples: Sequence[Sample]) -> dict[tuple[str, type], list[Any]]:
    """Return the values of each argument by type, without the keys of dicts in its path."""
    pools: dict[tuple[str, type], list[Any]] = defaultdict(list)
    for sample in samples:
        for path, leaf in input_leaves(sample.inputs):
            pools[argument_of(path), type(leaf)].append(leaf)
    return pools


def _perturb_inputs(
    rng: Rng, inputs: Mapping[str, Any], pools: Mapping[tuple[str, type], list[Any]]
) -> dict[str, Any]:
    def perturb(path: str, leaf: Any) -> Any:
        if rng.random() < _KEEP_PROBABILITY:
            return leaf
        pool = pools[argument_of(path), type(leaf)]
        if isinstance(leaf, np.ndarray):
            return _perturb_array(rng, leaf, pool)
        return _perturb_scalar(rng, leaf, pool)

    result: dict[str, Any] = map_leaves(inputs, perturb)
    return result


def _perturb_array(rng: Rng, array: Array, pool: Sequence[Any]) -> Array:
    if array.dtype.kind == "b":
        return np.asarray(rng.random(array.shape) < rng.choice([0, 0.3, 0.7, 1]))
    if array.dtype.kind in "iu":
        # An integer is often an index or a count, so the observed range is not left.
        low = min((int(other.min()) for other in pool if other.size), default=0)
        high = max((int(other.max()) for other in pool if other.size), default=0)
        # Indices into something smaller than in the case that the maximum comes from.
        high = high if rng.random() < 0.5 else int(array.max(initial=low))
        return rng.integers(low, high + 1, array.shape).astype(array.dtype)
    mode = list(FLOAT_MODES.values())[int(rng.integers(len(FLOAT_MODES)))]
    return np.asarray(mode(rng, array)).astype(array.dtype)


def _perturb_scalar(rng: Rng, leaf: Any, pool: Sequence[Any]) -> Any:
    if isinstance(leaf, bool):
        return bool(rng.integers(2))
    if isinstance(leaf, (int, np.integer)):
        return type(leaf)(rng.integers(min(pool), max(pool) + 1))
    if isinstance(leaf, (float, np.floating)):
        largest = max(map(abs, pool))
        choices = (
            *(0.0, 1.0, -leaf, 2 * leaf, leaf / 3, leaf + 1, float(rng.choice(pool))),
            float(rng.normal()),
            float(rng.random() * largest),
            float(10.0 ** rng.uniform(-3, 3)),
        )
        return type(leaf)(choices[int(rng.integers(len(choices)))])
    return pool[int(rng.integers(len(pool)))]


@dataclass(frozen=True)
class _SharedDim:
    """Dimensions that have one size in every sample, such as the batch of x and of y."""

    members: frozenset[tuple[str, int]]  # path of the array, dimension
    is_divisible: bool  # by the first mesh axis, in every sample


def _shared_dims(samples: Sequence[Sample]) -> list[_SharedDim]:
    sizes: dict[tuple[str, int], list[int]] = defaultdict(list)
    for sample in samples:
        for path, leaf in input_leaves(sample.inputs):
            if isinstance(leaf, np.ndarray):
                for dim, size in enumerate(leaf.shape):
                    sizes[path, dim].append(size)
    groups: dict[tuple[int, ...], set[tuple[str, int]]] = defaultdict(set)
    for member, sequence in sizes.items():
        groups[tuple(sequence)].add(member)
    n_devices = [sample.mesh.n_devices for sample in samples]
    return [
        _SharedDim(
            frozenset(members),
            all(size % n == 0 for size, n in zip(sequence, n_devices, strict=False)),
        )
        for sequence, members in groups.items()
    ]


def _resize(
    rng: Rng, inputs: dict[str, Any], dims: Sequence[_SharedDim], mesh: Mesh
) -> dict[str, Any]:
    """Return the inputs with another size of one dimension, in every array that shares it."""
    if not dims:
        return inputs
    shared = dims[int(rng.integers(len(dims)))]
    factor = mesh.n_devices if shared.is_divisible else 1
    new_size = factor * int(rng.integers(1, 8))

    def resize(path: str, leaf: Any) -> Any:
        for member, dim in shared.members:
            if member == path and isinstance(leaf, np.ndarray) and dim < leaf.ndim:
                leaf = np.take(leaf, np.arange(new_size), axis=dim, mode="wrap")
        return leaf

    result: dict[str, Any] = map_leaves(inputs, resize)
    return result
