"""An exported program without one of its constructs, to see whether its result depends on it.

A collective whose result has the type of its operand (psum, pmax, ppermute) is replaced by that
operand: nothing is communicated. The result of any other one, and of a shard_map, is replaced by
zeros. If the program still returns the same, the construct has no influence: it works on zeros, its
result is multiplied by zero, or it is in a branch that is not taken. A psum is also replaced by n
times its operand: that is the same if all n devices pass the same value, and nothing is summed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from jax._src.export import _export  # _module_to_bytecode: the form in which a program is exported
from jax._src.interpreters import mlir  # make_ir_context, with all dialects loaded
from jax._src.lib.mlir import ir

from shardlab._jax.exported_program import (
    MAX_DEPTH,
    ModuleFunctions,
    collective_name,
    group_size,
    trip_count,
)
from shardlab.collectives.program_flow import SHARD_MAP


def remove_construct(
    exported: jax.export.Exported, name: str, *, as_if_equal: bool = False
) -> jax.export.Exported | None:
    """Return a program in which no operation uses the result of a construct.

    With `as_if_equal`, the result of a psum is what it would be if all devices passed the same.

    None if its devices could take different branches then, and block in the collectives there.
    """
    with mlir.make_ir_context(), ir.Location.unknown():
        module = exported.mlir_module(serialized=False)
        for op in list(_iterate_operations(module.operation)):
            if _is_construct(op, name):
                _replace_results(op, as_if_equal)
        if _may_diverge(module):
            return None
        serialized = _export._module_to_bytecode(module)
    return dataclasses.replace(exported, mlir_module_serialized=serialized)


def _iterate_operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for op in list(block.operations):
                yield op.operation
                yield from _iterate_operations(op.operation)


def _may_diverge(module: Any) -> bool:
    """Return whether a branch, or a loop of unknown length, contains a collective that is used."""
    functions = ModuleFunctions(module)
    return any(
        _contains_collective(op, functions, 0)
        for op in _iterate_operations(module.operation)
        if op.name in ("stablehlo.case", "stablehlo.if")
        or (op.name == "stablehlo.while" and trip_count(op) is None)
    )


def _contains_collective(operation: Any, functions: ModuleFunctions, depth: int) -> bool:
    if depth > MAX_DEPTH:
        return True
    for op in _iterate_operations(operation):
        if collective_name(op) and any(True for result in op.results for _ in result.uses):
            return True
        if any(
            _contains_collective(item, functions, depth + 1) for item in functions.called_by(op)
        ):
            return True
    return False


def _is_construct(op: Any, name: str) -> bool:
    if name == SHARD_MAP:
        return bool(op.name == "sdy.manual_computation")
    return collective_name(op) == name


def _replace_results(op: Any, as_if_equal: bool) -> None:
    operands = list(op.operands)
    is_collective = bool(collective_name(op))
    for number, result in enumerate(op.results):
        if is_collective and number < len(operands) and operands[number].type == result.type:
            value = operands[number]
            if as_if_equal:
                value = _multiply_before(op, value, group_size(op))
            result.replace_all_uses_with(value)
            continue
        # There is no zero of some types, such as complex ones; those results stay.
        with contextlib.suppress(ValueError, TypeError):
            result.replace_all_uses_with(_constant_before(op, result.type, 0))


def _multiply_before(op: Any, value: Any, factor: int) -> Any:
    with contextlib.suppress(ValueError, TypeError):
        factors = _constant_before(op, value.type, factor)
        product = ir.Operation.create(
            "stablehlo.multiply",
            results=[value.type],
            operands=[value, factors],
            ip=ir.InsertionPoint(op),
        )
        return product.results[0]
    return value


def _constant_before(op: Any, value_type: Any, number: int) -> Any:
    element_type = ir.RankedTensorType(value_type).element_type
    is_integer = isinstance(element_type, (ir.IntegerType, ir.IndexType))
    attribute = ir.IntegerAttr if is_integer else ir.FloatAttr
    splat = ir.DenseElementsAttr.get_splat(value_type, attribute.get(element_type, number))
    constant = ir.Operation.create(
        "stablehlo.constant",
        results=[value_type],
        attributes={"value": splat},
        ip=ir.InsertionPoint(op),
    )
    return constant.results[0]
