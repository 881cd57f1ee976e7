"""`shardlab.shards(y)`: the shard of an array on each device; and shardings as lines of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardlab.errors import NotSharded
from shardlab.sharding.mesh import mesh_text
from shardlab.simulator.virtual_devices.array_labels import attached_sharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceShard:
    """One device, its coordinate on the mesh, and its shard of the array."""

    device: int
    coordinate: Mapping[str, int]
    index: tuple[slice, ...]
    data: np.ndarray[Any, Any]


def shards(y: Any) -> list[DeviceShard]:
    """Return the shard of `y` on each device, in mesh order.

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
    # Outside simulated mode `y.sharding` is the one real device; the label is still there.
    sharding = attached_sharding(y)
    if sharding is None:
        sharding = y.sharding
    # One transfer to the host; the shards are views of it.
    full_array = np.asarray(y)
    coordinates = _device_coordinates(sharding)
    return [
        DeviceShard(
            device=device.id,
            coordinate=coordinates.get(device.id, {}),
            index=index,
            data=full_array[index],
        )
        for device, index in sharding.devices_indices_map(y.shape).items()
    ]


def _device_coordinates(sharding: Any) -> dict[int, dict[str, int]]:
    mesh = getattr(sharding, "mesh", None)
    if mesh is None:
        return {}
    return {
        device.id: dict(zip(mesh.axis_names, map(int, position), strict=True))
        for position, device in np.ndenumerate(mesh.devices)
    }


def sharding_lines(tree: Any) -> list[str]:
    """Return one line for each array: its path, type, spec and mesh.

    >>> import jax.numpy as jnp
    >>> sharding_lines({"w": jnp.ones((2, 3))})
    ["['w']: float32[2,3] on one device"]
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [
        f"{jax.tree_util.keystr(path) or 'value'}: {_describe_leaf(leaf)}" for path, leaf in leaves
    ]


def _describe_leaf(leaf: Any) -> str:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return repr(leaf)
    shape = ",".join(map(str, leaf.shape))
    return f"{leaf.dtype}[{shape}] {_describe_sharding(getattr(leaf, 'sharding', None))}"


def _describe_sharding(sharding: Any) -> str:
    if isinstance(sharding, NamedSharding):
        spec = ", ".join(map(repr, sharding.spec))
        return f"P({spec}) on {mesh_text(sharding.mesh.shape.items())}"
    if sharding is None or getattr(sharding, "num_devices", 1) == 1:
        return "on one device"
    return str(sharding)
