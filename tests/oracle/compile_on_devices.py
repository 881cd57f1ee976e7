"""A process with eight real host devices that compiles written programs, by name, and says what
they call: JSON on stdout, name -> [[kind, groups, bytes], how often] ...

Outputs and gradients are compiled as one program, in which nothing is dead; of the many programs
about one collective or dtype each, only the outputs. CPU's own habits are kept out of what is
compared: sums are not combined, and narrow types, which it widens before it exchanges them, are
read right after partitioning.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from hlo_calls import calls_in
from program import N_DEVICES, Program
from runtimes import device_runtime
from whole_programs import whole_program
from written import PROGRAMS

# How jaxprs and stablehlo call them.
NARROW = ("bf16", "f8E", "f4E", "xi4", "xui4", "xi2", "xui2")


def lowered(program: Program) -> tuple[Any, bool]:
    """Return a lowered program, and whether it has arrays of a narrow type."""
    with jax.enable_x64(True) if program.x64 else contextlib.nullcontext():
        fun, args = whole_program(program, device_runtime(program))
        found = jax.jit(fun).lower(*args)
        return found, any(name in found.as_text() for name in NARROW)


def compiled_text(job: tuple[Any, bool]) -> str:
    lowered, is_narrow = job
    if not is_narrow:
        return str(lowered.compile().as_text())
    with tempfile.TemporaryDirectory() as folder:
        lowered.compile({"xla_dump_to": folder, "xla_dump_hlo_pass_re": "spmd-partitioning"})
        (after,) = Path(folder).glob("*after_spmd-partitioning*")
        return after.read_text()


def plain(text: str) -> Any:
    counted = calls_in(text)
    return [[[kind, sorted(who), size], count] for (kind, who, size), count in counted.items()]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", N_DEVICES)
    warnings.simplefilter("ignore")
    with ThreadPoolExecutor(2) as pool:
        jobs = {n: pool.submit(compiled_text, lowered(PROGRAMS[n])) for n in sys.argv[1:]}
        json.dump({name: plain(job.result()) for name, job in jobs.items()}, answers)
    answers.close()


if __name__ == "__main__":
    sys.exit(main())
