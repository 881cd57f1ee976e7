"""`shardlab.shards(y)`: the piece of an array on each device.

The shardings of a tree of arrays, as lines of text that a person can read and compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardlab.errors import NotSharded
from shardlab.simulator.virtual_devices import array_labels as labels


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceShard:
    """One device, its coordinate on the mesh, and the piece of the array it holds."""

    device: int
    coordinate: Mapping[str, int]
    index: tuple[slice, ...]
    data: np.ndarray[Any, Any]


def shards(y: Any) -> list[DeviceShard]:
    """Return what each device holds of `y`, in mesh order.

    `y` comes from a simulated program, also after the mode has ended, or from real devices.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import NamedSharding, PartitionSpec as P
    >>> from shardlab import simulated
    >>> with simulated(devices=4):
    ...     mesh = jax.make_mesh((2, 2), ("data", "model"))
    ...     y = jax.device_put(jnp.arange(4), NamedSharding(mesh, P("model")))
    >>> [(s.device, dict(s.coordinate), s.data.tolist()) for s in shards(y)][:2]
    [(0, {'data': 0, 'model': 0}, [0, 1]), (1, {'data': 0, 'model': 1}, [2, 3])]
    """
    if not isinstance(y, jax.Array):
        raise NotSharded(
            f"shards() takes one array, and this is a {type(y).__name__}.",
            where=f"shards({type(y).__name__})",
            fix="pass a jax.Array; for a tree of arrays use jax.tree.map(shardlab.shards, tree).",
        )
    sharding = labels.label_of(y)
    if sharding is None:
        sharding = y.sharding
    whole = np.asarray(y)
    where = sharding.devices_indices_map(y.shape)
    coordinates = _coordinates(sharding)
    return [
        DeviceShard(
            device=device.id,
            coordinate=coordinates.get(device.id, {}),
            index=index,
            data=whole[index],
        )
        for device, index in where.items()
    ]


def _coordinates(sharding: Any) -> dict[int, dict[str, int]]:
    mesh = getattr(sharding, "mesh", None)
    if mesh is None:
        return {}
    return {
        device.id: dict(zip(mesh.axis_names, map(int, place), strict=True))
        for place, device in np.ndenumerate(mesh.devices)
    }


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
