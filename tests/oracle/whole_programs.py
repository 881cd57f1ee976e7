"""The written programs as the trace is held to them: outputs, and gradients with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from program import Program, Runtime, with_gradients
from written import PROGRAMS, callbacks, collectives, dtypes, local

# Each about one collective or one dtype: their gradients are met in the others.
_OUTPUTS_ONLY = {*collectives.program.programs, *dtypes.program.programs}
# Nothing to communicate, or only with the host.
_LEFT_OUT = {*local.program.programs, *callbacks.program.programs}

NAMES = [
    name for name, program in PROGRAMS.items() if not program.rejected and name not in _LEFT_OUT
]


def whole_program(program: Program, runtime: Runtime) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function that computes all that is compared, and its arguments."""
    args = [item.make(seed) for seed, item in enumerate(program.inputs)]
    fun = program.build(runtime)
    has_gradients = program.grad and program.name not in _OUTPUTS_ONLY
    return (with_gradients(fun, args) if has_gradients else fun), args
