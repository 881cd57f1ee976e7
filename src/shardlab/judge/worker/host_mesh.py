"""The mesh of a case on this process's devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from shardlab._jax.fork_warmup import has_backend
from shardlab.judge.worker.errors import AnswerError
from shardlab.sharding import mesh as layouts
from shardlab.sharding.spec import Spec


def host_mesh(data: Mapping[str, Any]) -> Mesh:
    """Return the mesh of real host devices that a request describes."""
    mesh = layouts.Mesh.from_json(data)
    devices = {device.id: device for device in jax.devices()}
    if not set(mesh.devices) <= set(devices):
        raise AnswerError(
            "own_devices",
            f"The answer left {len(devices)} devices in its process, and this case has "
            f"{mesh.n_devices}.",
            "leave jax_num_cpu_devices and XLA_FLAGS alone; the judge gives the mesh.",
        )
    chosen = np.array([devices[number] for number in mesh.devices])
    return Mesh(chosen.reshape(mesh.axis_sizes), mesh.axis_names)


@contextlib.contextmanager
def keeping_devices() -> Iterator[None]:
    """Undo what is said within about devices, where none was asked for yet.

    Scripts begin with a number of host devices, and an answer may be one that was a script.
    """
    names = ("jax_num_cpu_devices", "jax_platforms")
    before = {name: getattr(jax.config, name) for name in names}
    try:
        yield
    finally:
        if not has_backend():
            for name, value in before.items():
                jax.config.update(name, value)


def partition_spec(spec: Spec) -> PartitionSpec:
    return PartitionSpec(*spec.entries)


@contextlib.contextmanager
def one_device() -> Iterator[None]:
    """Show a program that is given no mesh one device alone, as the machine of its task has."""
    names = ("devices", "local_devices", "device_count", "local_device_count")
    originals = {name: getattr(jax, name) for name in names}

    def devices(*args: Any, **options: Any) -> list[Any]:
        return list(originals["devices"](*args, **options)[:1])

    def device_count(*args: Any, **options: Any) -> int:
        return 1

    replaced = dict(zip(names, (devices, devices, device_count, device_count), strict=True))
    for name, function in replaced.items():
        setattr(jax, name, function)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(jax, name, function)
