"""What an answer may do outside of a jit, done while it is traced: place arrays, choose a mesh.

JAX leaves a `device_put` with a sharding to the compiler inside a jit, which on a CPU ignores it,
and refuses `jax.set_mesh` there. An answer is traced to be judged, and its person has called it,
in their mind, without a jit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding


@contextlib.contextmanager
def placing_where_traced() -> Iterator[None]:
    """Make `device_put` a constraint of a traced value's layout, and let a mesh be set."""
    put, set_mesh = jax.device_put, jax.set_mesh
    jax.device_put = lambda x, device=None, **options: _put(put, x, device, options)
    with contextlib.ExitStack() as meshes:
        jax.set_mesh = lambda mesh: _Chosen(mesh, meshes)
        try:
            yield
        finally:
            jax.device_put, jax.set_mesh = put, set_mesh


def _put(original: Any, x: Any, device: Any, options: Any) -> Any:
    shardings = jax.tree.leaves(device, is_leaf=lambda each: isinstance(each, NamedSharding))
    if shardings and all(isinstance(each, NamedSharding) for each in shardings):
        _check_fits(x, device)
        return jax.lax.with_sharding_constraint(x, device)
    return original(x, device, **options)


def _check_fits(x: Any, device: Any) -> None:
    """Refuse what `device_put` refuses, and a constraint takes without a word: uneven shards."""
    each = [device] * len(jax.tree.leaves(x))
    if not isinstance(device, NamedSharding):
        each = jax.tree.leaves(device, is_leaf=lambda one: isinstance(one, NamedSharding))
    for leaf, sharding in zip(jax.tree.leaves(x), each, strict=False):
        sharding.shard_shape(jax.numpy.shape(leaf))


class _Chosen:
    """What `jax.set_mesh` gives: the mesh is set at once, and until the block ends, if any."""

    def __init__(self, mesh: Any, until_traced: contextlib.ExitStack) -> None:
        self._block = contextlib.ExitStack()
        self._block.enter_context(jax.sharding.use_abstract_mesh(mesh.abstract_mesh))
        until_traced.push(self._block)
        self._mesh = mesh

    def __enter__(self) -> Any:
        return self._mesh

    def __exit__(self, *raised: Any) -> None:
        self._block.close()
