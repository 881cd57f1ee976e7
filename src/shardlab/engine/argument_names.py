"""What a person calls the arrays among a function's arguments: `params['mlp']['kernel']`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax


def argument_names(f: Callable[..., Any], args: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return each leaf of the arguments with its name, in JAX's order.

    >>> def step(params, x): ...
    >>> argument_names(step, [{"mlp": {"kernel": 1}}, 2])
    [("params['mlp']['kernel']", 1), ('x', 2)]
    """
    leaves = []
    for root, arg in zip(_parameters(f, len(args)), args, strict=True):
        found, _ = jax.tree_util.tree_flatten_with_path(arg)
        leaves += [(root + jax.tree_util.keystr(path), leaf) for path, leaf in found]
    return leaves


def _parameters(f: Callable[..., Any], n: int) -> list[str]:
    """Return the names of the first `n` parameters, by number where they have none."""
    names = []
    try:
        for each in inspect.signature(f).parameters.values():
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
                names.append(each.name)
            elif each.kind is each.VAR_POSITIONAL:
                names += [f"{each.name}[{i}]" for i in range(n - len(names))]
                break
    except (TypeError, ValueError):
        pass
    return (names + [f"argument {i}" for i in range(len(names), n)])[:n]
