"""Sentences, fixes and value lines for a result that depends on the mesh, by cause.

Templates have the fields `axes` (quoted), `axis` (the first one), `factor`, `factor_of`,
`argument`, `number` and `place` (`on one device`). `FIXES` use `axes` and `axis` only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardlab.checks.evidence_text import array_text
from shardlab.checks.tolerance import Comparison, compare_arrays, is_close
from shardlab.sharding.mesh import mesh_text
from shardlab.simulator.repair import Repair

SENTENCES = {
    "factor_of_n": "is n times the value {place}, where n is the size of {axes}.",
    "divided_by_n": "is 1/n of the value {place}, where n is the size of {axes}.",
    "shards_permuted": "has the right shards in the wrong order: they are permuted along {axes}.",
    "only_shard_0": "is right on the first device along {axes} and wrong on all others: each "
    "device computes its shard as if it were the first.",
    "bias_n_times": "counts {argument} n times, where n is the size of {axes}.",
    "gradient_scaled_by_n": "is {factor} {factor_of}the gradient {place}, where n is the "
    "size of {axes}; the values themselves are right.",
    "mean_of_means": "is a mean of means over {axes}: each device divides by its own count, so "
    "elements in smaller groups have more weight.",
    "same_random_numbers": "uses the same random numbers on every device along {axes}.",
    "reversed_ppermute": "differs from the result {place}: a ppermute over {axes} sends in the "
    "direction opposite to the one in which the program counts devices.",
    "local_reduction": "differs from the result {place}: each device reduces the elements of its "
    "own shard, and the reduction over {axes} is missing.",
    "": "differs from the result {place}; the cause is not known.",
}
FIXES = {
    "factor_of_n": "a value that is already summed or replicated is summed over {axes} again: "
    "remove that psum, or use pmean.",
    "divided_by_n": "a sum over {axes} is also divided by the size of {axes}: use psum for sums, "
    "and pmean for means over equal counts.",
    "shards_permuted": "compare the order of mesh axes in in_specs and out_specs, and the "
    "(source, destination) pairs of a ppermute.",
    "only_shard_0": "check what depends on the position along {axes}: an index into the full array "
    "is the local one plus jax.lax.axis_index('{axis}') * (local size), a value needs no such "
    "offset, and running sums and rows of a neighbor need the values of the devices before.",
    "bias_n_times": "add it after the psum over {axes}, so that it is counted once.",
    "gradient_scaled_by_n": "sum each gradient over {axes} exactly once. With check_vma=True JAX "
    "inserts that sum; with check_vma=False or in a custom_vjp look for a psum that is missing, "
    "redundant, or should be a pmean.",
    "mean_of_means": "sum first and divide last: psum(total, '{axis}') / psum(count, '{axis}').",
    "same_random_numbers": "give each device its own key: "
    "jax.random.fold_in(key, jax.lax.axis_index('{axis}')).",
    "reversed_ppermute": "exchange source and destination in the pairs of the ppermute, or count "
    "devices in the direction in which the shards travel.",
    "local_reduction": "complete it over {axes}: jax.lax.psum for a sum, pmean for a mean over "
    "equal counts, pmax for a maximum.",
    "": "check these collectives, the last one first: what each one sums or sends, and over which "
    "mesh axes.",
}
_UPDATE_FIX = (
    "sum each gradient over {axes} exactly once, and use pmean instead of psum if the loss is a "
    "mean over the batch."
)
_NUMBER_FIX = (
    "no collective is on the path, so the number of devices or the size of a shard is a number in "
    "the computation (jax.device_count(), mesh.size, the shape of a shard): leave it out. Under "
    "jit, sums and means are those of the full array already."
)
# (cause, variant) -> a more specific sentence, fix, or both; "" falls back to the tables above.
_VARIANTS: dict[tuple[str, str], tuple[str, str]] = {
    ("factor_of_n", "beside"): (
        "is {argument} plus n times what is added to it {place}, where n is the size of {axes}.",
        "",
    ),
    ("divided_by_n", "beside"): (
        "is {argument} plus 1/n of what is added to it {place}, where n is the size of {axes}.",
        "",
    ),
    ("divided_by_n", "count_of_shard"): (
        "is 1/n of the value {place}, where n is the size of {axes}: each device counts the "
        "elements of its own shard.",
        "sum the counts, jax.lax.psum(count, '{axis}'), or take the shape outside of the "
        "shard_map.",
    ),
    ("factor_of_n", "number"): ("", _NUMBER_FIX),
    ("divided_by_n", "number"): ("", _NUMBER_FIX),
    ("gradient_scaled_by_n", "number"): ("", _NUMBER_FIX),
    ("factor_of_n", "written"): (
        "",
        "the sum over {axes} is divided by the constant {number}: if that is meant to be the "
        "number of devices, the result is right on {number} devices only; divide by "
        "jax.lax.axis_size('{axis}'), or use pmean.",
    ),
    ("factor_of_n", "sum_of_means"): (
        "is a sum of means over {axes}: each device divides by its own count, and the n quotients "
        "are summed.",
        "sum first and divide last: psum(total, '{axis}') / psum(count, '{axis}').",
    ),
    ("gradient_scaled_by_n", "beside"): (
        "moves {argument} {factor} as far as {place}, where n is the size of {axes}: the "
        "gradient in it is {factor} {factor_of}the gradient {place}.",
        _UPDATE_FIX,
    ),
    ("factor_of_n", "repaired"): (
        "differs from the result {place}: a sum over {axes} is n times too large, where n "
        "is the size of {axes}.",
        "",
    ),
    ("gradient_scaled_by_n", "repaired"): (
        "differs from the result {place}: the gradient in it is {factor} {factor_of}the gradient "
        "{place}, where n is the size of {axes}.",
        _UPDATE_FIX,
    ),
    ("divided_by_n", "repaired"): (
        "differs from the result {place}: a mean over {axes} should be a sum.",
        "",
    ),
    ("bias_n_times", "repaired"): (
        "counts a term n times, where n is the size of {axes}: it is the same on every device, and "
        "is added before the sum over {axes}.",
        "",
    ),
    ("only_shard_0", "repaired"): (
        "uses indices that start at 0 on every device along {axes}.",
        "indices into the full array need an offset on each device: jax.lax.axis_index('{axis}') * "
        "(local size).",
    ),
    ("", "alone"): (
        "",
        "no collective is on the path to this output, so each device computes it from its own "
        "shard. A mean, norm or maximum of the full array, or rows of a neighbor, need one (psum, "
        "pmean, pmax, ppermute).",
    ),
    ("", "no_one_device"): (
        "",
        "the program does not run on one device, and the meshes it runs on disagree: a device "
        "count seems to be hard-coded; use jax.lax.axis_size instead.",
    ),
}
_ALREADY_SUMMED_FIX = (
    "with check_vma=True JAX sums the gradients of replicated arguments over {axes} by itself: "
    "take the mean inside the function that is differentiated (lax.pmean(loss, '{axis}')), or "
    "divide the gradient by lax.axis_size('{axis}'); a pmean of it afterwards changes nothing."
)
_MAX_PATHS = 4
_MAX_MESHES = 6


def cause_message(cause: str, variant: str = "", is_summed: bool = False) -> tuple[str, str]:
    """Return the sentence and fix templates for a cause.

    `is_summed` says that JAX has already summed this gradient over the devices.
    """
    sentence, fix = _VARIANTS.get((cause, variant), ("", ""))
    if cause == "gradient_scaled_by_n" and is_summed:
        fix = _ALREADY_SUMMED_FIX
    return sentence or SENTENCES[cause], fix or FIXES[cause]


# The cause that a repair proves, by its kind.
CAUSES_OF_REPAIRS = {
    "divide": "factor_of_n",
    "multiply": "divided_by_n",
    "count_once": "bias_n_times",
    "divide_last": "mean_of_means",
    "offset": "only_shard_0",
    "slice_offset": "only_shard_0",
    "reverse": "reversed_ppermute",
    "sum_shards": "local_reduction",
    "average_shards": "local_reduction",
    "maximum_of_shards": "local_reduction",
}
_REPAIR_TEXTS = {
    "divide": "divide the sum by the size of {axes}",
    "multiply": "multiply the mean by the size of {axes}",
    "count_once": "add the term that is the same along {axes} once",
    "divide_last": "sum both operands of the division over {axes} first",
    "offset": "add the offset of the shard along {axes} to the indices",
    "slice_offset": "add the offset of the shard along {axes} to the start of the slice",
    "reverse": "send along {axes} in the other direction",
    "sum_shards": "sum it over {axes} with a psum",
    "average_shards": "average it over {axes} with a pmean",
    "maximum_of_shards": "take the maximum over {axes} with a pmax",
}


def repair_line(repair: Repair) -> str:
    """Return what was changed at which line to make all values right."""
    change = _REPAIR_TEXTS[repair.kind].format(axes=" and ".join(map(repr, repair.mesh_axes)))
    return f"{repair.source}: {change}, and the values are right on every mesh"


def paths_text(paths: Sequence[str], kind: str) -> str:
    """Return the names of outputs or gradients as the subject of a sentence.

    >>> paths_text([""], "output"), paths_text(["['w']", "['b']"], "gradient")
    ('The output', "The gradient with respect to ['w'], ['b']")
    """
    names = ", ".join(paths[:_MAX_PATHS])
    if len(paths) > _MAX_PATHS:
        names += f" and {len(paths) - _MAX_PATHS} more"
    if kind == "gradient":
        return f"The gradient with respect to {names}"
    return f"Output {names}" if names else "The output"


def comparison_lines(
    comparisons: Sequence[Comparison], cause: str, place: str = "on one device"
) -> tuple[str, ...]:
    """Return a line for each mesh that disagrees, and the value on the reference."""
    wrong = [item for item in comparisons if not item.agrees]
    expected = comparisons[0].expected
    digits = _digits_to_differ(wrong) if expected.ndim == 0 else 5
    lines = [
        f"on {mesh_text(item.mesh)}: {_difference_text(item, cause, digits)}"
        for item in wrong[:_MAX_MESHES]
    ]
    if len(wrong) > _MAX_MESHES:
        lines.append(f"and on {len(wrong) - _MAX_MESHES} more")
    return (*lines, f"{place}: {array_text(expected, digits)}")


def _difference_text(comparison: Comparison, cause: str, digits: int) -> str:
    expected, actual = comparison.expected, comparison.actual
    text = array_text(actual, digits)
    # One factor for all elements says more than the first wrong element.
    if cause in ("factor_of_n", "divided_by_n") and _is_scaled(comparison):
        largest = np.unravel_index(np.argmax(np.abs(expected)), expected.shape)
        return f"{text}, x{abs(actual[largest] / expected[largest]):.4g}"
    if actual.ndim == 0:
        return text
    wrong = ~compare_arrays(actual, expected, comparison.atol)
    index = tuple(np.argwhere(wrong)[0].tolist())
    element = Comparison(comparison.mesh, np.asarray(expected[index]), np.asarray(actual[index]))
    digits = _digits_to_differ([element])
    # The elements that differ may be among those left out; the same text twice shows nothing.
    prefix = "" if text == array_text(expected, 5) else f"{text}, "
    return (
        f"{prefix}{int(wrong.sum())} of {actual.size} elements differ; the first, {list(index)}, "
        f"is {array_text(element.actual, digits)}, expected {array_text(element.expected, digits)}"
    )


def _is_scaled(comparison: Comparison) -> bool:
    """Return whether every element is multiplied by the same factor."""
    expected, actual = comparison.expected, comparison.actual
    largest = np.unravel_index(np.argmax(np.abs(expected)), expected.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = actual[largest] / expected[largest]
        return bool(np.isfinite(ratio)) and is_close(
            actual * 1.0, expected * ratio, max(abs(ratio), 1) * comparison.atol
        )


def _digits_to_differ(comparisons: Sequence[Comparison]) -> int:
    """Return how many digits it takes for each pair of values to look different."""
    # float32 has about 9 significant digits, float64 17.
    for digits in (5, 9):
        if all(
            array_text(item.actual, digits) != array_text(item.expected, digits)
            for item in comparisons
        ):
            return digits
    return 17
