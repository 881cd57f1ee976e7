"""Compiles a program that runs once or a few times, so that what it costs is compiling it."""

from __future__ import annotations

import os
import re
from typing import Any

import jax

_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # Each kernel has an MLIR pipeline of its own otherwise: 2 to 4 times the work (JAX 0.10.2;
    # later versions know nothing else).
    "xla_cpu_use_fusion_emitters": False,
    # One LLVM module, not one for each core: it is compiled once, and small.
    "xla_cpu_parallel_codegen_split_count": 1,
    # Sums that XLA combines are several calls of the program all the same.
    "xla_disable_hlo_passes": "cpu-all-reduce-combiner",
}
# An option that XLA does not know is an error; a flag that it does not know ends the process.
_FLAGS = {name: value for name, value in _OPTIONS.items() if name != "xla_disable_hlo_passes"}
if jax.__version_info__ >= (0, 11):
    del _FLAGS["xla_cpu_use_fusion_emitters"]
_UNKNOWN = re.compile(r"No such compile option: '(\w+)'")


def quickly(lowered: Any) -> Any:
    """Return a lowered program compiled; options that this version of XLA lacks are dropped."""
    while True:
        try:
            return lowered.compile(compiler_options=_OPTIONS)
        except Exception as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None or _OPTIONS.pop(unknown[1], None) is None:
                raise


def lower_quickly() -> None:
    """Leave the lines of every operation out of what this process lowers: nobody reads them."""
    jax.config.update("jax_include_full_tracebacks_in_locations", False)
    jax.config.update("jax_traceback_in_locations_limit", 0)


def compile_all_quickly() -> None:
    """Make every program of this process compile so; before the first is compiled."""
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in _FLAGS.items())
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
