"""The shardings of a tree of arrays, as lines of text that a person can read and compare."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding


def sharding_lines(tree: Any) -> list[str]:
    """Return one line for each array: its path, type and spec, and the mesh where it changes.

    >>> import jax.numpy as jnp
    >>> sharding_lines({"w": jnp.ones((2, 3))})
    ["['w']: float32[2,3] on one device"]
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [f"{jax.tree_util.keystr(path) or 'value'}: {_line(leaf)}" for path, leaf in leaves]


def _line(leaf: Any) -> str:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return repr(leaf)
    shape = ",".join(map(str, leaf.shape))
    return f"{leaf.dtype}[{shape}] {_place(getattr(leaf, 'sharding', None))}"


def _place(sharding: Any) -> str:
    if isinstance(sharding, NamedSharding):
        mesh = ",".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
        spec = ", ".join(map(repr, sharding.spec))
        return f"P({spec}) on {mesh}"
    if sharding is None or getattr(sharding, "num_devices", 1) == 1:
        return "on one device"
    return str(sharding)
