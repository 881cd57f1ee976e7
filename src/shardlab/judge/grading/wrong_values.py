"""Values that differ: the cause, read from all cases of a part, and a sentence for each case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardlab.checks import causes
from shardlab.checks.cause_text import FIXES, cause_message
from shardlab.checks.diverging_devices import coordinate_ranges
from shardlab.checks.tolerance import Comparison, compare_arrays, is_close
from shardlab.judge.grading.evidence import Evidence, index_text, number_text
from shardlab.judge.verdict import Verdict
from shardlab.sharding.mesh import Mesh

AxisPositions = tuple[str, ...]
_ALL_AXES: AxisPositions = ("0", "1", "2")
_MAX_MOVES = 4


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A named cause, the positions of its mesh axes, and an argument if there is one."""

    name: str = ""
    axes: AxisPositions = ()
    argument: str = ""  # the one that is added n times, or that everything is added to
    variant: str = ""  # beside, beside_divided; of a gradient, factor_of_n or divided_by_n


UNKNOWN_CAUSE = Cause()


@dataclass(frozen=True)
class OutputContext:
    """What is known about an output beside its numbers."""

    has_gradients: bool = False  # the task computes gradients
    others_agree: bool = False  # all other outputs are right on every mesh


NO_CONTEXT = OutputContext()


# ---------------------------------------------------------------------------------------- the cause


def find_cause(evidence: Sequence[Evidence], context: OutputContext = NO_CONTEXT) -> Cause:
    """Return what explains one output on every mesh on which it was compared."""
    compared = [item for item in evidence if item.mesh is not None]
    if compared and all(item.is_judged_by_properties for item in compared):
        return _same_random_numbers(compared) or UNKNOWN_CAUSE
    wrong = [item for item in compared if not item.agrees]
    if not wrong or max(item.comparison.n(_ALL_AXES) for item in wrong) == 1:
        return UNKNOWN_CAUSE
    # Cases that agree rule causes out. If none is left, the wrong cases are explained alone: some
    # inputs hide a mistake by chance.
    for group in (compared, wrong) if len(wrong) < len(compared) else (compared,):
        cause = _find_common_cause(group, context)
        if cause.name:
            return cause
    return UNKNOWN_CAUSE


def _find_common_cause(evidence: Sequence[Evidence], context: OutputContext) -> Cause:
    comparisons = [item.comparison for item in evidence]
    # Factors first: n times a symmetric array is also a permutation of it. Booleans have none.
    if comparisons[0].expected.dtype.kind != "b":
        for find_axes in (causes.factor_of_n, causes.divided_by_n):
            if axes := find_axes(comparisons):
                variant = find_axes.__name__
                is_gradient = context.has_gradients and context.others_agree
                name = "gradient_scaled_by_n" if is_gradient else variant
                return Cause(name=name, axes=axes, variant=variant)
    return (
        _cause_by(causes.shards_permuted, comparisons)
        or _argument_cause(evidence, context)
        or _mean_of_means(evidence)
        or _cause_by(causes.only_shard_0, comparisons)
        or UNKNOWN_CAUSE
    )


def _cause_by(
    find_axes: Callable[[Sequence[Comparison]], AxisPositions | None],
    comparisons: Sequence[Comparison],
) -> Cause | None:
    axes = find_axes(comparisons)
    return Cause(name=find_axes.__name__, axes=axes) if axes else None


def _argument_cause(evidence: Sequence[Evidence], context: OutputContext) -> Cause | None:
    """Return the argument that is added n times, or beside which everything is scaled.

    Each case has its own arguments, so each is explained alone, and all must agree.
    """
    found_causes = set()
    for item in evidence:
        if item.agrees:
            continue
        bias = causes.bias_n_times([item.comparison], item.arguments)
        if bias and bias[1]:
            found_causes.add(Cause(name="bias_n_times", axes=bias[0], argument=bias[1]))
            continue
        beside = causes.factor_beside([item.comparison], item.arguments)
        if beside is None:
            return None
        factor, axes, argument = beside
        name = "gradient_scaled_by_n" if context.has_gradients else factor
        variant = "beside" if factor == "factor_of_n" else "beside_divided"
        found_causes.add(Cause(name=name, axes=axes, argument=argument, variant=variant))
    return _merge_causes(found_causes, evidence)


