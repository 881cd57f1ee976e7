"""Values of a lowered module: their types, their uses, and the trip counts of loops."""

from __future__ import annotations

import re
from typing import Any

from jax._src.lib.mlir import ir  # reads types and operations


def parse_type(value_type: Any) -> tuple[tuple[int, ...], str, float]:
    if not isinstance(value_type, ir.RankedTensorType):
        return (), str(value_type), 0.0  # a token
    text = str(value_type.element_type)
    if text == "i1":
        return tuple(value_type.shape), "bool", 1.0
    match = re.search(r"(\d+)", text)
    bits = int(match[1]) if match else 32
    if text.startswith("complex"):
        bits *= 2
    dtype = text
    if text.startswith("f8"):
        dtype, bits = "float8_" + text[2:].lower(), 8
    elif text.startswith("ui"):
        dtype = f"u{bits}"
    elif text.startswith("i"):
        dtype = f"s{bits}"
    return tuple(value_type.shape), dtype, bits / 8


def find_uses(operations: list[Any]) -> dict[Any, list[int]]:
    """Return the operations of a block that use each value, also inside of their regions."""
    uses: dict[Any, list[int]] = {}

    def add(op: Any, index: int) -> None:
        for operand in op.operands:
            uses.setdefault(operand, []).append(index)
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    add(inner.operation, index)

    for index, op in enumerate(operations):
        add(op.operation, index)
    return uses


def trip_count(loop: Any) -> int | None:
    """Return how often a loop of `lax.scan` or `fori_loop` runs: from 0 by 1 up to a constant."""
    condition = loop.operation.regions[0].blocks[0]
    compared = list(condition.operations)[-1].operands[0].owner
    if isinstance(compared, ir.Block) or compared.name != "stablehlo.compare":
        return None
    counter, limit = (_outer_value(operand, loop) for operand in compared.operands)
    start, stop = _constant(counter), _constant(limit)
    return None if start is None or stop is None else max(stop - start, 0)


def _outer_value(value: Any, loop: Any) -> Any:
    """Return what a loop's block argument is before the first iteration."""
    if isinstance(value.owner, ir.Block):
        return loop.operands[ir.BlockArgument(value).arg_number]
    return value


def _constant(value: Any) -> int | None:
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.name in ("stablehlo.convert",):
        owner = owner.operands[0].owner
    if isinstance(owner, ir.Block) or owner.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    match = re.search(r"dense<(-?\d+)>", str(owner.attributes["value"]))
    return int(match[1]) if match else None
