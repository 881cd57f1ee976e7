"""Why a program did not run on a mesh, told from what it raised."""

from __future__ import annotations

from shardlab.errors import (
    Deadlock,
    DuplicatePermutation,
    LabError,
    ManualAxisConstraint,
    PermutationOrder,
    PermutationRange,
    UnboundAxis,
)
from shardlab.records.run import Failure

# What JAX refuses only when it lowers a program, so that the simulation says it in its place.
_REFUSED_BY_JAX = (
    DuplicatePermutation,
    ManualAxisConstraint,
    PermutationOrder,
    PermutationRange,
    UnboundAxis,
)


def failure(error: Exception) -> Failure:
    """Return why a program did not run, by what it raised."""
    if isinstance(error, Deadlock):
        return Failure("deadlock", error.what, error.where or "", error.fix or "")
    words = str(error)
    if "divisible" in words or "evenly" in words:
        return Failure("indivisible", first_line(error))
    if isinstance(error, LabError):
        kind = "refused" if isinstance(error, _REFUSED_BY_JAX) else "not_simulated"
        return Failure(kind, error.what, error.where or "", error.fix or "", error.code)
    return Failure("refused", first_line(error))


def in_gradient(error: Deadlock) -> Deadlock:
    """Return a deadlock in the gradient of a program whose values come out."""
    return Deadlock(
        f"The values come out, but not their gradient. {error.what}",
        where=error.where,
        fix=f"{error.fix} Where no line calls it, it adds up the gradient of a value that all "
        "devices share and one branch uses: jax.lax.pcast(value, axis, to='varying') before the "
        "branch takes that sum out of it.",
    )


def first_line(error: Exception) -> str:
    """Return what an exception says, in one line with its name."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
