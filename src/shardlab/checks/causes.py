"""Why a result changes with the mesh, read from the numbers: one small question each.

Every question gets one array on one device and on several meshes, and answers with the mesh axes
that explain all of them, or None. On a mesh where those axes have one device, the array must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations

import numpy as np

from shardlab.checks.tolerance import Array, Comparison, compare_arrays, is_close

MeshAxes = tuple[str, ...]
Comparisons = Sequence[Comparison]


def factor_of_n(seen: Comparisons) -> MeshAxes | None:
    """Return the mesh axes of n devices where the result is n times that of one device."""
    return _axes_where(seen, lambda c, n: is_close(c.many, n * _float(c.one), n * c.atol))


def divided_by_n(seen: Comparisons) -> MeshAxes | None:
    """Return the mesh axes of n devices where the result is 1/n of that of one device."""
    return _axes_where(seen, lambda c, n: is_close(n * _float(c.many), c.one, c.atol))


def shards_permuted(seen: Comparisons) -> MeshAxes | None:
    """Return the mesh axes over which the right pieces come in another order."""
    # Two mesh axes in the wrong order show only where both have more than one device.
    return _axes_where(
        seen, lambda c, n: c.agrees or any(_is_permuted(c, *b) for b in _blocks(c, n))
    )


def only_shard_0(seen: Comparisons) -> MeshAxes | None:
    """Return the mesh axes along which the first piece is right and every other is wrong."""
    return _axes_where(seen, lambda c, n: any(_is_first_right(c, *b) for b in _blocks(c, n)))


def same_random_numbers(seen: Comparisons) -> MeshAxes | None:
    """Return the mesh axes along which every piece is a repetition of the first.

    Where random numbers only choose what is set to zero (dropout), the zeros repeat.
    """
    return _axes_where(seen, lambda c, n: any(_is_repeated(c, *b) for b in _blocks(c, n)))


def bias_n_times(
    seen: Comparisons, arguments: Mapping[str, Array] | None = None
) -> tuple[MeshAxes, str] | None:
    """Return the mesh axes over which a part of the result is counted n times, and which part.

    The result is then `right + (n - 1) * part` with one and the same part for every n. Two sizes
    show that; with one size the part must be an argument, whose path is returned.
    """
    for axes in _subsets(seen):
        parts = [(c.n(axes), _part(c, axes), c) for c in seen if c.n(axes) > 1]
        if not parts or not all(c.agrees for c in seen if c.n(axes) == 1):
            continue
        _, first, where = parts[0]
        if any(part.shape != first.shape for _, part, _ in parts) or _is_faint(first, where.atol):
            continue
        if not np.isfinite(first).all():  # NaN equals NaN, and would fit everything
            continue
        if not all(is_close(part, first, 2 * c.atol) for _, part, c in parts):
            continue
        path = _argument_like([part for _, part, _ in parts], where.atol, arguments or {})
        if path or len({n for n, _, _ in parts}) > 1:
            return axes, path
    return None


def factor_beside(
    seen: Comparisons, arguments: Mapping[str, Array]
) -> tuple[str, MeshAxes, str] | None:
    """Return by what all but an argument is scaled, the mesh axes, and the path of that argument.

    An update `w - rate * gradient` with a gradient that is n times too large, or a bias that is
    added to a sum taken twice.
    """
    for path, argument in arguments.items():
        beside = []
        for c in seen:
            whole = _broadcast(argument, c.one.shape)
            if whole is None or _is_faint(whole, c.atol):
                break
            one, many = _float(c.one) - whole, _float(c.many) - whole
            if _is_faint(one, c.atol):
                break
            beside.append(Comparison(c.mesh, one, many, 2 * c.atol))
        if len(beside) < len(seen):
            continue
        for cause in (factor_of_n, divided_by_n):
            if axes := cause(beside):
                return cause.__name__, axes, path
    return None


def is_sum(seen: Comparisons, axes: MeshAxes) -> bool:
    """Say whether results are nearer to those of one device when divided by n: sums, no means."""

    def apart(c: Comparison, n: int) -> float:
        with np.errstate(invalid="ignore", over="ignore"):
            return float(np.nansum(np.abs(_float(c.many) / n - _float(c.one))))

    wrong = [c for c in seen if c.n(axes) > 1 and not c.agrees]
    return bool(wrong) and all(apart(c, c.n(axes)) < apart(c, 1) for c in wrong)


# ------------------------------------------------------------------------------ which mesh axes


def _axes_where(seen: Comparisons, holds: Callable[[Comparison, int], bool]) -> MeshAxes | None:
    """Return the fewest mesh axes for whose size `holds` on every mesh."""
    for axes in _subsets(seen):
        sizes = [c.n(axes) for c in seen]
        if max(sizes, default=1) == 1 or not any(
            n > 1 and not c.agrees for c, n in zip(seen, sizes, strict=True)
        ):
            continue
        if all(holds(c, n) if n > 1 else c.agrees for c, n in zip(seen, sizes, strict=True)):
            return axes
    return None


def _subsets(seen: Comparisons) -> Iterator[MeshAxes]:
    names = [name for name, _ in seen[0].mesh] if seen else []
    return chain.from_iterable(combinations(names, k) for k in range(1, len(names) + 1))


# ---------------------------------------------------------------------------------- the pieces


def _blocks(c: Comparison, n: int) -> Iterator[tuple[list[Array], list[Array]]]:
    """Yield the n pieces on one device and on the mesh, along each array axis that n divides."""
    for axis, size in enumerate(c.one.shape):
        if c.many.shape == c.one.shape and size and size % n == 0:
            yield np.split(c.one, n, axis), np.split(c.many, n, axis)


def _is_permuted(c: Comparison, right: list[Array], found: list[Array]) -> bool:
    order: dict[int, None] = {}
    among = _Pieces(right, c.atol)
    for piece in found:
        place = among.place(piece)
        if place is None or place in order:
            return False
        order[place] = None
    return list(order) != sorted(order)


class _Pieces:
    """Pieces to look up by their numbers, in about the same time for 100,000 as for 8.

    Each is reduced to one number, a weighted sum, in which close pieces are close.
    """

    def __init__(self, pieces: list[Array], atol: float) -> None:
        self._pieces, self._atol = pieces, atol
        rng = np.random.default_rng(0)
        self._weights = np.asarray(rng.uniform(0.5, 1.5, pieces[0].shape))
        numbers = np.array([self._number(piece) for piece in pieces])
        self._order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[self._order]
        # What roundings of the sum itself may add is little beside it.
        largest = np.abs(self._numbers).max(initial=0.0)
        self._apart = atol * float(self._weights.sum()) + 1e-9 * float(largest)

    def place(self, piece: Array) -> int | None:
        """Return the first place at which a piece stands that is close to this one."""
        number = self._number(piece)
        low = np.searchsorted(self._numbers, number - self._apart, "left")
        high = np.searchsorted(self._numbers, number + self._apart, "right")
        near = sorted(map(int, self._order[low:high]))
        return next((i for i in near if is_close(piece, self._pieces[i], self._atol)), None)

    def _number(self, piece: Array) -> float:
        real = np.nan_to_num(np.real(piece).astype(np.float64), posinf=0.0, neginf=0.0)
        return float((real * self._weights).sum())


def _is_first_right(c: Comparison, right: list[Array], found: list[Array]) -> bool:
    agrees = [is_close(a, b, c.atol) for a, b in zip(found, right, strict=True)]
    return agrees[0] and not any(agrees[1:])


def _is_repeated(c: Comparison, right: list[Array], found: list[Array]) -> bool:
    def repeats(pieces: list[Array]) -> bool:
        return all(is_close(piece, pieces[0], c.atol) for piece in pieces)

    if repeats(found):
        return not repeats(right)
    zeros, were = [piece == 0 for piece in found], [piece == 0 for piece in right]
    some = any(piece.any() for piece in zeros)
    return some and repeats(zeros) and not repeats(were)


def _part(c: Comparison, axes: MeshAxes) -> Array:
    if c.many.shape != c.one.shape:
        return np.zeros(())
    with np.errstate(invalid="ignore"):
        part: Array = (_float(c.many) - _float(c.one)) / (c.n(axes) - 1)
    return part


# What is barely more than rounding could be anything.
_FAINT = 16


def _is_faint(array: Array, atol: float) -> bool:
    return is_close(array, np.zeros_like(array), _FAINT * atol)


def _argument_like(parts: Sequence[Array], atol: float, arguments: Mapping[str, Array]) -> str:
    """Return the path of the argument that every part is, perhaps broadcast; else nothing."""
    for path, argument in arguments.items():
        whole = _broadcast(argument, parts[0].shape)
        if whole is None or _is_faint(whole, atol):
            continue
        if all(compare_arrays(part, whole, 4 * atol).all() for part in parts):
            return path
    return ""


def _broadcast(argument: Array, shape: tuple[int, ...]) -> Array | None:
    """Return a float argument in a shape, if it can have it."""
    if argument.dtype.kind not in "fc" or argument.ndim > len(shape) or not argument.size:
        return None
    try:
        return np.broadcast_to(argument, shape)
    except ValueError:
        return None


def _float(array: Array) -> Array:
    return array if array.dtype.kind in "fc" else array.astype(np.float64)
