"""Loops and branches, rebuilt through `jax.lax` with device axes on what they carry.

A predicate that is the same on every device chooses one branch. One that differs between devices
makes every device compute both and keep its own; that is right unless a collective inside meets
the axes the predicate varies over, where real devices would hang: see `stuck`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardlab.engine import _jax, stuck
from shardlab.engine.rules.local import elementwise
from shardlab.engine.spread import Axes, Slot, Spread, arrange, from_slots, shape_of
from shardlab.engine.varying import Names, cond_outputs, scan_carry, while_carry

Run = Callable[[Axes, Any, Sequence[Spread]], list[Spread]]


def _names(values: Sequence[Spread]) -> list[Names]:
    return [frozenset(value.at) for value in values]


class _Form:
    """The arrangement that a carried value keeps: its slots and its full shape."""

    def __init__(self, value: Spread, names: Names, axes: Axes) -> None:
        new = [n for n in axes.ordered(names) if n not in value.at]
        self.slots: tuple[Slot, ...] = (*new, *value.slots)
        self.shape = shape_of(self.slots, value.local_shape, axes)

    def pack(self, value: Spread) -> Any:
        return arrange(value, self.slots, self.shape)

    def unpack(self, array: Any) -> Spread:
        return from_slots(array, self.slots)


def _pack(forms: Sequence[_Form], values: Sequence[Spread]) -> list[Any]:
    return [form.pack(value) for form, value in zip(forms, values, strict=True)]


def _unpack(forms: Sequence[_Form], arrays: Sequence[Any]) -> list[Spread]:
    return [form.unpack(array) for form, array in zip(forms, arrays, strict=True)]


def _forms(values: Sequence[Spread], names: Sequence[Names], axes: Axes) -> list[_Form]:
    return [_Form(value, n, axes) for value, n in zip(values, names, strict=True)]


# ------------------------------------------------------------------------------------- scan


def scan(run: Run, axes: Axes, eqn: Any, ins: list[Spread]) -> list[Spread]:
    params = eqn.params
    n_consts, n_carry = params["num_consts"], params["num_carry"]
    consts, init, xs = (
        ins[:n_consts],
        ins[n_consts : n_consts + n_carry],
        ins[n_consts + n_carry :],
    )
    carry_forms = _forms(init, scan_carry(axes, params, _names(ins)), axes)
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


def _leading_local(value: Spread) -> Spread:
    """Return `value` with local axis 0, along which a scan runs, in front of everything."""
    slots = (0, *(slot for slot in value.slots if slot != 0 or isinstance(slot, str)))
    return from_slots(arrange(value, slots, value.array.shape), slots)


# ------------------------------------------------------------------------------------ while


def while_loop(run: Run, axes: Axes, eqn: Any, ins: list[Spread]) -> list[Spread]:
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = ins[:n_cond], ins[n_cond : n_cond + n_body]
    init = ins[n_cond + n_body :]
    names, differs = while_carry(axes, params, _names(ins))
    forms = _forms(init, names, axes)

    def predicate(carry: Sequence[Any]) -> Spread:
        values = [*cond_consts, *_unpack(forms, carry)]
        return run(axes, params["cond_jaxpr"], values)[0]

    def keep_going(carry: Sequence[Any]) -> Any:
        return jnp.any(predicate(carry).array)

    def body(carry: Sequence[Any]) -> list[Any]:
        old = _unpack(forms, carry)
        if not differs:
            return _pack(forms, run(axes, params["body_jaxpr"], [*body_consts, *old]))
        active = predicate(carry)
        stuck.watch(axes, eqn, active, [params["cond_jaxpr"], params["body_jaxpr"]])
        new = run(axes, params["body_jaxpr"], [*body_consts, *old])
        kept = [_choose(axes, active, n, o) for n, o in zip(new, old, strict=True)]
        return _pack(forms, kept)

    return _unpack(forms, lax.while_loop(keep_going, body, _pack(forms, init)))


# ------------------------------------------------------------------------------------- cond


def cond(run: Run, axes: Axes, eqn: Any, ins: list[Spread]) -> list[Spread]:
    index, operands = ins[0], ins[1:]
    if index.at:
        return _every_branch(run, axes, eqn, index, operands)
    branches = eqn.params["branches"]
    names = cond_outputs(axes, eqn.params, _names(ins))
    slots: list[list[Slot]] = [
        [*axes.ordered(n), *range(len(aval.shape))]
        for n, aval in zip(names, _out_avals(branches[0]), strict=True)
    ]

    def branch(jaxpr: Any) -> Callable[..., list[Any]]:
        def call(*arrays: Any) -> list[Any]:
            values = [Spread(a, o.at) for a, o in zip(arrays, operands, strict=True)]
            outs = run(axes, jaxpr, values)
            return [
                arrange(out, s, shape_of(s, out.local_shape, axes))
                for out, s in zip(outs, slots, strict=True)
            ]

        return call

    chosen = lax.convert_element_type(index.array, jnp.int32)
    outs = lax.switch(chosen, [branch(b) for b in branches], *(o.array for o in operands))
    return [from_slots(out, s) for out, s in zip(outs, slots, strict=True)]


def _out_avals(jaxpr: Any) -> list[Any]:
    return [var.aval for var in _jax.open_jaxpr(jaxpr)[0].outvars]


def _every_branch(
    run: Run, axes: Axes, eqn: Any, index: Spread, operands: list[Spread]
) -> list[Spread]:
    branches = eqn.params["branches"]
    stuck.watch(axes, eqn, index, branches)
    results = [run(axes, branch, operands) for branch in branches]
    chosen = jnp.clip(lax.convert_element_type(index.array, jnp.int32), 0, len(branches) - 1)
    out = results[-1]
    for number in reversed(range(len(branches) - 1)):
        here = Spread(chosen == number, index.at)
        out = [_choose(axes, here, a, b) for a, b in zip(results[number], out, strict=True)]
    return out


def _choose(axes: Axes, predicate: Spread, yes: Spread, no: Spread) -> Spread:
    """Return on each device `yes` where its predicate holds, else `no`."""
    return elementwise(axes, lax.select_n_p, {}, [predicate, no, yes])[0]


# ----------------------------------------------------------------------------- linear solve


def linear_solve(run: Run, axes: Axes, eqn: Any, ins: list[Spread]) -> list[Spread]:
    """Run the solver itself: differentiation, which needs the rest, is over."""
    lengths = eqn.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    end = start + lengths.solve
    n_consts = end + lengths.transpose_solve
    return run(axes, eqn.params["jaxprs"].solve, [*ins[start:end], *ins[n_consts:]])


RULES: dict[str, Callable[..., list[Spread]]] = {
    "scan": scan,
    "while": while_loop,
    "cond": cond,
    "custom_linear_solve": linear_solve,
}
