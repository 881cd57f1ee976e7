"""Loops and branches, rebuilt through `jax.lax` with device axes on what they carry.

A predicate that is the same on every device chooses one branch. One that differs between devices
makes every device compute both and keep its own. Who really is there is written down (`active`),
so that loops end when nobody is left, callbacks are called where they would be, and a collective
that only some devices reach, where real ones would hang, is noticed (see `stuck`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardlab import _jax
from shardlab.simulator.interpreter.rules.local import elementwise
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    Slot,
    StackedArray,
    arrange_dims,
    from_slots,
    shape_of,
)
from shardlab.simulator.interpreter.varying import (
    AxisNames,
    infer_cond_outputs,
    infer_scan_carry,
    infer_while_carry,
)

Run = Callable[[MeshAxes, Any, Sequence[StackedArray]], list[StackedArray]]


def _names(values: Sequence[StackedArray]) -> list[AxisNames]:
    return [frozenset(value.device_axes) for value in values]


class _Form:
    """The arrangement that a carried value keeps: its slots and its full shape."""

    def __init__(self, value: StackedArray, names: AxisNames, axes: MeshAxes) -> None:
        new = [n for n in axes.in_mesh_order(names) if n not in value.device_axes]
        self.slots: tuple[Slot, ...] = (*new, *value.slots)
        self.shape = shape_of(self.slots, value.local_shape, axes)

    def pack(self, value: StackedArray) -> Any:
        return arrange_dims(value, self.slots, self.shape)

    def unpack(self, array: Any) -> StackedArray:
        return from_slots(array, self.slots)


def _pack(forms: Sequence[_Form], values: Sequence[StackedArray]) -> list[Any]:
    return [form.pack(value) for form, value in zip(forms, values, strict=True)]


def _unpack(forms: Sequence[_Form], arrays: Sequence[Any]) -> list[StackedArray]:
    return [form.unpack(array) for form, array in zip(forms, arrays, strict=True)]


def _forms(
    values: Sequence[StackedArray], names: Sequence[AxisNames], axes: MeshAxes
) -> list[_Form]:
    return [_Form(value, n, axes) for value, n in zip(values, names, strict=True)]


# ------------------------------------------------------------------------------------- scan


def scan(run: Run, axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    params = eqn.params
    n_consts, n_carry = _jax.scan_operand_counts(params)
    consts, init, xs = (
        ins[:n_consts],
        ins[n_consts : n_consts + n_carry],
        ins[n_consts + n_carry :],
    )
    carry_forms = _forms(init, infer_scan_carry(axes, params, _names(ins)), axes)
    sliced = [_leading_local(x) for x in xs]
    y_slots: list[tuple[Slot, ...]] = []

    def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        rows = [from_slots(a, s.slots[1:]) for a, s in zip(x, sliced, strict=True)]
        outs = run(axes, params["jaxpr"], [*consts, *_unpack(carry_forms, carry), *rows])
        ys = outs[n_carry:]
        y_slots[:] = [y.slots for y in ys]
        return _pack(carry_forms, outs[:n_carry]), [y.array for y in ys]

    carry, ys = lax.scan(
        body,
        _pack(carry_forms, init),
        [s.array for s in sliced],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    # The new leading axis is local axis 0 of the result.
    stacked = [from_slots(y, (0, *slots)) for y, slots in zip(ys, y_slots, strict=True)]
    return [*_unpack(carry_forms, carry), *stacked]


def _leading_local(value: StackedArray) -> StackedArray:
    """Return `value` with local axis 0, along which a scan runs, in front of everything."""
    slots = (0, *(slot for slot in value.slots if slot != 0 or isinstance(slot, str)))
    return from_slots(arrange_dims(value, slots, value.array.shape), slots)


# ------------------------------------------------------------------------------------ while


def while_loop(run: Run, axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = ins[:n_cond], ins[n_cond : n_cond + n_body]
    init = ins[n_cond + n_body :]
    names, differs = infer_while_carry(axes, params, _names(ins))
    forms = _forms(init, names, axes)

    def predicate(axes: MeshAxes, carry: Sequence[StackedArray]) -> StackedArray:
        return run(axes, params["cond_jaxpr"], [*cond_consts, *carry])[0]

    def step(axes: MeshAxes, carry: Sequence[StackedArray]) -> list[StackedArray]:
        return run(axes, params["body_jaxpr"], [*body_consts, *carry])

    if differs:
        return _while_any(axes, eqn, predicate, step, init, forms, differs)

    def keep_going(carry: Sequence[Any]) -> Any:
        return jnp.any(_and_active(axes, predicate(axes, _unpack(forms, carry))).array)

    def body(carry: Sequence[Any]) -> list[Any]:
        return _pack(forms, step(axes, _unpack(forms, carry)))

    return _unpack(forms, lax.while_loop(keep_going, body, _pack(forms, init)))


def _while_any(
    axes: MeshAxes,
    eqn: Any,
    predicate: Callable[[MeshAxes, Sequence[StackedArray]], StackedArray],
    step: Callable[[MeshAxes, Sequence[StackedArray]], list[StackedArray]],
    init: list[StackedArray],
    forms: list[_Form],
    differs: AxisNames,
) -> list[StackedArray]:
    """Go on while any device does; one that has stopped keeps what it has and stays stopped."""
    first = predicate(axes, init)
    going_form = _Form(first, differs, axes)

    def keep_going(state: tuple[Any, list[Any]]) -> Any:
        return jnp.any(_and_active(axes, going_form.unpack(state[0])).array)

    def body(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        going, old = going_form.unpack(state[0]), _unpack(forms, state[1])
        there = only(axes, going, eqn)
        new = step(there, old)
        kept = [_choose(axes, going, n, o) for n, o in zip(new, old, strict=True)]
        still = _and(axes, going, predicate(there, kept))
        return going_form.pack(still), _pack(forms, kept)

    start = going_form.pack(first), _pack(forms, init)
    return _unpack(forms, lax.while_loop(keep_going, body, start)[1])


# ----------------------------------------------------------------------------- who is there


def only(axes: MeshAxes, mask: StackedArray, eqn: Any) -> MeshAxes:
    """Return `axes` for code that only the devices in `mask` run, which `eqn` has parted."""
    line = _jax.source_line(eqn)
    return dataclasses.replace(axes, active=_and_active(axes, mask), diverged_at=line)


def _and_active(axes: MeshAxes, mask: StackedArray) -> StackedArray:
    return mask if axes.active is None else _and(axes, axes.active, mask)


def _and(axes: MeshAxes, one: StackedArray, other: StackedArray) -> StackedArray:
    return elementwise(axes, lax.and_p, {}, [one, other])[0]


# ------------------------------------------------------------------------------------- cond


def cond(run: Run, axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    index, operands = ins[0], ins[1:]
    if index.device_axes:
        return _every_branch(run, axes, eqn, index, operands)
    branches = eqn.params["branches"]
    names = infer_cond_outputs(axes, eqn.params, _names(ins))
    slots: list[list[Slot]] = [
        [*axes.in_mesh_order(n), *range(len(aval.shape))]
        for n, aval in zip(names, _out_avals(branches[0]), strict=True)
    ]

    def branch(jaxpr: Any) -> Callable[..., list[Any]]:
        def call(*arrays: Any) -> list[Any]:
            values = [StackedArray(a, o.device_axes) for a, o in zip(arrays, operands, strict=True)]
            outs = run(axes, jaxpr, values)
            return [
                arrange_dims(out, s, shape_of(s, out.local_shape, axes))
                for out, s in zip(outs, slots, strict=True)
            ]

        return call

    chosen = lax.convert_element_type(index.array, jnp.int32)
    outs = lax.switch(chosen, [branch(b) for b in branches], *(o.array for o in operands))
    return [from_slots(out, s) for out, s in zip(outs, slots, strict=True)]


def _out_avals(jaxpr: Any) -> list[Any]:
    return [var.aval for var in _jax.open_jaxpr(jaxpr)[0].outvars]


def _every_branch(
    run: Run, axes: MeshAxes, eqn: Any, index: StackedArray, operands: list[StackedArray]
) -> list[StackedArray]:
    branches = eqn.params["branches"]
    chosen = jnp.clip(lax.convert_element_type(index.array, jnp.int32), 0, len(branches) - 1)
    takes = [StackedArray(chosen == number, index.device_axes) for number in range(len(branches))]
    results = [
        run(only(axes, mask, eqn), branch, operands)
        for mask, branch in zip(takes, branches, strict=True)
    ]
    out = results[-1]
    for mask, result in reversed(list(zip(takes, results, strict=True))[:-1]):
        out = [_choose(axes, mask, a, b) for a, b in zip(result, out, strict=True)]
    return out


def _choose(
    axes: MeshAxes, predicate: StackedArray, yes: StackedArray, no: StackedArray
) -> StackedArray:
    """Return on each device `yes` where its predicate holds, else `no`."""
    return elementwise(axes, lax.select_n_p, {}, [predicate, no, yes])[0]


# ----------------------------------------------------------------------------- linear solve


def linear_solve(run: Run, axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    """Run the solver itself: differentiation, which needs the rest, is over."""
    lengths = eqn.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    end = start + lengths.solve
    n_consts = end + lengths.transpose_solve
    return run(axes, eqn.params["jaxprs"].solve, [*ins[start:end], *ins[n_consts:]])


RULES: dict[str, Callable[..., list[StackedArray]]] = {
    "scan": scan,
    "while": while_loop,
    "cond": cond,
    "custom_linear_solve": linear_solve,
}
