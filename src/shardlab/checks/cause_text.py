"""What is said of a result that changes with the mesh, by cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardlab.checks.check_replicas import short
from shardlab.checks.tolerance import Comparison, compare_arrays, is_close

SENTENCES = {
    "factor_of_n": "is n times the value on one device, n being the size of {axes}.",
    "divided_by_n": "is 1/n of the value on one device, n being the size of {axes}.",
    "shards_permuted": "has the right pieces in another order: those of {axes} are permuted.",
    "only_shard_0": "is right on the first device along {axes} and wrong on the others.",
    "bias_n_times": "counts {part} n times, n being the size of {axes}.",
    "gradient_scaled_by_n": "is {factor} {of}that on one device, n being the size of {axes}; the "
    "values themselves are right.",
    "mean_of_means": "is a mean of means over {axes}: each device divides by its own count, so "
    "elements of smaller groups weigh more.",
    "same_random_numbers": "uses the same random numbers on every device along {axes}.",
    "": "is not what {reference} computes.",
}
FIXES = {
    "factor_of_n": "something that is whole already is summed over {axes} once more: leave out "
    "that psum, or take the mean (pmean).",
    "divided_by_n": "what is added up over {axes} is also divided by its size: use psum for sums, "
    "and pmean for means of equally many elements.",
    "shards_permuted": "compare the order of mesh axes in in_specs and out_specs, and the pairs "
    "(source, destination) of a ppermute.",
    "only_shard_0": "what depends on the position in the whole array needs an offset: "
    "jax.lax.axis_index('{axis}') * (local size).",
    "bias_n_times": "add it after the psum over {axes}, where it counts once.",
    "gradient_scaled_by_n": "take each gradient's sum over {axes} exactly once: with "
    "check_vma=True JAX does, by the types; under check_vma=False or in a custom_vjp a psum is too "
    "many or missing, or stands in the place of a pmean.",
    "mean_of_means": "sum first and divide last: psum(total, '{axis}') / psum(count, '{axis}').",
    "same_random_numbers": "give each device a key of its own: "
    "jax.random.fold_in(key, jax.lax.axis_index('{axis}')).",
    "": "look at what each collective adds up and over which mesh axes; shardlab.trace lists them.",
}
# Where more is known than the cause: its own sentence, its own fix, or both; else the above.
_ALSO: dict[tuple[str, str], tuple[str, str]] = {
    ("factor_of_n", "beside"): (
        "is {part} and n times what one device adds to it, n being the size of {axes}.",
        "",
    ),
    ("divided_by_n", "beside"): (
        "is {part} and 1/n of what one device adds to it, n being the size of {axes}.",
        "",
    ),
    ("factor_of_n", "written"): (
        "",
        "the sum over {axes} is divided by {number}, which is written into the program: if that is "
        "meant to be the number of devices, the result is right on {number} alone; divide by "
        "jax.lax.axis_size('{axis}'), or use pmean.",
    ),
    ("factor_of_n", "sum_of_means"): (
        "is a sum of means over {axes}: each device divides by its own count, and the n quotients "
        "are added up.",
        "sum first and divide last: psum(total, '{axis}') / psum(count, '{axis}').",
    ),
    ("gradient_scaled_by_n", "beside"): (
        "moves {part} {factor} as far as on one device, n being the size of {axes}: the gradient "
        "in it is {factor} {of}that of one device.",
        "take each gradient's sum over {axes} exactly once, and its mean (pmean in the place of "
        "psum) where the loss is a mean over the batch.",
    ),
    ("gradient_scaled_by_n", "update"): (
        "holds a gradient that is counted n times, n being the size of {axes}.",
        "take each gradient's sum over {axes} exactly once, and its mean (pmean in the place of "
        "psum) where the loss is a mean over the batch.",
    ),
    ("", "alone"): (
        "",
        "no collective stands on the way to this output: each device computes from its own shard "
        "alone. A mean, a norm, a maximum or a neighbour's rows that belong to the whole array "
        "need one (psum, pmean, pmax, ppermute).",
    ),
    ("", "no_one_device"): (
        "",
        "one device cannot run it and the meshes that can do not agree: a number of devices "
        "seems to be written into the program; take it from jax.lax.axis_size.",
    ),
}
_SUMMED = (
    "with check_vma=True JAX adds up the gradients of replicated arguments over {axes} by itself: "
    "take the mean inside of the function that is differentiated (lax.pmean(loss, '{axis}')), or "
    "divide the gradient by lax.axis_size('{axis}'); a pmean of it afterwards changes nothing."
)
_MOST_PATHS = 4
_MOST_MESHES = 6


def cause_message(cause: str, variant: str = "", is_summed: bool = False) -> tuple[str, str]:
    """Return the sentence and the fix for a cause, with their blanks.

    `is_summed` tells of a gradient that JAX has added up over the devices already.
    """
    sentence, fix = _ALSO.get((cause, variant), ("", ""))
    if cause == "gradient_scaled_by_n" and is_summed:
        fix = _SUMMED
    return sentence or SENTENCES[cause], fix or FIXES[cause]


def listed(paths: Sequence[str], kind: str) -> str:
    """Return outputs or gradients in words.

    >>> listed([""], "output"), listed(["['w']", "['b']"], "gradient")
    ('The output', "The gradient by ['w'], ['b']")
    """
    names = ", ".join(paths[:_MOST_PATHS])
    if len(paths) > _MOST_PATHS:
        names += f" and {len(paths) - _MOST_PATHS} more"
    if kind == "gradient":
        return f"The gradient by {names}"
    return f"Output {names}" if names else "The output"


def shown(seen: Sequence[Comparison], cause: str, reference: str = "one device") -> tuple[str, ...]:
    """Return a line for each mesh that does not agree, and the value on one device."""
    wrong = [c for c in seen if not c.agrees]
    digits = _digits(wrong) if seen[0].one.ndim == 0 else 5
    lines = [f"on {_mesh(c)}: {_difference(c, cause, digits)}" for c in wrong[:_MOST_MESHES]]
    if len(wrong) > _MOST_MESHES:
        lines.append(f"and on {len(wrong) - _MOST_MESHES} more")
    return (*lines, f"on {reference}: {short(seen[0].one, digits)}")


def _difference(c: Comparison, cause: str, digits: int) -> str:
    told = short(c.many, digits)
    if cause in ("factor_of_n", "divided_by_n") and _is_scaled(c):
        at = np.unravel_index(np.argmax(np.abs(c.one)), c.one.shape)
        return f"{told}, x{abs(c.many[at] / c.one[at]):.4g}"
    if c.many.ndim == 0:
        return told
    wrong = ~compare_arrays(c.many, c.one, c.atol)
    at = tuple(np.argwhere(wrong)[0].tolist())
    pair = Comparison(c.mesh, np.asarray(c.one[at]), np.asarray(c.many[at]))
    digits = _digits([pair])
    return (
        f"{told}, {int(wrong.sum())} of {c.many.size} elements differ; the first, "
        f"{list(at)}, is {short(pair.many, digits)} and not {short(pair.one, digits)}"
    )


def _is_scaled(c: Comparison) -> bool:
    """Say whether every element is multiplied by the same."""
    at = np.unravel_index(np.argmax(np.abs(c.one)), c.one.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = c.many[at] / c.one[at]
        return bool(np.isfinite(ratio)) and is_close(
            c.many * 1.0, c.one * ratio, max(abs(ratio), 1) * c.atol
        )


def _digits(seen: Sequence[Comparison]) -> int:
    """Return how many digits it takes to tell numbers apart."""
    is_told = (
        digits
        for digits in (5, 9)
        if all(short(c.many, digits) != short(c.one, digits) for c in seen)
    )
    return next(is_told, 17)


def _mesh(c: Comparison) -> str:
    return ",".join(f"{name}={size}" for name, size in c.mesh)
