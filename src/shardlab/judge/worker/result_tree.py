"""What an answer returned, in dicts, lists and tuples of arrays: a program knows no others."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shardlab.judge.protocol.values import DTYPES
from shardlab.judge.worker.errors import AnswerError
from shardlab.tracing.stage import drop_non_arrays


def result_of_arrays(name: str, result: Any) -> Any:
    """Return a result as a program can give it; raise `AnswerError` where it is none."""
    if result is None:
        raise AnswerError(
            "no_result", f"{name} returned None.", "end the function with a return statement."
        )
    found = plain(drop_non_arrays(result))
    if jax.tree.leaves(result) and not jax.tree.leaves(found):
        raise AnswerError(
            "not_an_array",
            f"{name} returned a {type(result).__name__} ({result!r:.60}), and no array.",
            "return a jax.Array, or a dict, list or tuple of them.",
        )
    for leaf in jax.tree.leaves(found):
        _check_travels(name, leaf)
    return found


def _check_travels(name: str, leaf: Any) -> None:
    dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(leaf)).name
    if dtype not in DTYPES and dtype != "bfloat16":
        raise AnswerError(
            "dtype",
            f"{name} returned an array of {dtype}, which the judge does not compare.",
            "return one of the dtypes that the task asks for.",
        )


def plain(result: Any) -> Any:
    """Return a result in dicts, lists and tuples alone; random keys as their numbers.

    >>> plain({"w": (1, [2])})
    {'w': (1, [2])}
    """
    if isinstance(result, dict):
        return {str(key): plain(value) for key, value in result.items()}
    if type(result) in (list, tuple):
        return type(result)(plain(value) for value in result)
    leaves = jax.tree_util.tree_leaves_with_path(result)
    if len(leaves) == 1 and not leaves[0][0]:
        return _numbers(result)
    return {_name(path): _numbers(leaf) for path, leaf in leaves}


def _name(path: Any) -> str:
    """Return the name of a leaf in an object; the value of an NNX variable is the variable."""
    name = str(jax.tree_util.keystr(path, simple=True, separator="."))
    return name.removesuffix(".value")


def _numbers(leaf: Any) -> Any:
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf
