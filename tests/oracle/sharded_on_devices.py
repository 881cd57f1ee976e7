"""A process with eight real host devices that compiles the sharded programs with plain JAX.

Prints JSON: program -> the bytes of its arguments and outputs on one device, by memory_analysis(),
and the text that XLA's partitioner left.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

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
    # The machine code is not used.
    fast_compile = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    results = {}
    for name, program in PROGRAMS.items():
        f, args = program.make(real_mesh(program.mesh))
        with tempfile.TemporaryDirectory() as folder:
            dump = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "^spmd-partitioning$"}
            stats = f.lower(*args).compile({**fast_compile, **dump}).memory_analysis()
            (text,) = Path(folder).glob("*.after_spmd-partitioning.*")
            results[name] = {
                "memory": [stats.argument_size_in_bytes, stats.output_size_in_bytes],
                "text": text.read_text().splitlines(),
            }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
