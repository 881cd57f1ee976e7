"""Values that differ: why, read from all cases of a part, and in words with one case's numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardlab.checks import causes
from shardlab.checks.cause_text import FIXES
from shardlab.checks.cause_text import cause_message as told_of
from shardlab.checks.diverging_devices import coordinate_ranges
from shardlab.checks.tolerance import Comparison, compare_arrays, is_close
from shardlab.judge.grading.evidence import Evidence, index, number
from shardlab.judge.verdict import Verdict
from shardlab.sharding.mesh import Mesh

Places = tuple[str, ...]
_ALL: Places = ("0", "1", "2")


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A named cause, the mesh axes it is about by their places, and an argument where one is."""

    name: str = ""
    places: Places = ()
    part: str = ""  # the argument that is counted n times, or beside which all else is
    variant: str = ""  # beside, beside_divided; of a gradient, factor_of_n or divided_by_n


UNKNOWN = Cause()


@dataclass(frozen=True)
class Known:
    """What is known of an output beside its numbers."""

    has_gradients: bool = False  # the task takes gradients
    others_agree: bool = False  # all other outputs are right on every mesh


NOTHING_KNOWN = Known()


def cause_of(seen: Sequence[Evidence], known: Known = NOTHING_KNOWN) -> Cause:
    """Return what explains one output on every mesh on which it was compared."""
    compared = [each for each in seen if each.mesh is not None]
    if compared and all(each.is_judged_by_properties for each in compared):
        return _same_random_numbers(compared) or UNKNOWN
    wrong = [each for each in compared if not each.agrees]
    if not wrong or max(each.comparison.n(_ALL) for each in wrong) == 1:
        return UNKNOWN
    # What agrees rules causes out; where that leaves none, the wrong ones are asked alone.
    for group in (compared, wrong) if len(wrong) < len(compared) else (compared,):
        found = _asked(group, known)
        if found.name:
            return found
    return UNKNOWN


def _asked(seen: Sequence[Evidence], known: Known) -> Cause:
    all_seen = [each.comparison for each in seen]
    if all_seen[0].expected.dtype.kind != "b":
        for ask in (causes.factor_of_n, causes.divided_by_n):
            if places := ask(all_seen):
                is_gradient = known.has_gradients and known.others_agree
                name = "gradient_scaled_by_n" if is_gradient else ask.__name__
                return Cause(name=name, places=places, variant=ask.__name__)
    return (
        _by(causes.shards_permuted, all_seen)
        or _of_argument(seen, known)
        or _mean_of_means(seen)
        or _by(causes.only_shard_0, all_seen)
        or UNKNOWN
    )


def _by(
    ask: Callable[[Sequence[Comparison]], Places | None], seen: Sequence[Comparison]
) -> Cause | None:
    places = ask(seen)
    return Cause(name=ask.__name__, places=places) if places else None


def _of_argument(seen: Sequence[Evidence], known: Known) -> Cause | None:
    """Return the argument that is counted n times, or beside which all else is scaled.

    Every case has arguments of its own, so each is asked alone; all must answer the same.
    """
    wrong = [each for each in seen if not each.agrees]
    told = set()
    for each in wrong:
        bias = causes.bias_n_times([each.comparison], each.arguments)
        if bias and bias[1]:
            told.add(Cause(name="bias_n_times", places=bias[0], part=bias[1]))
            continue
        beside = causes.factor_beside([each.comparison], each.arguments)
        if beside is None:
            return None
        name = "gradient_scaled_by_n" if known.has_gradients else beside[0]
        variant = "beside" if beside[0] == "factor_of_n" else "beside_divided"
        told.add(Cause(name=name, places=beside[1], part=beside[2], variant=variant))
    return _common(told, seen)


def _common(told: set[Cause], seen: Sequence[Evidence]) -> Cause | None:
    """Return one cause for all, if it explains too why the others agree."""
    if len({(each.name, each.part) for each in told}) != 1:
        return None
    places = min((each.places for each in told), key=len)
    found = replace(next(iter(told)), places=places)
    if all(each.agrees or each.comparison.n(places) > 1 for each in seen):
        return found
    return None


def _mean_of_means(seen: Sequence[Evidence]) -> Cause | None:
    """Ask whether the result is the average of what each device's piece gives alone."""
    for places in (("0",), ("1",), ("0", "1")):
        spread = [each for each in seen if each.comparison.n(places) > 1 and not each.agrees]
        alone = [each for each in seen if each.comparison.n(places) == 1]
        if (
            spread
            and all(each.agrees for each in alone)
            and all(_is_mean(each, each.comparison.n(places)) for each in spread)
        ):
            return Cause(name="mean_of_means", places=places)
    return None


def _is_mean(each: Evidence, n: int) -> bool:
    alone = [results.get(each.output.path) for results in each.pieces(n)]
    if len(alone) != n or any(a is None or a.shape != each.expected.shape for a in alone):
        return False
    mean = np.mean([np.asarray(a, np.float64) for a in alone], axis=0)
    return is_close(each.whole, mean, 2 * each.atol)


def _same_random_numbers(seen: Sequence[Evidence]) -> Cause | None:
    """Ask whether pieces repeat where random numbers are drawn and many results would be right."""
    rng = np.random.default_rng(0)
    free = [
        replace(
            each.comparison, expected=rng.integers(0, 2, each.expected.shape).astype(np.float32)
        )
        for each in seen
        if each.expected.size >= 8 * each.comparison.n(_ALL)
    ]
    found = causes.same_random_numbers(free)
    return Cause(name="same_random_numbers", places=found) if found else None


# ------------------------------------------------------------------------------------- in words


