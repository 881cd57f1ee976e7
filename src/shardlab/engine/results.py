"""What a program returns, as JAX can trace it: arrays, without what stands between them."""

from __future__ import annotations

from typing import Any

import jax


def arrays_only(results: Any) -> Any:
    """Return a tree with everything taken out of it that JAX has no type for.

    >>> arrays_only({"loss": 0.5, "name": "adam", "activation": max, "step": 3, "rest": None})
    {'activation': None, 'loss': 0.5, 'name': None, 'rest': None, 'step': 3}

    A function that is called outside of jit may return such things, and models mostly do: an
    activation is a leaf of them. An object that JAX does not look into leaves behind the arrays
    that it holds, since what leads to them would otherwise look like work for nothing.
    """
    if all(map(_is_traced, jax.tree.leaves(results))):
        return results
    return jax.tree.map(lambda leaf: leaf if _is_traced(leaf) else _held(leaf), results)


def _held(leaf: Any) -> list[Any] | None:
    held = [each for each in jax.tree.leaves(getattr(leaf, "__dict__", None)) if _is_traced(each)]
    return [each for each in held if isinstance(each, jax.Array)] or None


def _is_traced(leaf: Any) -> bool:
    if isinstance(leaf, (type, jax.ShapeDtypeStruct)):
        return False
    if hasattr(leaf, "__jax_array__"):
        return True
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True
