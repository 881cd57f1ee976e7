"""Known causes of a result that depends on the mesh, each recognized by its numbers.

Every function gets one array, computed on one device and on several meshes, and returns the mesh
axes that explain all of them, or None. On meshes where those axes have size 1 the arrays must
agree. The name of a function is the cause that a finding reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations

import numpy as np

from shardlab.checks.tolerance import Array, Comparison, compare_arrays, is_close

MeshAxes = tuple[str, ...]
Comparisons = Sequence[Comparison]


def factor_of_n(comparisons: Comparisons) -> MeshAxes | None:
    """Return mesh axes of size n if the result is n times the one on one device."""
    return _find_axes(
        comparisons,
        # The tolerance grows with n: the error of each of the n summed values does not cancel.
        lambda item, n: is_close(item.actual, n * _as_float(item.expected), n * item.atol),
    )


def divided_by_n(comparisons: Comparisons) -> MeshAxes | None:
    """Return mesh axes of size n if the result is 1/n of the one on one device."""
    return _find_axes(
        comparisons,
        lambda item, n: is_close(n * _as_float(item.actual), item.expected, item.atol),
    )


def shards_permuted(comparisons: Comparisons) -> MeshAxes | None:
    """Return the mesh axes along which the right shards are in the wrong order."""
    # Two mesh axes in the wrong order only show where both have more than one device, so a mesh
    # that agrees does not rule this out.
    return _find_axes(
        comparisons,
        lambda item, n: item.agrees or any(_is_permuted(item, *pair) for pair in _shards(item, n)),
    )


def only_shard_0(comparisons: Comparisons) -> MeshAxes | None:
    """Return the mesh axes along which the first shard is right and every other is wrong."""
    return _find_axes(
        comparisons, lambda item, n: any(_is_first_right(item, *pair) for pair in _shards(item, n))
    )


def same_random_numbers(comparisons: Comparisons) -> MeshAxes | None:
    """Return the mesh axes along which every shard repeats the first.

    With dropout, where random numbers only choose what is set to zero, the zeros repeat.
    """
    return _find_axes(
        comparisons, lambda item, n: any(_is_repeated(item, *pair) for pair in _shards(item, n))
    )


def bias_n_times(
    comparisons: Comparisons, arguments: Mapping[str, Array] | None = None
) -> tuple[MeshAxes, str] | None:
    """Return the mesh axes over which one term is counted n times, and the path of that term.

    The result is then `expected + (n - 1) * term` with the same term for each n. Two sizes prove
    that; with one size the term must be equal to an argument, whose path is returned.
    """
    for axes in _axis_subsets(comparisons):
        affected = [item for item in comparisons if item.n(axes) > 1]
        if not affected or not all(item.agrees for item in comparisons if item.n(axes) == 1):
            continue
        terms = [_repeated_term(item, axes) for item in affected]
        first, atol = terms[0], affected[0].atol
        # A term as small as the rounding errors would match an argument of zeros.
        if any(term.shape != first.shape for term in terms) or _is_negligible(first, atol):
            continue
        if not np.isfinite(first).all():  # NaN compares equal to NaN, and would fit everything
            continue
        if not all(
            is_close(term, first, 2 * item.atol) for term, item in zip(terms, affected, strict=True)
        ):
            continue
        path = _find_equal_argument(terms, atol, arguments or {})
        # For a single n any difference is (n - 1) times some term, so the term must be known.
        if path or len({item.n(axes) for item in affected}) > 1:
            return axes, path
    return None


def factor_beside(
    comparisons: Comparisons, arguments: Mapping[str, Array]
) -> tuple[str, MeshAxes, str] | None:
    """Return the cause, mesh axes and path if the result is an argument plus a scaled term.

    Examples: an update `w - rate * gradient` whose gradient is n times too large, or a bias added
    to a value that is summed twice.
    """
    for path, argument in arguments.items():
        differences = []
        for item in comparisons:
            full = _broadcast_argument(argument, item.expected.shape)
            if full is None or _is_negligible(full, item.atol):
                break
            expected, actual = _as_float(item.expected) - full, _as_float(item.actual) - full
            if _is_negligible(expected, item.atol):
                break
            # Twice the tolerance: the subtraction leaves the rounding errors of both arrays.
            differences.append(Comparison(item.mesh, expected, actual, 2 * item.atol))
        if len(differences) < len(comparisons):
            continue
        # The rest after subtracting the argument is tested like a result of its own.
        for cause in (factor_of_n, divided_by_n):
            if axes := cause(differences):
                return cause.__name__, axes, path
    return None


def is_count_of_shard(comparisons: Comparisons, arguments: Mapping[str, Array]) -> bool:
    """Return whether a number is the size of an argument on one device, and of its shard on others.

    `x.shape[0]` and `x.size` inside a shard_map are constants of the program: they depend on no
    argument, but on the mesh.
    """
    expected = comparisons[0].expected if comparisons else np.zeros(())
    if expected.ndim or expected.dtype.kind not in "iuf" or not expected > 1:
        return False
    sizes = {size for array in arguments.values() for size in (*array.shape, array.size)}
    return float(expected) in sizes and divided_by_n(comparisons) is not None


def is_sum_over(comparisons: Comparisons, axes: MeshAxes) -> bool:
    """Return whether results get closer to one device when divided by n: a sum, not a mean."""

    def distance(item: Comparison, divisor: int) -> float:
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = _as_float(item.actual) / divisor
            return float(np.nansum(np.abs(scaled - _as_float(item.expected))))

    wrong = [item for item in comparisons if item.n(axes) > 1 and not item.agrees]
    return bool(wrong) and all(distance(item, item.n(axes)) < distance(item, 1) for item in wrong)


# ------------------------------------------------------------------------------ which mesh axes


def _find_axes(
    comparisons: Comparisons, explains: Callable[[Comparison, int], bool]
) -> MeshAxes | None:
    """Return the fewest mesh axes whose size explains the result on every mesh."""
    for axes in _axis_subsets(comparisons):
        sizes = [item.n(axes) for item in comparisons]
        pairs = list(zip(comparisons, sizes, strict=True))
        # Axes of size 1 everywhere, or without any disagreement, explain nothing.
        if not any(n > 1 and not item.agrees for item, n in pairs):
            continue
        if all(explains(item, n) if n > 1 else item.agrees for item, n in pairs):
            return axes
    return None


def _axis_subsets(comparisons: Comparisons) -> Iterator[MeshAxes]:
    names = [name for name, _ in comparisons[0].mesh] if comparisons else []
    return chain.from_iterable(combinations(names, k) for k in range(1, len(names) + 1))


# ----------------------------------------------------------------------------------- the shards


def _shards(comparison: Comparison, n: int) -> Iterator[tuple[list[Array], list[Array]]]:
    """Yield the n expected and the n actual shards along each dimension that n divides."""
    if comparison.actual.shape != comparison.expected.shape:
        return
    for dim, size in enumerate(comparison.expected.shape):
        if size and size % n == 0:
            yield np.split(comparison.expected, n, dim), np.split(comparison.actual, n, dim)


def _is_permuted(comparison: Comparison, expected: list[Array], actual: list[Array]) -> bool:
    order: dict[int, None] = {}
    index = _ShardIndex(expected, comparison.atol)
    for shard in actual:
        position = index.find(shard)
        # A shard that is missing, or there twice, means that values are wrong too.
        if position is None or position in order:
            return False
        order[position] = None
    return list(order) != sorted(order)


class _ShardIndex:
    """Finds the shard that is close to another one, about as fast among 100,000 as among 8.

    Each shard is hashed to one number, a weighted sum: close shards have close sums, so a binary
    search leaves only a few to compare in full.
    """

    def __init__(self, shards: list[Array], atol: float) -> None:
        self._shards, self._atol = shards, atol
        rng = np.random.default_rng(0)
        self._weights = np.asarray(rng.uniform(0.5, 1.5, shards[0].shape))
        # Distinct weights: shards with the same elements in another order get different sums.
        sums = np.array([self._weighted_sum(shard) for shard in shards])
        self._order = np.argsort(sums, kind="stable")
        self._sums = sums[self._order]
        # The second term covers the rounding errors of the weighted sum itself.
        largest = np.abs(self._sums).max(initial=0.0)
        self._radius = atol * float(self._weights.sum()) + 1e-9 * float(largest)

    def find(self, shard: Array) -> int | None:
        """Return the first position of a shard that is close to this one."""
        center = self._weighted_sum(shard)
        low = np.searchsorted(self._sums, center - self._radius, "left")
        high = np.searchsorted(self._sums, center + self._radius, "right")
        positions = sorted(map(int, self._order[low:high]))
        return next((i for i in positions if is_close(shard, self._shards[i], self._atol)), None)

    def _weighted_sum(self, shard: Array) -> float:
        real = np.nan_to_num(np.real(shard).astype(np.float64), posinf=0.0, neginf=0.0)
        return float((real * self._weights).sum())


def _is_first_right(comparison: Comparison, expected: list[Array], actual: list[Array]) -> bool:
    # All others must be wrong: with a single wrong shard the cause is another one.
    agreement = [is_close(a, b, comparison.atol) for a, b in zip(actual, expected, strict=True)]
    return agreement[0] and not any(agreement[1:])


def _is_repeated(comparison: Comparison, expected: list[Array], actual: list[Array]) -> bool:
    def all_close(shards: list[Array]) -> bool:
        return all(is_close(shard, shards[0], comparison.atol) for shard in shards)

    # Equal shards on one device too (a tiled array) are no sign of repeated random numbers.
    if all_close(actual):
        return not all_close(expected)
    actual_zeros = [shard == 0 for shard in actual]
    expected_zeros = [shard == 0 for shard in expected]
    has_zeros = any(mask.any() for mask in actual_zeros)
    return has_zeros and all_close(actual_zeros) and not all_close(expected_zeros)


def _repeated_term(comparison: Comparison, axes: MeshAxes) -> Array:
    """Return the term that is counted n - 1 times too often."""
    if comparison.actual.shape != comparison.expected.shape:
        return np.zeros(())
    with np.errstate(invalid="ignore"):
        difference = _as_float(comparison.actual) - _as_float(comparison.expected)
        term: Array = difference / (comparison.n(axes) - 1)
    return term


# What is barely larger than rounding errors matches anything.
_NEGLIGIBLE_FACTOR = 16


def _is_negligible(array: Array, atol: float) -> bool:
    return is_close(array, np.zeros_like(array), _NEGLIGIBLE_FACTOR * atol)


def _find_equal_argument(
    terms: Sequence[Array], atol: float, arguments: Mapping[str, Array]
) -> str:
    """Return the path of the argument that equals every term, broadcast if needed; else ''."""
    for path, argument in arguments.items():
        full = _broadcast_argument(argument, terms[0].shape)
        if full is None or _is_negligible(full, atol):
            continue
        if all(compare_arrays(term, full, 4 * atol).all() for term in terms):
            return path
    return ""


def _broadcast_argument(argument: Array, shape: tuple[int, ...]) -> Array | None:
    """Return a float argument broadcast to a shape, or None."""
    if argument.dtype.kind not in "fc" or argument.ndim > len(shape) or not argument.size:
        return None
    try:
        return np.broadcast_to(argument, shape)
    except ValueError:
        return None


def _as_float(array: Array) -> Array:
    return array if array.dtype.kind in "fc" else array.astype(np.float64)
