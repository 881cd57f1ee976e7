"""The arguments of a program that is run for a check: given, or made up from their shapes.

Why a program did not run on a mesh, told from what it raised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardlab import _jax
from shardlab.errors import (
    Deadlock,
    DuplicatePermutation,
    LabError,
    ManualAxisConstraint,
    PermutationOrder,
    PermutationRange,
    UnboundAxis,
)
from shardlab.simulator.run_records import RunFailure
from shardlab.tracing.stage import parse_shape_argument


def concrete(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments with numbers in them: what has only a shape gets random ones.

    >>> concrete(["f32[2,3]", 7])[0].shape
    (2, 3)

    The numbers are always the same, never constant and never symmetric. Integers are small and not
    negative, since most are indices. What is neither an array nor a shape stays as it is.
    """
    leaves, tree = jax.tree.flatten(tuple(args), is_leaf=lambda x: isinstance(x, str))
    return tuple(jax.tree.unflatten(tree, [_filled(x, i) for i, x in enumerate(leaves)]))


def n_bytes(args: Sequence[Any]) -> int:
    """Return how many bytes the arrays among the arguments take, or would take.

    >>> n_bytes(["f32[1000000,1000]", 7])
    4000000000
    """
    leaves = map(parse_shape_argument, jax.tree.leaves(tuple(args)))
    return sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves if hasattr(leaf, "dtype")
    )


def _filled(leaf: Any, seed: int) -> Any:
    leaf = parse_shape_argument(leaf)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _random(leaf.shape, leaf.dtype, seed)
    if isinstance(leaf, jax.Array) and not _jax.is_extended(leaf.dtype):
        return jnp.asarray(np.asarray(leaf))  # as it is, but on no mesh yet
    return leaf


def _random(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    rng = np.random.default_rng([seed, *shape])
    if _jax.is_extended(dtype):
        return jax.random.split(jax.random.key(seed), shape)
    if dtype == jnp.bool_:
        return jnp.asarray(rng.random(shape) < 0.5)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 5, shape), dtype)
    values = rng.normal(size=shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * rng.normal(size=shape)
    return jnp.asarray(values, dtype)


def is_array(leaf: Any) -> bool:
    """Say whether a leaf is traced; anything else is handed to the program as it is."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def paths(tree: Any, root: str = "") -> list[str]:
    """Return a readable path for each leaf of a tree, such as `[0]['kernel']`; a lone leaf ''."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [root + jax.tree_util.keystr(path) for path, _ in leaves]


# What JAX refuses only when it lowers a program, so that the simulation says it in its place.
_REFUSED_BY_JAX = (
    DuplicatePermutation,
    ManualAxisConstraint,
    PermutationOrder,
    PermutationRange,
    UnboundAxis,
)


def failure(error: Exception) -> RunFailure:
    """Return why a program did not run, by what it raised."""
    if isinstance(error, Deadlock):
        return RunFailure(
            kind="deadlock", words=error.what, where=error.where or "", fix=error.fix or ""
        )
    words = str(error)
    if "divisible" in words or "evenly" in words:
        return RunFailure(kind="indivisible", words=first_line(error))
    if isinstance(error, LabError):
        kind = "refused" if isinstance(error, _REFUSED_BY_JAX) else "not_simulated"
        return RunFailure(
            kind=kind,
            words=error.what,
            where=error.where or "",
            fix=error.fix or "",
            code=error.code,
        )
    return RunFailure(kind="refused", words=first_line(error))


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
