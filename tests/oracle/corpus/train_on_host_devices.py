"""Run every right training program on eight host devices; print its distance from the reference.

One JSON pair of a name and the largest relative difference a line.
"""

from __future__ import annotations

import json
import math
from typing import Any

import jax
import numpy as np
from case import N_DEVICES, parse_mesh
from jax.sharding import AxisType, Mesh
from training import ALL_SETS, Program


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", N_DEVICES)
    for name in ALL_SETS:
        module = Program(name).load()
        args = module.example_args()
        expected = jax.jit(module.reference)(*args)
        with jax.set_mesh(make_mesh(module.MESH)):
            actual = jax.jit(module.step)(*args)
        pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
        print(json.dumps([name, max(distance(*pair) for pair in pairs)]), flush=True)


def make_mesh(text: str) -> Mesh:
    sizes = parse_mesh(text)
    shape = tuple(sizes.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(shape))


def distance(actual: Any, expected: Any) -> float:
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(a - b).max() / (1e-9 + np.abs(b).max()))


if __name__ == "__main__":
    main()