def _merge_causes(found_causes: set[Cause], evidence: Sequence[Evidence]) -> Cause | None:
    """Return one cause for all cases, if it also explains why the other cases agree."""
    if len({(cause.name, cause.argument) for cause in found_causes}) != 1:
        return None
    axes = min((cause.axes for cause in found_causes), key=len)
    if all(item.agrees or item.comparison.n(axes) > 1 for item in evidence):
        return replace(next(iter(found_causes)), axes=axes)
    return None


def _mean_of_means(evidence: Sequence[Evidence]) -> Cause | None:
    """Return whether the result is the mean of what each device's shard gives alone."""
    # The fewest axes that explain it: over more axes the shards get smaller and fit by chance.
    for axes in (("0",), ("1",), ("0", "1")):
        sharded = [item for item in evidence if item.comparison.n(axes) > 1 and not item.agrees]
        unsharded = [item for item in evidence if item.comparison.n(axes) == 1]
        if (
            sharded
            and all(item.agrees for item in unsharded)
            and all(_is_mean_of_shards(item, item.comparison.n(axes)) for item in sharded)
        ):
            return Cause(name="mean_of_means", axes=axes)
    return None


def _is_mean_of_shards(evidence: Evidence, n_shards: int) -> bool:
    results = [result.get(evidence.output.path) for result in evidence.shard_results(n_shards)]
    shape = evidence.expected.shape
    if len(results) != n_shards or any(r is None or r.shape != shape for r in results):
        return False
    mean = np.mean([np.asarray(result, np.float64) for result in results], axis=0)
    return is_close(evidence.actual, mean, 2 * evidence.atol)


def _same_random_numbers(evidence: Sequence[Evidence]) -> Cause | None:
    """Return whether shards repeat in a result that is random, so that there is no expected value.

    Random bits stand in for the expected value: they do not repeat, as a right result does not.
    """
    rng = np.random.default_rng(0)
    comparisons = [
        replace(
            item.comparison, expected=rng.integers(0, 2, item.expected.shape).astype(np.float32)
        )
        for item in evidence
        # Shards of a few random bits repeat by chance.
        if item.expected.size >= 8 * item.comparison.n(_ALL_AXES)
    ]
    axes = causes.same_random_numbers(comparisons)
    return Cause(name="same_random_numbers", axes=axes) if axes else None


# -------------------------------------------------------------------------------------- the verdict


def cause_fix(cause: str, mesh: Mesh | None) -> str:
    """Return what to try against a cause that is about the first mesh axis."""
    if not cause or mesh is None or cause == "bias_n_times":
        return ""
    name = mesh.axis_names[0]
    return FIXES[cause].format(axes=repr(name), axis=name)


def value_verdict(evidence: Evidence, cause: Cause, is_checked: bool = False) -> Verdict:
    """Return the verdict on one case with its own numbers.

    `is_checked`: the shard_map has check_vma=True, so JAX sums gradients by itself.
    """
    names = evidence.axis_names(cause.axes)
    n = evidence.comparison.n(cause.axes)
    if not cause.name or n <= 1:
        return Verdict(code="WA", what=_difference_sentence(evidence))
    axes = " and ".join(map(repr, names))
    details: dict[str, object] = {"mesh_axes": list(names)}
    if cause.argument:
        details["argument"] = cause.argument
    # With check_vma=True JAX's transposition inserts the psum of a gradient itself, so the fix
    # is another one; a gradient that is too small has no such sum.
    is_summed = is_checked and not cause.variant.endswith(("divided", "divided_by_n"))
    _, fix = cause_message(cause.name, is_summed=is_summed)
    blanks = {"axes": axes, "axis": names[0], "part": f"argument {cause.argument}"}
    return Verdict(
        code="WA",
        what=_SENTENCES[cause.name](evidence, cause, n, axes),
        fix=fix.format(**blanks),
        cause=cause.name,
        details=details,
    )


def _factor_sentence(evidence: Evidence, cause: Cause, n: int, axes: str) -> str:
    if cause.variant == "beside":
        return (
            f"{_first_wrong(evidence)}: it adds {n}x what it should to argument {cause.argument}; "
            f"{n} is the size of {axes}."
        )
    return f"{_first_wrong(evidence)}: off by exactly {n}x, the size of {axes}: reduced twice?"


def _divided_sentence(evidence: Evidence, cause: Cause, n: int, axes: str) -> str:
    if cause.variant == "beside_divided":
        return (
            f"{_first_wrong(evidence)}: it adds 1/{n} of what it should to argument "
            f"{cause.argument}; {n} is the size of {axes}."
        )
    return f"{_first_wrong(evidence)}: exactly 1/{n} of it; {n} is the size of {axes}."


