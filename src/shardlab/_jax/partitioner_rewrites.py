"""Rewrites that bring what Shardy's passes insert closer to what XLA's partitioner inserts.

XLA propagates with Shardy's passes and then reshards with its own partitioner, whose choices
differ in three places. `tests/oracle/test_quick_trace.py` compares the results.
"""

from __future__ import annotations

import re
from typing import Any

from jax._src.lib.mlir import ir  # edits operations
from jax._src.lib.mlir.dialects import sdy  # Shardy's attributes

_DIMS = re.compile(
    r"(lhs_batching|rhs_batching|lhs_contracting|rhs_contracting)_dimensions = \[([\d, ]*)\]"
)
_SHARDING = re.compile(r"#sdy\.sharding<@([\w\"]+), \[(.*)\]>")

Entries = list[list[str]]  # the axes of each dimension, as text: "data" or "model":(1)2


def reshard_products(module: Any) -> None:
    """Reshard what uses a mesh axis otherwise than the product that XLA computes.

    - An operand that shards a contracted dimension over an axis over which the other operand and
      the result shard their rows (FSDP): XLA gathers it. Shardy would move whichever is smaller.
    - A result that is sharded over an axis over which both operands shard the contracted dimension
      (a gradient of FSDP): XLA sums and scatters. Shardy would move the operands.
    """
    for op in _operations(module, "stablehlo.dot_general"):
        result = _value_entries(op.results[0])
        known = [_value_entries(operand) for operand in op.operands]
        operands = [entries for entries in known if entries is not None]
        if result is None or len(operands) < len(known):
            continue
        free_dims, contracted_dims = _product_dims(op)
        summed: set[str] = set()
        for dim, axis in [(dim, axis) for dim, axes in enumerate(result) for axis in axes]:
            is_agreeing = [
                dim in free and axis in entries[free[dim]]
                for free, entries in zip(free_dims, operands, strict=True)
            ]
            if any(is_agreeing):
                for number, entries in enumerate(operands):
                    if not is_agreeing[number] and any(axis in names for names in entries):
                        operands[number] = _without_axes(entries, {axis})
                        _reshard_operand(op, number, operands[number])
            elif all(
                any(axis in entries[dim] for dim in dims)
                for dims, entries in zip(contracted_dims, operands, strict=True)
            ):
                summed.add(axis)
        if summed:
            _reshard_result(op, _without_axes(result, summed))


def _without_axes(entries: Entries, axes: set[str]) -> Entries:
    return [[name for name in names if name not in axes] for names in entries]


def add_before_reducing(module: Any) -> None:
    """Replace a sum of all-reduces over the same axes by the all-reduce of the sum, as XLA does.

    The same holds for the slices of two all-reduces, which are reduce-scatters.
    """
    for add in _operations(module, "stablehlo.add"):
        left, right = (_reduction_chain(operand) for operand in add.operands)
        if not left or not right or left[0] == right[0] or _texts(left) != _texts(right):
            continue
        # The right all-reduce takes the sum of both operands; its result replaces the sum.
        clone = add.clone(ip=ir.InsertionPoint(add))
        clone.operands[0], clone.operands[1] = left[-1].operands[0], right[-1].operands[0]
        clone.attributes["sdy.sharding"] = ir.Attribute.parse(
            f"#sdy.sharding_per_value<[{_sharding_body(right[-1].attributes['out_sharding'])}]>"
        )
        previous = clone
        for op in reversed(right):
            op.move_after(previous)
            previous = op
        right[-1].operands[0] = clone.results[0]
        add.results[0].replace_all_uses_with(right[0].results[0])
        add.erase()
        for op in left:
            op.erase()


def _reduction_chain(value: Any) -> list[Any]:
    """Return the all-reduce of a value, behind its slice if it is one; empty if it is neither."""
    chain: list[Any] = []
    for name in ("sdy.all_slice", "sdy.all_reduce"):
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name != name:
            continue
        if len(list(value.uses)) != 1:
            return []
        chain.append(owner.operation)
        value = owner.operands[0]
    return chain if chain and chain[-1].name == "sdy.all_reduce" else []


def _texts(chain: list[Any]) -> list[list[str]]:
    return [_attribute_texts(op) for op in chain]


def _attribute_texts(op: Any) -> list[str]:
    return [op.name, *(str(op.attributes[i]) for i in range(len(op.attributes)))]


def _sharding_body(sharding: Any) -> str:
    return str(sharding).removeprefix("#sdy.sharding")


def reduce_by_dimension(module: Any) -> None:
    """Split the all-reduce of a sum over several sharded dimensions: XLA has one for each."""
    for op in _operations(module, "sdy.all_reduce"):
        owner = op.operands[0].owner
        if isinstance(owner, ir.Block) or owner.name != "stablehlo.reduce":
            continue
        entries = _value_entries(owner.operands[0]) or []
        axes = re.findall(r'"[^"]+"', str(op.attributes["reduction_axes"]))
        parts = [[axis for axis in axes if axis in names] for names in entries]
        parts = [part for part in parts if part]
        if len(parts) < 2 or sorted(axes) != sorted(axis for part in parts for axis in part):
            continue
        text, list_text = str(op.attributes["reduction_axes"]), ", ".join(axes)
        for part in parts[:-1]:
            clone = op.clone(ip=ir.InsertionPoint(op))
            clone.attributes["reduction_axes"] = ir.Attribute.parse(
                text.replace(list_text, ", ".join(part))
            )
            op.operands[0] = clone.results[0]
        op.attributes["reduction_axes"] = ir.Attribute.parse(
            text.replace(list_text, ", ".join(parts[-1]))
        )


