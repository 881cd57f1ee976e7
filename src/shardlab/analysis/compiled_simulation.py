"""A program on its virtual mesh as a function that is compiled for the one real device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shardlab import _jax
from shardlab._jax.pending_deadlock import raise_pending_deadlock
from shardlab.simulator.interpreter import evaluate
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray

# Each program runs once or a few times, so compiling it takes longer than running it.
_FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def compile_simulation(
    closed: Any,
    indices: Sequence[int] | None = None,
    repaired: Callable[[Any], contextlib.AbstractContextManager[None]] | None = None,
) -> Callable[[list[Any]], list[Any]]:
    """Return a function that evaluates a jaxpr on its virtual mesh, compiled for one device.

    With `indices` only those outputs are computed. With `repaired` the function gets the number of
    a repair before its other arguments, and the program is traced in that context.
    """

    def simulate_program(*args: Any) -> list[Any]:
        context, arrays = (
            (contextlib.nullcontext(), args) if repaired is None else (repaired(args[0]), args[1:])
        )
        with context:
            ins = [StackedArray(array) for array in arrays]
            outs = evaluate.evaluate_jaxpr(MeshAxes(), closed, ins)
        return [outs[i].array for i in (range(len(outs)) if indices is None else indices)]

    jitted = jax.jit(simulate_program, compiler_options=_FAST_COMPILE)

    def run_compiled(args: list[Any]) -> list[Any]:
        # A deadlock is found by a callback, which raises only when its effects are waited for.
        with _jax.no_mesh(), raise_pending_deadlock():
            outs = jax.block_until_ready(jitted(*args))
            jax.effects_barrier()
        return list(outs)

    return run_compiled
