"""The four programs that are timed, written as users write them; the MLP in two sizes.

>>> make_program("gather", 256).mesh
{'x': 256}
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from benchmarks.programs import all_gather_matmul, mlp, ring_matmul, transformer
from benchmarks.programs.program import Program

_MAKERS: dict[str, Callable[[int], Program]] = {
    "mlp": mlp.make_program,
    "mlp-wide": functools.partial(mlp.make_program, size=mlp.WIDE),
    "gather": all_gather_matmul.make_program,
    "ring": ring_matmul.make_program,
    "transformer": transformer.make_program,
}

NAMES = tuple(_MAKERS)

# Every program has a mesh for each of these device counts.
DEVICES = (8, 64, 256, 512, 1024)

TITLES = {
    "mlp": "MLP train step",
    "mlp-wide": "MLP train step, large weights",
    "gather": "all_gather matmul 1024^3",
    "ring": "ppermute ring matmul 1024^3",
    "transformer": "24-layer transformer train step",
}


def make_program(name: str, n_devices: int) -> Program:
    """Return the program `name` in its full size for `n_devices` devices."""
    return _MAKERS[name](n_devices)
