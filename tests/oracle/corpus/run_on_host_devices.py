"""A process with eight real host devices that runs programs of the corpus.

    python run_on_host_devices.py one NAME   compile it, print that, run it, print that; it may hang
    python run_on_host_devices.py all        run every program that ends, on one device and its mesh

One JSON object a line on standard output. The number of host devices must be set before JAX is
first used, so this is a separate process.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from case import N_DEVICES, Case
from jax.sharding import AxisType, Mesh
from pairs import RIGHT, WRONG

ENDING = {
    name: case
    for name, case in {**WRONG, **RIGHT}.items()
    if case.really != "hangs" and not case.read_only
}


def main(mode: str, *names: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", N_DEVICES)
    if mode == "one":
        for event in run_one({**WRONG, **RIGHT}[names[0]]):
            print_json({"event": event})
        return
    for name, case in ENDING.items():
        print_json({"name": name, **both(case)})


def run_one(case: Case) -> Iterator[str]:
    with jax.set_mesh(mesh_of(case.sizes)):
        compiled = jax.jit(case.run).lower(*case.args).compile()
        yield "compiled"
        jax.block_until_ready(compiled(*case.args))
        yield "done"


def both(case: Case) -> dict[str, Any]:
    """Return what a program computes on one device and on its mesh, or how JAX rejects it."""
    try:
        one, _ = evaluate(case, dict.fromkeys(case.sizes, 1))
        many, copies = evaluate(case, case.sizes)
    except Exception as error:
        return {"rejected": f"{type(error).__name__}: {error}"}
    return {"one": one, "many": many, "copies": copies}


def evaluate(case: Case, sizes: dict[str, int]) -> tuple[list[Any], list[Any]]:
    """Return each output as a list, and each device's replica of the replicated outputs."""
    with jax.set_mesh(mesh_of(sizes)):
        outs = jax.tree.leaves(jax.jit(case.run)(*case.args))
    copies = [
        [np.asarray(shard.data).tolist() for shard in out.addressable_shards]
        for out in outs
        if out.sharding.is_fully_replicated
    ]
    return [np.asarray(out).tolist() for out in outs], copies


def mesh_of(sizes: dict[str, int]) -> Mesh:
    shape = tuple(sizes.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(shape))


def print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
