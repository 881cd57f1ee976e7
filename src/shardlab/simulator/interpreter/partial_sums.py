"""Products deferred to the psum that sums them over devices.

`psum(x @ w)` over a mesh axis that both operands vary over is one larger contraction: the device
axis is contracted along with the local dimension. Computed literally, the partial product of every
device would exist at the same time: n times the memory and most of the time of a weight gradient.
So a dot_general with a single use stays pending through the linear operations behind it (transpose,
reshape, add, scaling) until a psum takes it or some other operation needs its value.

This is done only for integers and for floats of 32 bits and more. Narrower floats round on each
device before the sum, and that rounding is part of what the program computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from shardlab.simulator.interpreter.rules.dot_general import multiply_stacked
from shardlab.simulator.interpreter.rules.local import apply_local, strip_placement
from shardlab.simulator.interpreter.rules.reductions import multiply_by_replicas, psum
from shardlab.simulator.interpreter.shard_boundary import ShardedOutput
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray

_LINEAR_IN_ALL = frozenset({"add", "sub", "add_any", "neg"})
_LINEAR_IN_FIRST = frozenset(
    {"transpose", "reshape", "broadcast_in_dim", "squeeze", "expand_dims", "reduce_sum"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeferredProduct:
    """A product, or a linear operation on one, that has not been computed yet."""

    axes: MeshAxes
    primitive: Any
    params: dict[str, Any]
    operands: tuple[Value, ...]

    def materialize(self) -> StackedArray:
        """Compute the value on every device."""
        return self._apply_primitive([materialize(operand) for operand in self.operands])

    def psum(self, names: Sequence[str]) -> StackedArray:
        """Compute the sum over `names` without storing the terms."""
        name = self.primitive.name
        if name == "dot_general":
            lhs, rhs = (materialize(operand) for operand in self.operands)
            return self._sum_product(lhs, rhs, names)
        # psum commutes with a linear operation: sum the pending operands, then apply it.
        if name in _LINEAR_IN_ALL:
            terms = [sum_over_devices(self.axes, operand, names) for operand in self.operands]
            return self._apply_primitive(terms)
        if name == "mul":
            return self._sum_scaled(names)
        first, *rest = self.operands
        total = sum_over_devices(self.axes, first, names)
        return self._apply_primitive([total, *(materialize(operand) for operand in rest)])

    def _apply_primitive(self, operands: list[StackedArray]) -> StackedArray:
        return apply_local(self.axes, self.primitive, self.params, operands)[0]

    def _sum_product(
        self, lhs: StackedArray, rhs: StackedArray, names: Sequence[str]
    ) -> StackedArray:
        in_neither = [n for n in names if n not in lhs.device_axes and n not in rhs.device_axes]
        in_both = [n for n in names if n in lhs.device_axes and n in rhs.device_axes]
        # An axis of one operand only: sum that operand first, which is cheaper still.
        in_one = [n for n in names if n not in in_neither and n not in in_both]
        lhs = psum(self.axes, lhs, [n for n in in_one if n in lhs.device_axes])
        rhs = psum(self.axes, rhs, [n for n in in_one if n in rhs.device_axes])
        params = strip_placement(self.params)
        (out,) = multiply_stacked(self.axes, self.primitive, params, [lhs, rhs], contract=in_both)
        # Over an axis of neither operand the product is replicated: n equal terms.
        return multiply_by_replicas(self.axes, out, in_neither)

    def _sum_scaled(self, names: Sequence[str]) -> StackedArray:
        factors = [o for o in self.operands if isinstance(o, StackedArray)]
        # A factor that differs between devices weights each term, so it cannot move out of the sum.
        if any(name in factor.device_axes for factor in factors for name in names):
            return psum(self.axes, self.materialize(), names)
        return self._apply_primitive(
            [
                o.psum(names) if isinstance(o, DeferredProduct) else materialize(o)
                for o in self.operands
            ]
        )


Value = StackedArray | DeferredProduct | ShardedOutput


def materialize(value: Value) -> StackedArray:
    """Return the computed value."""
    return value if isinstance(value, StackedArray) else value.materialize()


def sum_over_devices(axes: MeshAxes, value: Value, names: Sequence[str]) -> StackedArray:
    """Return the psum of a value, pending or not."""
    if isinstance(value, DeferredProduct):
        return value.psum(names)
    return psum(axes, materialize(value), names)


def defer_product(
    axes: MeshAxes, primitive: Any, params: dict[str, Any], ins: Sequence[Value], dtype: Any
) -> DeferredProduct | None:
    """Return the operation as a pending one, or None if it must be computed now.

    The operands of a product are computed; those of a linear operation may be pending themselves.
    """
    n_pending = sum(isinstance(value, DeferredProduct) for value in ins)
    name = primitive.name
    if name == "transpose" and isinstance(ins[0], DeferredProduct):
        swapped = _swap_operands(ins[0], tuple(params["permutation"]))
        if swapped is not None:
            return swapped
    if name == "dot_general":
        is_deferrable = _is_wide_enough(dtype) and any(
            materialize(value).device_axes for value in ins
        )
    elif name in _LINEAR_IN_ALL:
        is_deferrable = n_pending > 0
    elif name == "mul":
        # Linear in each factor alone: with two pending factors it is not a linear operation.
        is_deferrable = n_pending == 1
    else:
        is_deferrable = name in _LINEAR_IN_FIRST and isinstance(ins[0], DeferredProduct)
    if not is_deferrable:
        return None
    return DeferredProduct(axes=axes, primitive=primitive, params=params, operands=tuple(ins))


def _is_wide_enough(dtype: Any) -> bool:
    """Return whether summing inside the contraction changes at most the order of a sum."""
    return bool(
        jnp.issubdtype(dtype, jnp.integer)
        or (jnp.issubdtype(dtype, jnp.inexact) and dtype.itemsize >= 4)
    )


def _swap_operands(
    product: DeferredProduct, permutation: tuple[int, ...]
) -> DeferredProduct | None:
    """Return the product with its operands swapped, if that is all the transpose does.

    JAX computes the gradient of `x @ w` for w as a product and a transpose. XLA folds the two in
    the unsharded program; here device axes stand between them, XLA would keep the transpose, and
    the weight update would read the gradient column by column.
    """
    if product.primitive.name != "dot_general":
        return None
    lhs, rhs = (materialize(operand) for operand in product.operands)
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = product.params["dimension_numbers"]
    n_batch, n_left = len(lhs_batch), lhs.local_ndim - len(lhs_contract)
    swapped = (*range(n_batch), *range(n_left, len(permutation)), *range(n_batch, n_left))
    if permutation != swapped:
        return None
    params = dict(product.params)
    params["dimension_numbers"] = ((rhs_contract, lhs_contract), (rhs_batch, lhs_batch))
    if isinstance(params.get("precision"), tuple):  # one precision per operand
        params["precision"] = params["precision"][::-1]
    return DeferredProduct(
        axes=product.axes, primitive=product.primitive, params=params, operands=(rhs, lhs)
    )
