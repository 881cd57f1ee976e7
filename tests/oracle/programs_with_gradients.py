"""The written programs that traces are compared on: outputs, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from program import Program, Runtime, with_gradients
from written import PROGRAMS, callbacks, collectives, dtypes, local

# Each is about one collective or one dtype; the other programs cover their gradients.
_OUTPUTS_ONLY = {*collectives.program.programs, *dtypes.program.programs}
# Nothing to communicate, or only with the host.
_OMITTED = {*local.program.programs, *callbacks.program.programs}

NAMES = [
    name for name, program in PROGRAMS.items() if not program.rejected and name not in _OMITTED
]


def program_with_gradients(
    program: Program, runtime: Runtime
) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function that computes all that is compared, and its arguments."""
    args = [item.make(seed) for seed, item in enumerate(program.inputs)]
    fun = program.build(runtime)
    has_gradients = program.grad and program.name not in _OUTPUTS_ONLY
    return (with_gradients(fun, args) if has_gradients else fun), args