def merge_equal_collectives(block: Any) -> None:
    """Replace collectives that are equal to an earlier one: XLA gathers an array once."""
    first: dict[tuple[Any, ...], Any] = {}
    for op in list(block.operations):
        for region in op.operation.regions:
            for inner in region.blocks:
                merge_equal_collectives(inner)
        name = op.operation.name
        if name not in _MERGED_OPERATIONS:
            continue
        key = (op.operands[0], *_attribute_texts(op.operation))
        if key in first:
            op.results[0].replace_all_uses_with(first[key].results[0])
            op.operation.erase()
        else:
            first[key] = op


_MERGED_OPERATIONS = frozenset(
    f"sdy.{name}"
    for name in ("all_gather", "all_slice", "all_to_all", "all_reduce", "collective_permute")
)


def _operations(module: Any, name: str) -> list[Any]:
    operations: list[Any] = []

    def collect(op: Any) -> Any:
        if op.name == name:
            operations.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    return operations


def _product_dims(op: Any) -> tuple[list[dict[int, int]], list[list[int]]]:
    """Return for each operand its dimension by that of the result, and the contracted ones."""
    text = str(op.attributes["dot_dimension_numbers"])
    numbers = {key: [int(n) for n in re.findall(r"\d+", dims)] for key, dims in _DIMS.findall(text)}
    free_dims, contracted_dims = [], []
    position = len(numbers.get("lhs_batching", ()))
    for side, operand in zip(("lhs", "rhs"), op.operands, strict=True):
        batch = numbers.get(f"{side}_batching", [])
        contracted = numbers.get(f"{side}_contracting", [])
        rank = len(ir.RankedTensorType(operand.type).shape)
        free = [dim for dim in range(rank) if dim not in (*batch, *contracted)]
        by_result = dict(enumerate(batch))
        by_result |= {position + number: dim for number, dim in enumerate(free)}
        position += len(free)
        free_dims.append(by_result)
        contracted_dims.append(contracted)
    return free_dims, contracted_dims


def _value_sharding(value: Any) -> Any:
    """Return Shardy's sharding of a value; None if it has none."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        number = ir.BlockArgument(value).arg_number
        parent = owner.owner.operation  # the view of a function has its symbol as name
        if parent.name == "stablehlo.while":
            return _value_sharding(parent.results[number])
        if parent.name == "sdy.manual_computation":
            return _without_manual_axes(parent, _listed_sharding(parent, "in_shardings", number))
        if parent.name != "func.func" or "arg_attrs" not in parent.attributes:
            return None
        attributes = ir.DictAttr(ir.ArrayAttr(parent.attributes["arg_attrs"])[number])
        # Not `get`: that creates an attribute.
        return attributes["sdy.sharding"] if "sdy.sharding" in attributes else None  # noqa: SIM401
    if owner.name in ("sdy.reshard", "sdy.sharding_constraint"):
        return owner.attributes["sharding"]
    number = ir.OpResult(value).result_number
    if owner.name == "sdy.manual_computation":
        return _listed_sharding(owner, "out_shardings", number)
    if "sdy.sharding" not in owner.attributes:
        return None
    return _listed_sharding(owner, "sdy.sharding", number)


def _listed_sharding(op: Any, attribute: str, number: int) -> Any:
    return sdy.TensorShardingPerValueAttr(op.attributes[attribute]).shardings[number]


def _without_manual_axes(op: Any, sharding: Any) -> Any:
    """Return how an operand of a shard_map is sharded inside of it, over the axes left to XLA."""
    axes = set(re.findall(r'"[^"]+"', str(op.attributes["manual_axes"])))
    entries = _parse_entries(sharding)
    return None if entries is None else _with_entries(sharding, _without_axes(entries, axes))


def _value_entries(value: Any) -> Entries | None:
    return _parse_entries(_value_sharding(value))


def _parse_entries(sharding: Any) -> Entries | None:
    match = sharding and _SHARDING.fullmatch(str(sharding).split(", replicated=")[0])
    if not match:
        return None
    dims = re.findall(r"\{([^}]*)\}", match[2])
    return [re.findall(r'"[^"]+"(?::\(\d+\)\d+)?', dim) for dim in dims]


def _reshard_operand(op: Any, number: int, entries: Entries) -> None:
    value = op.operands[number]
    sharding = _with_entries(_value_sharding(value), entries)
    op.operands[number] = _make_reshard(value, sharding, ir.InsertionPoint(op), op.location)


def _reshard_result(op: Any, entries: Entries) -> None:
    """Give the result this sharding, and its users what it had before."""
    result = op.results[0]
    before = _value_sharding(result)
    after = _with_entries(before, entries)
    op.attributes["sdy.sharding"] = ir.Attribute.parse(
        f"#sdy.sharding_per_value<[{_sharding_body(after)}]>"
    )
    users = list(result.uses)
    block_operations = list(op.block.operations)
    position = next(i for i, item in enumerate(block_operations) if item.operation == op)
    point = ir.InsertionPoint(block_operations[position + 1])
    reshard = _make_reshard(result, before, point, op.location)
    for use in users:
        use.owner.operands[use.operand_number] = reshard


def _with_entries(sharding: Any, entries: Entries) -> Any:
    match = _SHARDING.match(str(sharding))
    assert match is not None
    dims = ", ".join("{" + ", ".join(names) + "}" for names in entries)
    return ir.Attribute.parse(f"#sdy.sharding<@{match[1]}, [{dims}]>")


def _make_reshard(value: Any, sharding: Any, point: Any, location: Any) -> Any:
    return ir.Operation.create(
        "sdy.reshard",
        results=[value.type],
        operands=[value],
        attributes={"sharding": sharding},
        ip=point,
        loc=location,
    ).result
