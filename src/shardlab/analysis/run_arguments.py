"""Concrete arguments for a program that `check` runs, and why a run failed.

An argument that is only a shape (`"f32[8,6]"`) gets random values; `classify_failure` turns the
exception of a run into a `RunFailure`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
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
    SimulationError,
    UnboundAxis,
)
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.simulator.run_records import RunFailure
from shardlab.tracing.stage import parse_shape_argument


def fill_arguments(args: Sequence[Any], first_seed: int = 0) -> tuple[Any, ...]:
    """Return arguments with values: what has only a shape gets random ones.

    >>> fill_arguments(["f32[2,3]", 7])[0].shape
    (2, 3)

    The values depend on the seed only, and are never constant and never symmetric. Integers are
    small and not negative, because most are indices. What is neither an array nor a shape stays as
    it is.
    """
    leaves, tree = jax.tree.flatten(tuple(args), is_leaf=lambda leaf: isinstance(leaf, str))
    filled = [_fill_leaf(leaf, seed) for seed, leaf in enumerate(leaves, first_seed)]
    return tuple(jax.tree.unflatten(tree, filled))


def count_argument_bytes(args: Sequence[Any]) -> int:
    """Return how many bytes the arrays among the arguments take, or would take.

    >>> count_argument_bytes(["f32[1000000,1000]", 7])
    4000000000
    """
    leaves = map(parse_shape_argument, jax.tree.leaves(tuple(args)))
    return sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves if hasattr(leaf, "dtype")
    )


def _fill_leaf(leaf: Any, seed: int) -> Any:
    leaf = parse_shape_argument(leaf)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _random_array(leaf.shape, leaf.dtype, seed)
    if isinstance(leaf, jax.Array) and not _jax.is_extended(leaf.dtype):
        # Through NumPy, which drops the sharding: the array must not be committed to a mesh yet.
        return jnp.asarray(np.asarray(leaf))
    return leaf


def _random_array(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    rng = np.random.default_rng([seed, *shape])
    if _jax.is_extended(dtype):
        return jax.random.split(jax.random.key(seed), shape)
    if dtype == jnp.bool_:
        return jnp.asarray(rng.random(shape) < 0.5)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 5, shape), dtype)
    # A normal distribution has both signs, so that relu, abs and max behave differently by element.
    values = rng.normal(size=shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * rng.normal(size=shape)
    return jnp.asarray(values, dtype)


def is_array(leaf: Any) -> bool:
    """Return whether a leaf is traced; any other leaf is passed to the program unchanged."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def leaf_paths(tree: Any, root: str = "") -> list[str]:
    """Return a readable path for each leaf, such as `[0]['kernel']`; '' for a lone leaf."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [root + jax.tree_util.keystr(path) for path, _ in leaves]


def function_location(f: Any) -> SourceLocation:
    """Return the file and line where a function is defined."""
    f = inspect.unwrap(f)
    code = getattr(getattr(f, "func", f), "__code__", None)
    return (
        SourceLocation(code.co_filename, code.co_firstlineno, code.co_name)
        if code
        else UNKNOWN_LOCATION
    )


# JAX rejects these only when it lowers a program, so here the simulator raises them in its place.
_REJECTED_BY_JAX = (
    DuplicatePermutation,
    ManualAxisConstraint,
    PermutationOrder,
    PermutationRange,
    UnboundAxis,
)


def classify_failure(error: Exception) -> RunFailure:
    """Return why a program did not run, from the exception that it raised."""
    if isinstance(error, Deadlock):
        return RunFailure(
            kind="deadlock",
            message=error.what,
            where=error.where,
            fix=error.fix,
            location=_operation_location(error),
        )
    message = str(error)
    # JAX words it in several ways, by the place that notices: shard_map, jit, a constraint.
    if "divisible" in message or "evenly" in message:
        return RunFailure(kind="indivisible", message=error_summary(error))
    if isinstance(error, LabError):
        # Any other LabError is a limit of the simulator, not a fault of the program.
        kind = "rejected" if isinstance(error, _REJECTED_BY_JAX) else "not_simulated"
        return RunFailure(
            kind=kind,
            message=error.what,
            where=error.where,
            fix=error.fix,
            code=error.code,
            location=_operation_location(error),
        )
    return RunFailure(kind="rejected", message=error_summary(error))


def _operation_location(error: LabError) -> SourceLocation | None:
    location = error.location if isinstance(error, SimulationError) else None
    return SourceLocation(*location) if location else None


def gradient_deadlock(error: Deadlock) -> Deadlock:
    """Return the error for a program that deadlocks in its backward pass only."""
    deadlock = Deadlock(
        f"The forward pass finishes; the backward pass does not. {error.what}",
        where=error.where,
        fix=f"{error.fix} If no line of your program calls it, JAX inserted it: it sums the "
        "gradient of a replicated value that only one branch uses. jax.lax.pcast(value, axis, "
        "to='varying') before the branch moves that sum out of the branch.",
    )
    deadlock.location = error.location
    return deadlock


def error_summary(error: Exception) -> str:
    """Return the type of an exception and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def argument_paths(f: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """Return the path of each leaf of the arguments, by parameter name: `params['w']`."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
    # `mesh` is filled in by shardlab unless the caller passes one, so it takes no argument's name.
    if "mesh" in names and not _has_mesh(args, names.index("mesh")):
        names.remove("mesh")
    names += [f"argument {i}" for i in range(len(names), len(args))]
    return [path for name, arg in zip(names, args, strict=False) for path in leaf_paths(arg, name)]


def _has_mesh(args: Sequence[Any], index: int) -> bool:
    mesh_types = (jax.sharding.Mesh, jax.sharding.AbstractMesh)
    return len(args) > index and isinstance(args[index], mesh_types)


def change_key(array: Any) -> Any:
    """Return another random key, or an array of other kinds as it is."""
    if not is_key(array):
        return array
    keys = [jax.random.fold_in(key, 1) for key in array.reshape(-1)]
    return jnp.stack(keys).reshape(array.shape)


def perturb_array(array: Any, eps: float, seed: int) -> Any:
    """Return an array of floats changed by about one rounding; others as they are."""
    if not is_float(array):
        return array
    # Random signs: a change of all elements in one direction may cancel, as in x - x.mean().
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], array.shape)
    return (array * (1 + eps * signs)).astype(array.dtype)


def is_float(value: Any) -> bool:
    """Return whether an array has real or complex floating-point numbers."""
    return not is_key(value) and bool(jnp.issubdtype(value.dtype, jnp.inexact))


def is_key(value: Any) -> bool:
    """Return whether an array has random keys."""
    return _jax.is_extended(value.dtype)
