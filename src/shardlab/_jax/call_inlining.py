"""Inlines the function calls of a lowered module, as XLA does before it partitions.

JAX lowers `jnp.where`, remat and every nested jit to functions, and calls of equal shapes share
one. Without inlining, all calls of a function would get the same shardings.
"""

from __future__ import annotations

from typing import Any

from jax._src.lib.mlir import ir  # clones operations


def inline_calls(module: Any) -> None:
    """Replace each call in a module by the operations of its function; only main remains."""
    top = module.regions[0].blocks[0]
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in top.operations
        if op.operation.name == "func.func"
    }
    inlined: set[str] = set()

    def inline_function(name: str) -> Any:
        function = functions[name]
        if name not in inlined:
            inlined.add(name)
            _inline_in(function.regions[0].blocks[0], inline_function)
        return function

    inline_function("main")
    for name, function in functions.items():
        if name != "main":
            function.operation.erase()


def _inline_in(block: Any, inline_function: Any) -> None:
    for op in list(block.operations):
        for region in op.operation.regions:
            for inner in region.blocks:
                _inline_in(inner, inline_function)
        if op.operation.name == "func.call":
            name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            _replace_call(op, inline_function(name).regions[0].blocks[0])


def _replace_call(call: Any, body: Any) -> None:
    values = dict(zip(body.arguments, call.operands, strict=True))
    insertion_point = ir.InsertionPoint(call)
    for op in body.operations:
        if op.operation.name == "func.return":
            for result, operand in zip(call.results, op.operands, strict=True):
                result.replace_all_uses_with(values.get(operand, operand))
            break
        clone = op.operation.clone(ip=insertion_point)
        _replace_operands(clone, values)
        values.update(zip(op.results, clone.results, strict=True))
    call.operation.erase()


def _replace_operands(op: Any, values: dict[Any, Any]) -> None:
    """Replace operands, also those of operations in regions: a loop body may use outer values."""
    for index, operand in enumerate(op.operands):
        if operand in values:
            op.operands[index] = values[operand]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                _replace_operands(inner.operation, values)