def fix_of(cause: str, mesh: Mesh | None) -> str:
    """Return what to try against a cause that is about the first mesh axis."""
    if not cause or mesh is None or cause == "bias_n_times":
        return ""
    name = mesh.axis_names[0]
    return FIXES[cause].format(axes=repr(name), axis=name)


def verdict(each: Evidence, cause: Cause, is_checked: bool = False) -> Verdict:
    """Return the verdict on one case in its own numbers.

    `is_checked` tells of a shard_map with check_vma=True, in which JAX adds up gradients itself.
    """
    names = each.names(cause.places)
    n = each.comparison.n(cause.places)
    if cause.name and n > 1:
        told = _SENTENCES[cause.name](each, cause, n, " and ".join(map(repr, names)))
        blanks = {
            "axes": " and ".join(map(repr, names)),
            "axis": names[0],
            "part": f"argument {cause.part}",
        }
        details = {"mesh_axes": list(names), **({"argument": cause.part} if cause.part else {})}
        is_summed = is_checked and not cause.variant.endswith(("divided", "divided_by_n"))
        fix = told_of(cause.name, is_summed=is_summed)[1].format(**blanks)
        return Verdict(code="WA", what=told, fix=fix, cause=cause.name, details=details)
    return Verdict(code="WA", what=_plain(each))


def _factor(each: Evidence, cause: Cause, n: int, axes: str) -> str:
    if cause.variant == "beside":
        return (
            f"{_first_wrong(each)}: beside argument {cause.part} it adds {n}x what it should, the "
            f"size of {axes}."
        )
    return f"{_first_wrong(each)}: off by exactly {n}x, the size of {axes}: reduced twice?"


def _divided(each: Evidence, cause: Cause, n: int, axes: str) -> str:
    if cause.variant == "beside_divided":
        return (
            f"{_first_wrong(each)}: beside argument {cause.part} it adds 1/{n} of what it should, "
            f"{n} being the size of {axes}."
        )
    return f"{_first_wrong(each)}: exactly 1/{n} of it, {n} being the size of {axes}."


def _permuted(each: Evidence, cause: Cause, n: int, axes: str) -> str:
    order = _order(each, n)
    moved = "; ".join(f"piece {right} is where piece {at} belongs" for at, right in order[:4])
    more = " ..." if len(order) > 4 else ""
    return f"{each.name} has the right pieces in another order along {axes}: {moved}{more}."


def _order(each: Evidence, n: int) -> list[tuple[int, int]]:
    """Return each place that holds another place's piece, with whose it is."""
    right, found = each.expected, each.whole
    for axis, size in enumerate(right.shape):
        if size % n:
            continue
        pieces, held = np.split(right, n, axis), np.split(found, n, axis)
        order = [
            next((i for i, piece in enumerate(pieces) if is_close(h, piece, each.atol)), None)
            for h in held
        ]
        if None not in order and len(set(order)) == n:
            return [(at, i) for at, i in enumerate(order) if i is not None and i != at]
    return []


def _only_first(each: Evidence, cause: Cause, n: int, axes: str) -> str:
    return (
        f"{each.name} is right in the first of {n} pieces along {axes} and wrong in the others: "
        f"{_first_wrong(each)}."
    )


def _bias(each: Evidence, cause: Cause, n: int, axes: str) -> str:
    return f"{_first_wrong(each)}: argument {cause.part} is counted {n} times, the size of {axes}."


def _gradient(each: Evidence, cause: Cause, n: int, axes: str) -> str:
    if cause.variant.startswith("beside"):
        factor = f"1/{n}, {n} being" if cause.variant == "beside_divided" else f"{n},"
        return (
            f"{_first_wrong(each)}: the gradient that moves {cause.part} is scaled by {factor} "
            f"the size of {axes}."
        )
    by = f"1/{n} of" if cause.variant == "divided_by_n" else f"{n}x"
    return (
        f"{_first_wrong(each)}: the gradient is {by} what it should be, {n} being the size of "
        f"{axes}; the other values are right."
    )


def _means(each: Evidence, cause: Cause, n: int, axes: str) -> str:
    return (
        f"{_first_wrong(each)}: it is the mean of {n} means, one for each piece along {axes}, and "
        "the pieces do not weigh the same."
    )


def _random(each: Evidence, cause: Cause, n: int, axes: str) -> str:
    return f"All {n} pieces of {each.name} along {axes} use the same random numbers."


_SENTENCES: dict[str, Callable[[Evidence, Cause, int, str], str]] = {
    "factor_of_n": _factor,
    "divided_by_n": _divided,
    "shards_permuted": _permuted,
    "only_shard_0": _only_first,
    "bias_n_times": _bias,
    "gradient_scaled_by_n": _gradient,
    "mean_of_means": _means,
    "same_random_numbers": _random,
}


def _first_wrong(each: Evidence) -> str:
    """Return the first element that is wrong: `result[0, 2] is 8, want 2`."""
    wrong = ~compare_arrays(each.whole, each.expected, each.atol)
    at = tuple(map(int, np.argwhere(wrong)[0])) if wrong.any() else (0,) * wrong.ndim
    got, want = each.whole[at], each.expected[at]
    return f"{each.name}{index(at)} is {number(got)}, want {number(want)}"


def _plain(each: Evidence) -> str:
    wrong = ~compare_arrays(each.whole, each.expected, each.atol)
    told = _first_wrong(each)
    if each.whole.ndim:
        told += f"; {int(wrong.sum())} of {wrong.size} elements differ"
    bad, all_devices = each.wrong_devices, [shard.device for shard in each.output.shards]
    if len(bad) == len(all_devices) and len(bad) > 1:
        told += ", on every device"
    elif bad and len(all_devices) > 1:
        noun = "device" if len(bad) == 1 else "devices"
        told += f", on {noun} {coordinate_ranges(bad)} of {len(all_devices)}"
    return told + "."
