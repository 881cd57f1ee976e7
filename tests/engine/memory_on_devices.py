"""A process with eight real host devices that compiles the sharded programs with plain JAX.

Prints JSON: program -> the bytes of its arguments and outputs on one device, by memory_analysis().
"""

from __future__ import annotations

import json

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from sharded_programs import PROGRAMS


def real_mesh(text):
    axes = dict(part.split("=") for part in text.split(","))
    shape = tuple(map(int, axes.values()))
    devices = np.array(jax.devices()).reshape(shape)
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def main():
    jax.config.update("jax_num_cpu_devices", 8)
    # Machine code is not looked at.
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    found = {}
    for name, program in PROGRAMS.items():
        f, args = program.make(real_mesh(program.mesh))
        stats = f.lower(*args).compile(quick).memory_analysis()
        found[name] = [stats.argument_size_in_bytes, stats.output_size_in_bytes]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
