"""Compares the bytes of `reshard` with what XLA's partitioner sends.

`python reshard_oracle.py N SEED` compiles N random reshards on host devices and prints one JSON
object per line: the bytes of both, for one device and for all. It runs in a process of its own,
because the number of host devices must be set before JAX starts.
"""

from __future__ import annotations

import json
import random
import sys
from math import prod
from typing import Any

import jax
import numpy as np
from hlo_calls import calls_in
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab.sharding.layout import layout
from shardlab.sharding.reshard import reshard

N_DEVICES = 16
MESHES = (
    {"a": 8},
    {"a": 4, "b": 2},
    {"a": 2, "b": 4},
    {"a": 2, "b": 2, "c": 2},
    {"a": 2, "b": 3},
    {"a": 8, "b": 2},
    {"a": 4, "b": 4},
    {"a": 4, "b": 2, "c": 2},
    {"a": 2, "b": 2, "c": 2, "d": 2},
)
# A search over full mesh axes, without sub-axes, proposes more bytes than XLA sends for each.
KNOWN_CASES = (
    ({"a": 4, "b": 2}, (1024, 512), (("a",), ("b",)), (("b",), ("a",))),
    ({"a": 4, "b": 2}, (256, 128), (("a",), ()), (("b",), ())),
    ({"a": 4, "b": 2}, (16, 32), (("a",), ()), (("b",), ("a",))),
    ({"a": 2, "b": 2}, (32, 48), (("a",), ("b",)), (("b", "a"), ())),
    ({"a": 2, "b": 4}, (48, 48, 48), (("b",), (), ()), (("a",), ("b",), ())),
)

Case = tuple[dict[str, int], tuple[int, ...], Any, Any]


def random_case(rng: random.Random) -> Case:
    mesh = rng.choice(MESHES)
    rank = rng.choice((1, 2, 2, 3))
    specs: list[Any] = []
    while len(specs) < 2 or specs[0] == specs[1]:
        entries: list[tuple[str, ...]] = [()] * rank
        for name in rng.sample(list(mesh), len(mesh)):
            dim = rng.randint(-1, rank - 1)
            if dim >= 0:
                entries[dim] += (name,)
        specs = [*specs[-1:], tuple(entries)]
    unit = prod(mesh.values())
    return mesh, tuple(unit * rng.choice((1, 2, 3)) for _ in range(rank)), specs[0], specs[1]


def compiled_text(case: Case) -> str:
    sizes, shape, before, after = case
    devices = np.array(jax.devices()[: prod(sizes.values())]).reshape(tuple(sizes.values()))
    mesh = Mesh(devices, tuple(sizes))
    jitted = jax.jit(
        lambda x: x,
        in_shardings=NamedSharding(mesh, P(*before)),
        out_shardings=NamedSharding(mesh, P(*after)),
    )
    return jitted.lower(jax.ShapeDtypeStruct(shape, np.float32)).compile().as_text()


def xla_bytes(text: str, n_devices: int) -> tuple[int, int]:
    """Return the bytes on rings: the sum over collectives for one device, and for all devices."""
    per_device = total = 0
    for (kind, groups, operand), n_calls in calls_in(text).items():
        if kind == "collective-permute":
            n_senders = sum(source != target for source, target in groups)
            sent = operand if n_senders else 0
        else:
            n_senders, size = n_devices, len(next(iter(groups)))
            kind = kind.split()[0]
            sent = {
                "all-gather": operand * (size - 1),
                "all-to-all": operand * (size - 1) // size,
                "all-reduce": 2 * operand * (size - 1) // size,
            }[kind]
        per_device += n_calls * sent
        total += n_calls * sent * n_senders
    return per_device, total


def compare(case: Case) -> dict[str, Any]:
    sizes, shape, before, after = case
    steps = reshard(layout(shape, before, sizes), layout(shape, after, sizes))
    xla_per_device, xla_total = xla_bytes(compiled_text(case), prod(sizes.values()))
    return {
        "case": case,
        "per_device": sum(step.sent_bytes for step in steps),
        "total": sum(step.total_sent_bytes for step in steps),
        "xla_per_device": xla_per_device,
        "xla_total": xla_total,
    }


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", N_DEVICES)
    n_cases, seed = map(int, sys.argv[1:])
    rng = random.Random(seed)
    for case in [*KNOWN_CASES, *(random_case(rng) for _ in range(n_cases))]:
        print(json.dumps(compare(case)))
        jax.clear_caches()


if __name__ == "__main__":
    main()
