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
import numpy as np
from jax.sharding import Mesh, NamedSharding

from shardlab.judge.worker.errors import AnswerError

_MOST_IDS = 8


@contextlib.contextmanager
def placing_where_traced(given: Mesh | None = None) -> Iterator[None]:
    """Make `device_put` a constraint of a traced value's layout, and let a mesh be set.

    Where a mesh was given, arrays can be placed on its devices alone, in its order: a program that
    is traced has one list of devices.

    `device_get` hands a traced value back as it is; outside of a jit it is a way to the host, and
    refused here like every other.
    """
    put, get, set_mesh = jax.device_put, jax.device_get, jax.set_mesh
    jax.device_put = lambda x, device=None, **options: _put(put, x, device, options, given)
    jax.device_get = lambda x: jax.tree.map(np.asarray, x)
    with contextlib.ExitStack() as meshes:
        jax.set_mesh = lambda mesh: _Chosen(mesh, meshes)
        try:
            yield
        finally:
            jax.device_put, jax.device_get, jax.set_mesh = put, get, set_mesh


def _put(original: Any, x: Any, device: Any, options: Any, given: Mesh | None) -> Any:
    shardings = jax.tree.leaves(device, is_leaf=lambda each: isinstance(each, NamedSharding))
    if shardings and all(isinstance(each, NamedSharding) for each in shardings):
        _check_fits(x, device)
        for sharding in shardings:
            _check_devices(sharding, given)
        return jax.lax.with_sharding_constraint(x, jax.tree.map(_automatic, device))
    return original(x, device, **options)


def _automatic(sharding: NamedSharding) -> NamedSharding:
    """Return a sharding that a constraint takes: `device_put` takes meshes of any axis type."""
    mesh = sharding.mesh
    if not isinstance(mesh, Mesh) or mesh.are_all_axes_auto:
        return sharding
    return NamedSharding(Mesh(mesh.devices, mesh.axis_names), sharding.spec)


def _check_devices(sharding: NamedSharding, given: Mesh | None) -> None:
    """Refuse devices that are not those of the case, in words that tell whose they are."""
    if given is None or not isinstance(sharding.mesh, Mesh):
        return
    own, theirs = ([device.id for device in m.devices.flat] for m in (sharding.mesh, given))
    if own != theirs:
        raise AnswerError(
            "own_devices",
            f"device_put places an array on the devices {_listed(own)}, and the mesh of this case "
            f"is made of {_listed(theirs)}.",
            "place arrays on the mesh that is given.",
        )


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:_MOST_IDS])) + (" ..." if len(ids) > _MOST_IDS else "")


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
