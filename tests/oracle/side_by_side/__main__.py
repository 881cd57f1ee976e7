"""`python -m side_by_side module`: run a module's programs on 8 real devices, print JSON."""

import json
import sys

import jax

jax.config.update("jax_num_cpu_devices", 8)

from importlib import import_module  # noqa: E402  after the device count is set

from side_by_side.describe import outcome  # noqa: E402  imports JAX arrays too


def run_module(module: str) -> None:
    assert jax.device_count() == 8
    programs = import_module(f"side_by_side.{module}").PROGRAMS
    # The last line has the results: a program, or JAX itself, may print before it.
    print("\n" + json.dumps({name: outcome(program) for name, program in programs.items()}))


if __name__ == "__main__":
    run_module(sys.argv[1])
