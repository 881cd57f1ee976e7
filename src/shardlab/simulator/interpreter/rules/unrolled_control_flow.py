"""scan, while and cond of a program that is observed: iteration by iteration, on concrete values.

`control_flow.py` stages these through `jax.lax`, so that one compiled program serves all devices.
A recording needs the values of each iteration and who takes which branch, and values are concrete
while it is made: plain Python loops and branches do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shardlab import _jax
from shardlab.simulator.interpreter.rules.control_flow import (
    EvaluateJaxpr,
    and_active_mask,
    linear_solve,
    restrict_to_devices,
    scan_stacked,
    select_per_device,
)
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    StackedArray,
    broadcast_over,
)
from shardlab.simulator.interpreter.step_observer import StepObserver, observe_steps


def scan_unrolled(
    observer: StepObserver,
    evaluate: EvaluateJaxpr,
    axes: MeshAxes,
    eqn: Any,
    ins: list[StackedArray],
) -> list[StackedArray]:
    """Run a scan; iterations that are not recorded run as one compiled scan."""
    params, length = eqn.params, eqn.params["length"]
    if length == 0:
        return scan_stacked(evaluate, axes, eqn, ins)
    n_consts, n_carry = _jax.scan_operand_counts(params)
    consts, carry = ins[:n_consts], ins[n_consts : n_consts + n_carry]
    xs = ins[n_consts + n_carry :]
    # The results of each iteration, or of several at once, in the order in which they run.
    blocks: list[list[StackedArray]] = []
    number = 0
    while number < length:
        end = number + 1
        if not observer.is_recorded(number, length):
            while end < length and not observer.is_recorded(end, length):
                end += 1
        start = length - end if params["reverse"] else number
        rows = [_slice_rows(x, start, start + end - number) for x in xs]
        if observer.is_recorded(number, length):
            with observer.iteration(eqn, number, length):
                squeezed = [_squeeze_row(row) for row in rows]
                outs = evaluate(axes, params["jaxpr"], [*consts, *carry, *squeezed])
            ys = [_as_row(y) for y in outs[n_carry:]]
        else:
            part = eqn.replace(params={**params, "length": end - number})
            observer.skip_iterations(end - number)
            with observe_steps(None):
                outs = scan_stacked(evaluate, axes, part, [*consts, *carry, *rows])
            ys = outs[n_carry:]
        carry = outs[:n_carry]
        blocks.append(ys)
        number = end
    ordered = blocks[::-1] if params["reverse"] else blocks
    return [*carry, *(_concatenate_rows(axes, ys) for ys in zip(*ordered, strict=True))]


def _slice_rows(value: StackedArray, start: int, end: int) -> StackedArray:
    position = value.position_of_local(0)
    array = lax.slice_in_dim(value.array, start, end, axis=position)
    return StackedArray(array, value.device_axes)


def _squeeze_row(row: StackedArray) -> StackedArray:
    position = row.position_of_local(0)
    dims = [dim for dim in row.dims if dim != 0 or isinstance(dim, str)]
    return StackedArray.from_dims(lax.squeeze(row.array, (position,)), dims)


def _as_row(value: StackedArray) -> StackedArray:
    """Return the value with a new local dimension 0 of size 1, in front of everything."""
    return StackedArray.from_dims(lax.expand_dims(value.array, (0,)), (0, *value.dims))


def _concatenate_rows(axes: MeshAxes, rows: Sequence[StackedArray]) -> StackedArray:
    # The first iterations may have fewer device axes: a carry can start replicated.
    names = axes.in_mesh_order({name for row in rows for name in row.device_axes})
    aligned = [
        _move_device_axes_behind_rows(broadcast_over(row, names, axes), names, axes) for row in rows
    ]
    array = jnp.concatenate([row.array for row in aligned], axis=0)
    return StackedArray(array, aligned[0].device_axes)


def _move_device_axes_behind_rows(
    value: StackedArray, names: Sequence[str], axes: MeshAxes
) -> StackedArray:
    """Return the value with local dimension 0 first, then the device axes, then the rest."""
    dims = (0, *names, *range(1, value.local_ndim))
    order = [value.dims.index(dim) for dim in dims]
    return StackedArray.from_dims(lax.transpose(value.array, order), dims)


def while_unrolled(
    observer: StepObserver,
    evaluate: EvaluateJaxpr,
    axes: MeshAxes,
    eqn: Any,
    ins: list[StackedArray],
) -> list[StackedArray]:
    """Iterate while any device does; a device that has stopped keeps its carry."""
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = ins[:n_cond], ins[n_cond : n_cond + n_body]
    carry = ins[n_cond + n_body :]

    def predicate(axes: MeshAxes, carry: Sequence[StackedArray]) -> StackedArray:
        return evaluate(axes, params["cond_jaxpr"], [*cond_consts, *carry])[0]

    def iteration(axes: MeshAxes, carry: Sequence[StackedArray]) -> list[StackedArray]:
        return evaluate(axes, params["body_jaxpr"], [*body_consts, *carry])

    running = predicate(axes, carry)
    number, inner = 0, axes
    is_divergent = False
    while np.any(_concrete(and_active_mask(axes, running))):
        with observer.iteration(eqn, number, None):
            is_divergent = is_divergent or not np.all(_concrete(running))
            if is_divergent:
                inner = restrict_to_devices(axes, running, eqn)
                with observer.branch(inner, eqn):
                    new = iteration(inner, carry)
                    carry = [
                        select_per_device(axes, running, n, o)
                        for n, o in zip(new, carry, strict=True)
                    ]
                    # AND with the old mask: the predicate of a stopped device must not restart it.
                    running = and_active_mask(inner, predicate(inner, carry))
            else:
                carry = iteration(axes, carry)
                running = predicate(axes, carry)
        number += 1
    observer.finish_loop(eqn, number)
    return list(carry)


def _concrete(value: StackedArray) -> np.ndarray[Any, Any]:
    return np.asarray(value.array)


def cond_unrolled(
    observer: StepObserver,
    evaluate: EvaluateJaxpr,
    axes: MeshAxes,
    eqn: Any,
    ins: list[StackedArray],
) -> list[StackedArray]:
    """Run the branches that any device takes, each for those devices, and select per device."""
    index, operands = ins[0], ins[1:]
    branches = eqn.params["branches"]
    # Clipped as lax.switch does. A bool index is that of lax.cond.
    numbers = np.clip(_concrete(index).astype(np.int32), 0, len(branches) - 1)
    if not index.device_axes or numbers.min() == numbers.max():
        with observer.inside(eqn):
            return evaluate(axes, branches[int(numbers.flat[0])], operands)
    out: list[StackedArray] | None = None
    for number, branch in enumerate(branches):
        mask = StackedArray(jnp.asarray(numbers == number), index.device_axes)
        inner = restrict_to_devices(axes, mask, eqn)
        assert inner.active is not None
        if not np.any(_concrete(inner.active)):
            continue
        with observer.inside(eqn), observer.branch(inner, eqn):
            result = evaluate(inner, branch, operands)
        # Devices that take none of the branches so far get a value that is selected away later.
        out = (
            list(result)
            if out is None
            else [select_per_device(axes, mask, a, b) for a, b in zip(result, out, strict=True)]
        )
    assert out is not None
    return out


def linear_solve_observed(
    observer: StepObserver,
    evaluate: EvaluateJaxpr,
    axes: MeshAxes,
    eqn: Any,
    ins: list[StackedArray],
) -> list[StackedArray]:
    with observer.inside(eqn):
        return linear_solve(evaluate, axes, eqn, ins)


UNROLLED_CONTROL_FLOW: dict[str, Callable[..., list[StackedArray]]] = {
    "scan": scan_unrolled,
    "while": while_unrolled,
    "cond": cond_unrolled,
    "custom_linear_solve": linear_solve_observed,
}