def _permuted_sentence(evidence: Evidence, cause: Cause, n: int, axes: str) -> str:
    moves = _find_moves(evidence, n)
    listed = "; ".join(f"shard {shard} is at position {to}" for to, shard in moves[:_MAX_MOVES])
    ellipsis = " ..." if len(moves) > _MAX_MOVES else ""
    return (
        f"{evidence.name} has the expected shards of {axes} in another order: {listed}{ellipsis}."
    )


def _find_moves(evidence: Evidence, n: int) -> list[tuple[int, int]]:
    """Return each position that holds the shard of another position, with that shard's number."""
    for dim, size in enumerate(evidence.expected.shape):
        if size % n:
            continue
        expected_shards = np.split(evidence.expected, n, dim)
        order = [
            next((i for i, s in enumerate(expected_shards) if is_close(h, s, evidence.atol)), None)
            for h in np.split(evidence.actual, n, dim)
        ]
        if None not in order and len(set(order)) == n:
            return [(to, i) for to, i in enumerate(order) if i is not None and i != to]
    return []


def _first_shard_sentence(evidence: Evidence, cause: Cause, n: int, axes: str) -> str:
    others = "others" if n > 2 else "other"
    return (
        f"{evidence.name} is correct in the first of {n} shards over {axes} and incorrect in the "
        f"{others}: {_first_wrong(evidence)}."
    )


def _bias_sentence(evidence: Evidence, cause: Cause, n: int, axes: str) -> str:
    return (
        f"{_first_wrong(evidence)}: argument {cause.argument} is added {n} times, the size of "
        f"{axes}."
    )


def _gradient_sentence(evidence: Evidence, cause: Cause, n: int, axes: str) -> str:
    if cause.variant.startswith("beside"):
        factor = f"1/{n}; {n} is" if cause.variant == "beside_divided" else f"{n},"
        return (
            f"{_first_wrong(evidence)}: the gradient in the update of {cause.argument} is scaled "
            f"by {factor} the size of {axes}."
        )
    factor = f"1/{n} of" if cause.variant == "divided_by_n" else f"{n}x"
    return (
        f"{_first_wrong(evidence)}: the gradient is {factor} what it should be; {n} is the size of "
        f"{axes}. The other values are right."
    )


def _mean_sentence(evidence: Evidence, cause: Cause, n: int, axes: str) -> str:
    return (
        f"{_first_wrong(evidence)}: it is the mean of {n} means, one for each shard over {axes}, "
        "and the shards have different weights."
    )


def _random_sentence(evidence: Evidence, cause: Cause, n: int, axes: str) -> str:
    return f"All {n} shards of {evidence.name} over {axes} use the same random numbers."


_SENTENCES: dict[str, Callable[[Evidence, Cause, int, str], str]] = {
    "factor_of_n": _factor_sentence,
    "divided_by_n": _divided_sentence,
    "shards_permuted": _permuted_sentence,
    "only_shard_0": _first_shard_sentence,
    "bias_n_times": _bias_sentence,
    "gradient_scaled_by_n": _gradient_sentence,
    "mean_of_means": _mean_sentence,
    "same_random_numbers": _random_sentence,
}


def _first_wrong(evidence: Evidence) -> str:
    """Return the first wrong element: `result[0, 2] is 8, expected 2`."""
    wrong = ~compare_arrays(evidence.actual, evidence.expected, evidence.atol)
    index = tuple(map(int, np.argwhere(wrong)[0])) if wrong.any() else (0,) * wrong.ndim
    actual, expected = number_text(evidence.actual[index]), number_text(evidence.expected[index])
    return f"{evidence.name}{index_text(index)} is {actual}, expected {expected}"


def _difference_sentence(evidence: Evidence) -> str:
    """Return what differs, and on which devices, if no cause explains it."""
    wrong = ~compare_arrays(evidence.actual, evidence.expected, evidence.atol)
    sentence = _first_wrong(evidence)
    if evidence.actual.ndim:
        sentence += f"; {int(wrong.sum())} of {wrong.size} elements differ"
    wrong_devices, n_devices = evidence.wrong_devices, len(evidence.output.shards)
    if len(wrong_devices) == n_devices and n_devices > 1:
        sentence += ", on every device"
    elif wrong_devices and n_devices > 1:
        noun = "device" if len(wrong_devices) == 1 else "devices"
        sentence += f", on {noun} {coordinate_ranges(wrong_devices)} of {n_devices}"
    return sentence + "."
