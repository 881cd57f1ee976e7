"""What a submission sees of JAX while it is loaded and traced: devices, placement, the mesh.

The judge traces a submission that is meant to be called without a jit. There `device_put` and
`set_mesh` are allowed. Inside a jit, JAX leaves the sharding of a `device_put` to the compiler,
which ignores it on a CPU, and rejects `set_mesh`. So both are replaced while tracing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab._jax.fork_warmup import has_backend
from shardlab.judge.worker.error_reports import SubmissionError
from shardlab.sharding import mesh as sharding_mesh
from shardlab.sharding.spec import Spec

_MAX_LISTED = 8


def create_host_mesh(mesh: sharding_mesh.Mesh) -> Mesh:
    """Return the mesh of a request on the host devices of this process."""
    devices = {device.id: device for device in jax.devices()}
    if not set(mesh.devices) <= set(devices):
        raise SubmissionError(
            "own_devices",
            f"The submission has set the number of devices to {len(devices)}; this case needs "
            f"{mesh.n_devices}.",
            "do not set jax_num_cpu_devices or XLA_FLAGS; the judge passes the mesh.",
        )
    ordered = np.array([devices[number] for number in mesh.devices])
    return Mesh(ordered.reshape(mesh.axis_sizes), mesh.axis_names)


def partition_spec(spec: Spec) -> PartitionSpec:
    return PartitionSpec(*spec.entries)


@contextlib.contextmanager
def restored_device_config() -> Iterator[None]:
    """Restore the device settings afterwards, unless the backend has started with them.

    Scripts begin by setting a number of host devices, and a submission may have been a script.
    """
    names = ("jax_num_cpu_devices", "jax_platforms")
    settings = {name: getattr(jax.config, name) for name in names}
    try:
        yield
    finally:
        # Once the backend has started, a change of these settings raises, and would mean nothing.
        if not has_backend():
            for name, value in settings.items():
                jax.config.update(name, value)


@contextlib.contextmanager
def single_device() -> Iterator[None]:
    """Show one device only, to a function that receives no mesh."""
    names = ("devices", "local_devices", "device_count", "local_device_count")
    originals = {name: getattr(jax, name) for name in names}

    def first_device(*args: Any, **options: Any) -> list[Any]:
        return list(originals["devices"](*args, **options)[:1])

    def count_one(*args: Any, **options: Any) -> int:
        return 1

    replacements = (first_device, first_device, count_one, count_one)
    for name, replacement in zip(names, replacements, strict=True):
        setattr(jax, name, replacement)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(jax, name, function)


@contextlib.contextmanager
def eager_placement(case_mesh: Mesh | None = None) -> Iterator[None]:
    """Make `device_put` a sharding constraint on traced values, and allow `set_mesh`.

    With a mesh, arrays can be placed on its devices only, in its order: a traced program has one
    list of devices. `device_get` returns a traced value unchanged inside a jit; outside it copies
    to the host, so it is rejected here like every other way to the host.
    """
    # On the module, because a submission calls `jax.device_put` by that name at call time.
    put, get, set_mesh = jax.device_put, jax.device_get, jax.set_mesh
    jax.device_put = lambda x, device=None, **options: _device_put(
        put, x, device, options, case_mesh
    )
    jax.device_get = lambda x: jax.tree.map(np.asarray, x)
    with contextlib.ExitStack() as meshes:
        jax.set_mesh = lambda mesh: _MeshContext(mesh, meshes)
        try:
            yield
        finally:
            jax.device_put, jax.device_get, jax.set_mesh = put, get, set_mesh


def _device_put(original: Any, x: Any, device: Any, options: Any, case_mesh: Mesh | None) -> Any:
    shardings = jax.tree.leaves(device, is_leaf=_is_named_sharding)
    if shardings and all(map(_is_named_sharding, shardings)):
        _check_shard_shapes(x, device)
        for sharding in shardings:
            _check_devices(sharding, case_mesh)
        return jax.lax.with_sharding_constraint(x, jax.tree.map(_with_auto_axes, device))
    return original(x, device, **options)


def _is_named_sharding(value: Any) -> bool:
    return isinstance(value, NamedSharding)


def _with_auto_axes(sharding: NamedSharding) -> NamedSharding:
    """Return a sharding that a constraint accepts; `device_put` accepts every axis type."""
    mesh = sharding.mesh
    if not isinstance(mesh, Mesh) or mesh.are_all_axes_auto:
        return sharding
    return NamedSharding(Mesh(mesh.devices, mesh.axis_names), sharding.spec)


def _check_devices(sharding: NamedSharding, case_mesh: Mesh | None) -> None:
    """Reject devices that are not those of the case, before JAX does with a worse message."""
    if case_mesh is None or not isinstance(sharding.mesh, Mesh):
        return
    target_ids, case_ids = (
        [device.id for device in mesh.devices.flat] for mesh in (sharding.mesh, case_mesh)
    )
    if target_ids != case_ids:
        raise SubmissionError(
            "own_devices",
            f"device_put places an array on the devices {_id_list_text(target_ids)}; the mesh of "
            f"this case has the devices {_id_list_text(case_ids)}.",
            "place arrays on the mesh that is passed to the function.",
        )


def _id_list_text(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:_MAX_LISTED])) + (" ..." if len(ids) > _MAX_LISTED else "")


def _check_shard_shapes(x: Any, device: Any) -> None:
    """Reject uneven shards, as `device_put` does and a constraint does not."""
    shardings = [device] * len(jax.tree.leaves(x))
    if not isinstance(device, NamedSharding):
        shardings = jax.tree.leaves(device, is_leaf=_is_named_sharding)
    for leaf, sharding in zip(jax.tree.leaves(x), shardings, strict=False):
        sharding.shard_shape(jax.numpy.shape(leaf))


class _MeshContext:
    """The result of `jax.set_mesh`: the mesh is set at once, and reset when a block ends."""

    def __init__(self, mesh: Any, until_traced: contextlib.ExitStack) -> None:
        self._block = contextlib.ExitStack()
        self._block.enter_context(jax.sharding.use_abstract_mesh(mesh.abstract_mesh))
        until_traced.push(self._block)
        self._mesh = mesh

    def __enter__(self) -> Any:
        return self._mesh

    def __exit__(self, *exception: Any) -> None:
        self._block.close()
