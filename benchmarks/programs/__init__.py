"""The four programs that are timed, each as people write it; the MLP in two sizes.

>>> make("gather", 256).mesh
{'x': 256}
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from benchmarks.programs import gather, mlp, ring, transformer
from benchmarks.programs.program import Program

_MAKERS: dict[str, Callable[[int], Program]] = {
    "mlp": mlp.program,
    "mlp-wide": functools.partial(mlp.program, size=mlp.WIDE),
    "gather": gather.program,
    "ring": ring.program,
    "transformer": transformer.program,
}

NAMES = tuple(_MAKERS)

# Every program has a mesh for each of these.
DEVICES = (8, 64, 256, 512, 1024)

TITLES = {
    "mlp": "MLP train step",
    "mlp-wide": "MLP train step, large weights",
    "gather": "all_gather matmul 1024^3",
    "ring": "ppermute ring matmul 1024^3",
    "transformer": "24-layer transformer train step",
}


def make(name: str, n_devices: int) -> Program:
    """Return the program `name` at its full size for `n_devices` devices."""
    return _MAKERS[name](n_devices)
