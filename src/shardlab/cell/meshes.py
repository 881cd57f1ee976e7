"""The mesh of a case on this process's devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from shardlab.layouts import mesh as layouts
from shardlab.layouts.spec import Spec


def host_mesh(data: Mapping[str, Any]) -> Mesh:
    """Return the mesh of real host devices that a request describes."""
    mesh = layouts.Mesh.from_json(data)
    devices = {device.id: device for device in jax.devices()}
    chosen = np.array([devices[number] for number in mesh.devices])
    return Mesh(chosen.reshape(mesh.axis_sizes), mesh.axis_names)


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
