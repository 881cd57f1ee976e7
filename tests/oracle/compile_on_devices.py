"""A process with eight real host devices that compiles written programs by name and lists the
collectives in them: JSON on stdout, name -> [[kind, groups, bytes], count] ...

Outputs and gradients are compiled as one program, without dead code; for the many programs about
one collective or dtype, only the outputs. What is specific to CPU is kept out of the comparison:
sums are not combined, and narrow types, which XLA for CPU widens before it sends them, are read
right after partitioning.
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
from programs_with_gradients import program_with_gradients
from runtimes import device_runtime
from written import PROGRAMS

# Their names in jaxprs and in StableHLO.
NARROW = ("bf16", "f8E", "f4E", "xi4", "xui4", "xi2", "xui2")


def lowered(program: Program) -> tuple[Any, bool]:
    """Return a lowered program, and whether it has arrays of a narrow type."""
    with jax.enable_x64(True) if program.x64 else contextlib.nullcontext():
        fun, args = program_with_gradients(program, device_runtime(program))
        lowered_program = jax.jit(fun).lower(*args)
        return lowered_program, any(name in lowered_program.as_text() for name in NARROW)


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
