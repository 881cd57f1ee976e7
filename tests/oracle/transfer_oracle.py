"""Replays transfers on NumPy arrays and compares each shard with what `jax.device_put` makes.

It runs in a process of its own, because the number of host devices must be set before JAX starts.
Prints the number of transfers that agree.
"""

from __future__ import annotations

import random
from math import prod

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab.sharding.layout import layout
from shardlab.sharding.transfer import transfer_pieces

N_DEVICES = 8
N_CASES = 60


def random_mesh(rng: random.Random) -> Mesh:
    sizes = rng.choice(((2,), (4,), (8,), (2, 2), (4, 2), (2, 3), (2, 2, 2)))
    ids = rng.sample(range(N_DEVICES), prod(sizes))
    devices = np.array([jax.devices()[n] for n in ids]).reshape(sizes)
    return Mesh(devices, tuple("abc"[: len(sizes)]))


def random_spec(rng: random.Random, mesh: Mesh, rank: int) -> P:
    entries: list[tuple[str, ...]] = [()] * rank
    for name in rng.sample(mesh.axis_names, len(mesh.axis_names)):
        dim = rng.randint(-1, rank - 1)
        if dim >= 0:
            entries[dim] += (name,)
    return P(*entries)


def check_case(rng: random.Random) -> None:
    shape = (24,) * rng.choice((1, 2, 3))
    meshes = [random_mesh(rng), random_mesh(rng)]
    specs = [random_spec(rng, mesh, len(shape)) for mesh in meshes]
    values = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    source, target = (NamedSharding(m, s) for m, s in zip(meshes, specs, strict=True))
    expected = jax.device_put(jax.device_put(values, source), target)
    before, after = (layout(values, s, m) for m, s in zip(meshes, specs, strict=True))
    # -1 marks an element that did not arrive; adding would show one that arrives twice.
    arrived = {device: np.full(after.shard_shape, -1, np.int64) for device in after.mesh.devices}
    for piece in transfer_pieces(before, after):
        origin = [part.start for part in after.index(piece.receiver)]
        held = [part.start for part in before.index(piece.sender)]
        shard = values[before.index(piece.sender)]
        ends = zip(piece.block, origin, held, strict=True)
        local = [(slice(a - o, b - o), slice(a - h, b - h)) for (a, b), o, h in ends]
        arrived[piece.receiver][tuple(at for at, _ in local)] += (
            1 + shard[tuple(at for _, at in local)]
        )
    for shard in expected.addressable_shards:
        np.testing.assert_array_equal(arrived[shard.device.id], np.asarray(shard.data))


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", N_DEVICES)
    rng = random.Random(20261118)
    for _ in range(N_CASES):
        check_case(rng)
    print(N_CASES)


if __name__ == "__main__":
    main()
