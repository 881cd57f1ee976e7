"""The mesh of a case on this process's devices."""

from __future__ import annotations

from collections.abc import Mapping
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
