"""`jax.device_put` inside a traced program: it places there too, as it does outside.

JAX leaves a `device_put` with a sharding to the compiler inside a jit, which on a CPU ignores it.
An answer is traced to be judged, and its person has called it, in their mind, without a jit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding


@contextlib.contextmanager
def placing_where_traced() -> Iterator[None]:
    """Make `device_put` of a traced value to a NamedSharding a constraint of its layout."""
    original = jax.device_put

    def device_put(x: Any, device: Any = None, **options: Any) -> Any:
        leaves = jax.tree.leaves(x)
        shardings = jax.tree.leaves(device, is_leaf=lambda each: isinstance(each, NamedSharding))
        if (
            all(isinstance(each, jax.core.Tracer) for each in leaves)
            and shardings
            and all(isinstance(each, NamedSharding) for each in shardings)
        ):
            _check_fits(x, device)
            return jax.lax.with_sharding_constraint(x, device)
        return original(x, device, **options)

    jax.device_put = device_put
    try:
        yield
    finally:
        jax.device_put = original


def _check_fits(x: Any, device: Any) -> None:
    """Refuse what `device_put` refuses, and a constraint takes without a word: uneven shards."""
    each = [device] * len(jax.tree.leaves(x))
    if not isinstance(device, NamedSharding):
        each = jax.tree.leaves(device, is_leaf=lambda one: isinstance(one, NamedSharding))
    for leaf, sharding in zip(jax.tree.leaves(x), each, strict=False):
        sharding.shard_shape(leaf.shape)
