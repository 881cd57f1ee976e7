"""scan, while and cond, rebuilt through `jax.lax` with device axes on their carries and outputs.

A predicate that is equal on every device selects one branch. If it differs between devices, the
program computes all branches, and each device selects its result. `MeshAxes.active` records which
devices really execute a branch. So loops end when no device is left, callbacks run only for the
devices that reach them, and a collective that only some devices reach is reported as a deadlock
(see `interpreter/deadlock.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardlab import _jax
from shardlab.simulator.interpreter.rules.local import apply_elementwise
from shardlab.simulator.interpreter.stacked_array import (
    Dim,
    MeshAxes,
    StackedArray,
    arrange_dims,
    full_shape,
)
from shardlab.simulator.interpreter.varying import (
    AxisNames,
    infer_cond_outputs,
    infer_scan_carry,
    infer_while_carry,
)

# `evaluate_jaxpr`, passed in because evaluate.py imports these rules.
EvaluateJaxpr = Callable[[MeshAxes, Any, Sequence[StackedArray]], list[StackedArray]]


def _varying_axes(values: Sequence[StackedArray]) -> list[AxisNames]:
    return [frozenset(value.device_axes) for value in values]


class _CarryFormat:
    """The dims and shape of a carried value, which `lax` requires to stay the same.

    An iteration may add device axes to a carry that starts replicated. `infer_scan_carry` and
    `infer_while_carry` say which before the loop runs, so the first value is broadcast over them.
    """

    def __init__(self, value: StackedArray, names: AxisNames, axes: MeshAxes) -> None:
        new = [n for n in axes.in_mesh_order(names) if n not in value.device_axes]
        self.dims: tuple[Dim, ...] = (*new, *value.dims)
        self.shape = full_shape(self.dims, value.local_shape, axes)

    def to_array(self, value: StackedArray) -> Any:
        return arrange_dims(value, self.dims, self.shape)

    def to_stacked(self, array: Any) -> StackedArray:
        return StackedArray.from_dims(array, self.dims)


def _to_arrays(formats: Sequence[_CarryFormat], values: Sequence[StackedArray]) -> list[Any]:
    return [format_.to_array(value) for format_, value in zip(formats, values, strict=True)]


def _to_stacked(formats: Sequence[_CarryFormat], arrays: Sequence[Any]) -> list[StackedArray]:
    return [format_.to_stacked(array) for format_, array in zip(formats, arrays, strict=True)]


def _carry_formats(
    values: Sequence[StackedArray], names: Sequence[AxisNames], axes: MeshAxes
) -> list[_CarryFormat]:
    return [_CarryFormat(value, n, axes) for value, n in zip(values, names, strict=True)]


# ------------------------------------------------------------------------------------- scan


def scan_stacked(
    evaluate: EvaluateJaxpr, axes: MeshAxes, eqn: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    params = eqn.params
    n_consts, n_carry = _jax.scan_operand_counts(params)
    consts, init, xs = (
        ins[:n_consts],
        ins[n_consts : n_consts + n_carry],
        ins[n_consts + n_carry :],
    )
    formats = _carry_formats(init, infer_scan_carry(axes, params, _varying_axes(ins)), axes)
    scanned = [_scanned_dim_first(x) for x in xs]
    y_dims: list[tuple[Dim, ...]] = []

    def scan_body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        rows = [
            StackedArray.from_dims(array, stacked.dims[1:])
            for array, stacked in zip(x, scanned, strict=True)
        ]
        outs = evaluate(axes, params["jaxpr"], [*consts, *_to_stacked(formats, carry), *rows])
        ys = outs[n_carry:]
        # Known only once the body is traced; lax.scan may trace it twice, with equal results.
        y_dims[:] = [y.dims for y in ys]
        return _to_arrays(formats, outs[:n_carry]), [y.array for y in ys]

    carry, ys = lax.scan(
        scan_body,
        _to_arrays(formats, init),
        [stacked.array for stacked in scanned],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    # The new leading dimension is local dim 0 of the result, so it takes number 0 twice: the dims
    # behind it keep their names, and `from_dims` reads only the device axes among them.
    outputs = [StackedArray.from_dims(y, (0, *dims)) for y, dims in zip(ys, y_dims, strict=True)]
    return [*_to_stacked(formats, carry), *outputs]


def _scanned_dim_first(value: StackedArray) -> StackedArray:
    """Return `value` with local dim 0, along which a scan runs, in front of everything."""
    dims = (0, *(dim for dim in value.dims if dim != 0 or isinstance(dim, str)))
    return StackedArray.from_dims(arrange_dims(value, dims, value.array.shape), dims)


# ------------------------------------------------------------------------------------ while


def while_stacked(
    evaluate: EvaluateJaxpr, axes: MeshAxes, eqn: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = ins[:n_cond], ins[n_cond : n_cond + n_body]
    init = ins[n_cond + n_body :]
    names, divergent = infer_while_carry(axes, params, _varying_axes(ins))
    formats = _carry_formats(init, names, axes)

    def predicate(axes: MeshAxes, carry: Sequence[StackedArray]) -> StackedArray:
        return evaluate(axes, params["cond_jaxpr"], [*cond_consts, *carry])[0]

    def iteration(axes: MeshAxes, carry: Sequence[StackedArray]) -> list[StackedArray]:
        return evaluate(axes, params["body_jaxpr"], [*body_consts, *carry])

    # The simple form below keeps no mask and no old carry; most loops have a uniform predicate.
    if divergent:
        return _while_any_device(axes, eqn, predicate, iteration, init, formats, divergent)

    def is_running(carry: Sequence[Any]) -> Any:
        running = predicate(axes, _to_stacked(formats, carry))
        return jnp.any(and_active_mask(axes, running).array)

    def loop_body(carry: Sequence[Any]) -> list[Any]:
        return _to_arrays(formats, iteration(axes, _to_stacked(formats, carry)))

    return _to_stacked(formats, lax.while_loop(is_running, loop_body, _to_arrays(formats, init)))


def _while_any_device(
    axes: MeshAxes,
    eqn: Any,
    predicate: Callable[[MeshAxes, Sequence[StackedArray]], StackedArray],
    iteration: Callable[[MeshAxes, Sequence[StackedArray]], list[StackedArray]],
    init: list[StackedArray],
    formats: list[_CarryFormat],
    divergent: AxisNames,
) -> list[StackedArray]:
    """Iterate while any device does; a device that has stopped keeps its carry."""
    first = predicate(axes, init)
    running_format = _CarryFormat(first, divergent, axes)

    def is_running(state: tuple[Any, list[Any]]) -> Any:
        return jnp.any(and_active_mask(axes, running_format.to_stacked(state[0])).array)

    def loop_body(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        running, old = running_format.to_stacked(state[0]), _to_stacked(formats, state[1])
        inner = restrict_to_devices(axes, running, eqn)
        new = iteration(inner, old)
        carry = [select_per_device(axes, running, n, o) for n, o in zip(new, old, strict=True)]
        # AND with the old mask: the predicate of a stopped device must not restart it.
        still_running = _logical_and(axes, running, predicate(inner, carry))
        return running_format.to_array(still_running), _to_arrays(formats, carry)

    start = running_format.to_array(first), _to_arrays(formats, init)
    return _to_stacked(formats, lax.while_loop(is_running, loop_body, start)[1])


# --------------------------------------------------------------------------- active devices


def restrict_to_devices(axes: MeshAxes, mask: StackedArray, eqn: Any) -> MeshAxes:
    """Return `axes` for code that only the devices in `mask` run, after `eqn` diverged."""
    line = _jax.source_line(eqn)
    # Nested branches: only devices that reached the outer branch can take the inner one.
    return dataclasses.replace(axes, active=and_active_mask(axes, mask), diverged_at=line)


def and_active_mask(axes: MeshAxes, mask: StackedArray) -> StackedArray:
    """Return the mask of those devices that also reached this code."""
    return mask if axes.active is None else _logical_and(axes, axes.active, mask)


def _logical_and(axes: MeshAxes, lhs: StackedArray, rhs: StackedArray) -> StackedArray:
    return apply_elementwise(axes, lax.and_p, {}, [lhs, rhs])[0]


# ------------------------------------------------------------------------------------- cond


def cond_stacked(
    evaluate: EvaluateJaxpr, axes: MeshAxes, eqn: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    index, operands = ins[0], ins[1:]
    if index.device_axes:
        return _run_every_branch(evaluate, axes, eqn, index, operands)
    branches = eqn.params["branches"]
    names = infer_cond_outputs(axes, eqn.params, _varying_axes(ins))
    # lax.switch needs equal shapes from all branches: fix the dims of each output up front.
    out_dims: list[list[Dim]] = [
        [*axes.in_mesh_order(n), *range(len(aval.shape))]
        for n, aval in zip(names, _output_avals(branches[0]), strict=True)
    ]

    def make_branch(jaxpr: Any) -> Callable[..., list[Any]]:
        def run_branch(*arrays: Any) -> list[Any]:
            values = [
                StackedArray(array, operand.device_axes)
                for array, operand in zip(arrays, operands, strict=True)
            ]
            outs = evaluate(axes, jaxpr, values)
            return [
                arrange_dims(out, dims, full_shape(dims, out.local_shape, axes))
                for out, dims in zip(outs, out_dims, strict=True)
            ]

        return run_branch

    branch_index = lax.convert_element_type(index.array, jnp.int32)
    branch_functions = [make_branch(branch) for branch in branches]
    outs = lax.switch(branch_index, branch_functions, *(o.array for o in operands))
    return [StackedArray.from_dims(out, dims) for out, dims in zip(outs, out_dims, strict=True)]


def _output_avals(jaxpr: Any) -> list[Any]:
    return [var.aval for var in _jax.open_jaxpr(jaxpr)[0].outvars]


def _run_every_branch(
    evaluate: EvaluateJaxpr,
    axes: MeshAxes,
    eqn: Any,
    index: StackedArray,
    operands: list[StackedArray],
) -> list[StackedArray]:
    """Evaluate all branches, each for the devices that take it, and select per device."""
    branches = eqn.params["branches"]
    branch_index = lax.convert_element_type(index.array, jnp.int32)
    branch_index = jnp.clip(branch_index, 0, len(branches) - 1)  # as lax.switch does
    masks = [
        StackedArray(branch_index == number, index.device_axes) for number in range(len(branches))
    ]
    results = [
        evaluate(restrict_to_devices(axes, mask, eqn), branch, operands)
        for mask, branch in zip(masks, branches, strict=True)
    ]
    # The masks are disjoint and cover all devices, so the last branch is the default.
    out = results[-1]
    for mask, result in reversed(list(zip(masks, results, strict=True))[:-1]):
        out = [select_per_device(axes, mask, a, b) for a, b in zip(result, out, strict=True)]
    return out


def select_per_device(
    axes: MeshAxes, predicate: StackedArray, on_true: StackedArray, on_false: StackedArray
) -> StackedArray:
    """Return on each device `on_true` if its predicate holds, else `on_false`."""
    return apply_elementwise(axes, lax.select_n_p, {}, [predicate, on_false, on_true])[0]


# ----------------------------------------------------------------------------- linear solve


def linear_solve(
    evaluate: EvaluateJaxpr, axes: MeshAxes, eqn: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Run the solver itself; the other jaxprs of the equation only serve differentiation."""
    lengths = eqn.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    end = start + lengths.solve
    n_consts = end + lengths.transpose_solve
    return evaluate(axes, eqn.params["jaxprs"].solve, [*ins[start:end], *ins[n_consts:]])


CONTROL_FLOW: dict[str, Callable[..., list[StackedArray]]] = {
    "scan": scan_stacked,
    "while": while_stacked,
    "cond": cond_stacked,
    "custom_linear_solve": linear_solve,
}
