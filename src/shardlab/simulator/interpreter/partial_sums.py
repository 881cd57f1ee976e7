"""Products that wait for the psum that will sum them over devices.

`psum(x @ w)` over an axis that both operands vary over is one larger contraction. Done literally,
every device's partial product would be held at once: n times the memory and most of the time of a
weight gradient. So a dot_general used just once is kept back, through the linear steps that follow
it (transpose, reshape, add, scaling), until a psum takes it or someone else needs its value.

Only for 32-bit floats and wider, and integers: narrower floats round on each device before the
sum, and that rounding is part of what the program computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from shardlab.simulator.interpreter.rules.dot_general import dot_general
from shardlab.simulator.interpreter.rules.local import local, plain_params
from shardlab.simulator.interpreter.rules.reductions import psum, times_copies
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.interpreter.unjoined import UnjoinedOutput

_LINEAR_IN_ALL = frozenset({"add", "sub", "add_any", "neg"})
_LINEAR_IN_FIRST = frozenset(
    {"transpose", "reshape", "broadcast_in_dim", "squeeze", "expand_dims", "reduce_sum"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deferred:
    """A product, or a linear step behind one, that has not been computed yet."""

    axes: MeshAxes
    primitive: Any
    params: dict[str, Any]
    operands: tuple[Value, ...]

    def force(self) -> StackedArray:
        """Compute the value on every device."""
        return self._apply([force(operand) for operand in self.operands])

    def psum(self, names: Sequence[str]) -> StackedArray:
        """Compute the sum over `names` without ever holding the summands."""
        name = self.primitive.name
        if name == "dot_general":
            lhs, rhs = (force(operand) for operand in self.operands)
            return self._product_summed(lhs, rhs, names)
        if name in _LINEAR_IN_ALL:
            return self._apply([summed(self.axes, operand, names) for operand in self.operands])
        if name == "mul":
            return self._scaled_summed(names)
        first, *rest = self.operands
        return self._apply([summed(self.axes, first, names), *(force(o) for o in rest)])

    def _apply(self, operands: list[StackedArray]) -> StackedArray:
        return local(self.axes, self.primitive, self.params, operands)[0]

    def _product_summed(
        self, lhs: StackedArray, rhs: StackedArray, names: Sequence[str]
    ) -> StackedArray:
        equal = [n for n in names if n not in lhs.device_axes and n not in rhs.device_axes]
        both = [n for n in names if n in lhs.device_axes and n in rhs.device_axes]
        # An axis of one side only: sum that side first, which is cheaper still.
        one_sided = [n for n in names if n not in equal and n not in both]
        lhs = psum(self.axes, lhs, [n for n in one_sided if n in lhs.device_axes])
        rhs = psum(self.axes, rhs, [n for n in one_sided if n in rhs.device_axes])
        params = plain_params(self.params)
        (out,) = dot_general(self.axes, self.primitive, params, [lhs, rhs], contract=both)
        return times_copies(self.axes, out, equal)

    def _scaled_summed(self, names: Sequence[str]) -> StackedArray:
        factors = [o for o in self.operands if isinstance(o, StackedArray)]
        if any(name in factor.device_axes for factor in factors for name in names):
            return psum(self.axes, self.force(), names)
        return self._apply(
            [o.psum(names) if isinstance(o, Deferred) else force(o) for o in self.operands]
        )


Value = StackedArray | Deferred | UnjoinedOutput


def force(value: Value) -> StackedArray:
    return value if isinstance(value, StackedArray) else value.force()


def summed(axes: MeshAxes, value: Value, names: Sequence[str]) -> StackedArray:
    if isinstance(value, Deferred):
        return value.psum(names)
    return psum(axes, force(value), names)


def defer(
    axes: MeshAxes, primitive: Any, params: dict[str, Any], ins: Sequence[Value], dtype: Any
) -> Deferred | None:
    """Return the step kept back, or None where it must be computed at once.

    The operands of a product are there; those of a linear step may be kept back themselves.
    """
    n_deferred = sum(isinstance(value, Deferred) for value in ins)
    name = primitive.name
    if name == "transpose" and isinstance(ins[0], Deferred):
        swapped = _swapped(ins[0], tuple(params["permutation"]))
        if swapped is not None:
            return swapped
    if name == "dot_general":
        wanted = _adds_exactly(dtype) and any(force(value).device_axes for value in ins)
    elif name in _LINEAR_IN_ALL:
        wanted = n_deferred > 0
    elif name == "mul":
        wanted = n_deferred == 1
    else:
        wanted = name in _LINEAR_IN_FIRST and isinstance(ins[0], Deferred)
    return (
        Deferred(axes=axes, primitive=primitive, params=params, operands=tuple(ins))
        if wanted
        else None
    )


def _adds_exactly(dtype: Any) -> bool:
    return bool(
        jnp.issubdtype(dtype, jnp.integer)
        or (jnp.issubdtype(dtype, jnp.inexact) and dtype.itemsize >= 4)
    )


def _swapped(product: Deferred, permutation: tuple[int, ...]) -> Deferred | None:
    """Return the product with its operands exchanged, where that is all a transpose asks for.

    JAX's gradient of `x @ w` for w is a product and a transpose. XLA folds them in the unsharded
    program; here device axes stand between, and an update would read the gradient column by column.
    """
    if product.primitive.name != "dot_general":
        return None
    lhs, rhs = (force(operand) for operand in product.operands)
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = product.params["dimension_numbers"]
    n_batch, n_left = len(lhs_batch), lhs.n_local - len(lhs_contract)
    exchanged = (*range(n_batch), *range(n_left, len(permutation)), *range(n_batch, n_left))
    if permutation != exchanged:
        return None
    params = dict(product.params)
    params["dimension_numbers"] = ((rhs_contract, lhs_contract), (rhs_batch, lhs_batch))
    if isinstance(params.get("precision"), tuple):
        params["precision"] = params["precision"][::-1]
    return Deferred(
        axes=product.axes, primitive=product.primitive, params=params, operands=(rhs, lhs)
    )
