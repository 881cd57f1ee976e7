"""What is said of a result that changes with the mesh, by cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardlab.checks.agreement import Comparison, close
from shardlab.checks.replicas import short

SENTENCES = {
    "factor_of_n": "is n times the value on one device, n being the size of {axes}.",
    "divided_by_n": "is 1/n of the value on one device, n being the size of {axes}.",
    "shards_permuted": "has the right pieces in another order: those of {axes} are permuted.",
    "only_shard_0": "is right on the first device along {axes} and wrong on the others.",
    "bias_n_times": "counts {part} n times, n being the size of {axes}.",
    "gradient_scaled_by_n": "is {factor} that on one device, n being the size of {axes}; the "
    "values themselves are right.",
    "mean_of_means": "is a mean of means over {axes}: each device divides by its own count, so "
    "elements of smaller groups weigh more.",
    "same_random_numbers": "uses the same random numbers on every device along {axes}.",
    "": "is not what one device computes.",
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
    "many or missing.",
    "mean_of_means": "sum first and divide last: psum(total, '{axis}') / psum(count, '{axis}').",
    "same_random_numbers": "give each device a key of its own: "
    "jax.random.fold_in(key, jax.lax.axis_index('{axis}')).",
    "": "look at what each collective adds up and over which mesh axes; shardlab.trace lists them.",
}
_MOST_PATHS = 4


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


def shown(seen: Sequence[Comparison], cause: str) -> tuple[str, ...]:
    """Return a line for each mesh that does not agree, and the value on one device."""
    lines = [f"on {_mesh(c)}: {_difference(c, cause)}" for c in seen if not c.agrees]
    return (*lines, f"on one device: {short(seen[0].one)}")


def _difference(c: Comparison, cause: str) -> str:
    if cause in ("factor_of_n", "divided_by_n"):
        at = np.unravel_index(np.argmax(np.abs(c.one)), c.one.shape)
        ratio = c.many[at] / c.one[at]
        return f"{short(c.many)}, x{abs(ratio):.4g}"
    wrong = ~close(c.many, c.one, c.atol)
    n_wrong = int(wrong.sum())
    which = "" if c.many.ndim == 0 else f", {n_wrong} of {c.many.size} elements differ"
    return f"{short(c.many)}{which}"


def _mesh(c: Comparison) -> str:
    return ",".join(f"{name}={size}" for name, size in c.mesh)
