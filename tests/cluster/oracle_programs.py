"""The oracle's programs as one script for `shardlab launch`: values and gradients of each.

`python oracle_programs.py DEVICES NAME ...`: the mesh of each program is made smaller where it has
more devices than the launch. All programs of a shape run in one launch, which is started once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))

import jax
from program import Program, gradients
from runtimes import device_runtime
from written import PROGRAMS


def resized_program(program: Program, n_devices: int) -> Program:
    """Return a program on a mesh of `n_devices`: its axes are halved, the last one first."""
    sizes = dict(program.mesh)
    while math.prod(sizes.values()) > n_devices:
        name = next(name for name in reversed(sizes) if sizes[name] > 1)
        sizes[name] //= 2
    return dataclasses.replace(program, mesh=sizes)


def run_program(program: Program) -> None:
    args = [item.make(seed) for seed, item in enumerate(program.inputs)]
    function = program.build(device_runtime(program))
    jax.block_until_ready(_jit(function, program.name)(*args))
    if program.grad:
        name = f"gradients_of_{program.name}"
        jax.block_until_ready(_jit(gradients(function, args), name)(*args))


def _jit(function: Any, name: str) -> Any:
    @functools.wraps(function)
    def program(*args: Any) -> Any:
        return function(*args)

    program.__name__ = program.__qualname__ = name
    return jax.jit(program)


def main() -> None:
    for name in sys.argv[2:]:
        run_program(resized_program(PROGRAMS[name], int(sys.argv[1])))


if __name__ == "__main__":
    main()
