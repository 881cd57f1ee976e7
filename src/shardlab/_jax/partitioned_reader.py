"""Reads a partitioned module: walks its operations and collects what one device does.

Shapes in the module are those of full arrays; a value's `sdy.sharding` says how many shards each
dimension has. Attributes are unique in an MLIR context, so each is parsed once for all candidates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, cast

from jax._src.lib.mlir import ir  # reads operations
from jax._src.lib.mlir.dialects import sdy  # Shardy's attributes

from shardlab._jax.module_source import SourceLines
from shardlab._jax.module_values import find_uses, parse_type, trip_count
from shardlab._jax.partitioned_program import (
    CollectiveKind,
    DimAxes,
    InsertedCall,
    LocalProduct,
    MemoryPass,
    PartitionedProgram,
)

# Shardy's attribute with the axes of each collective; it has no Python class, only text such as
# [{"data"}, {"model":(1)2}].
_AXES_ATTRIBUTE = {
    "sdy.all_reduce": "reduction_axes",
    "sdy.all_gather": "gathering_axes",
    "sdy.reduce_scatter": "reduce_scatter_axes",
    "sdy.all_to_all": "params",
    "sdy.all_slice": "slicing_axes",
}
_AXIS = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')

# Operations that XLA does not fuse into others: what they read and write is in memory.
_UNFUSED = frozenset(
    f"stablehlo.{name}"
    for name in [
        "all_gather",
        "all_reduce",
        "all_to_all",
        "case",
        "collective_permute",
        "concatenate",
        "convolution",
        "custom_call",
        "dot_general",
        "dynamic_update_slice",
        "fft",
        "gather",
        "optimization_barrier",
        "reduce_scatter",
        "reduce_window",
        "rng_bit_generator",
        "scatter",
        "select_and_scatter",
        "sort",
        "while",
        "return",
    ]
) | {"func.return", "sdy.manual_computation", "sdy.return", *_AXES_ATTRIBUTE} - {"sdy.all_slice"}
# Unfused, but their operands and results are counted elsewhere, or only renamed.
_NO_TRAFFIC = frozenset(
    (
        "stablehlo.while",
        "stablehlo.case",
        "stablehlo.return",
        "stablehlo.optimization_barrier",
        "stablehlo.dot_general",
        "stablehlo.convolution",
        "func.return",
        "sdy.return",
        "sdy.manual_computation",
        *_AXES_ATTRIBUTE,
    )
)
_SMALL = 1 << 16  # bytes of one device: smaller values stay in registers or caches


@dataclass(frozen=True)
class _ValueSharding:
    """The axes of each dimension, and how many shards it has."""

    axes: DimAxes | None  # None: an axis is used only in part
    shards: tuple[int, ...]


@dataclass
class _Reading:
    """What is collected while one module is read."""

    collectives: list[InsertedCall] = field(default_factory=list)
    products: list[LocalProduct] = field(default_factory=list)
    passes: dict[tuple[str, str], float] = field(default_factory=dict)
    has_unknown_trip_count: bool = False
    loop_stacks: list[str] = field(default_factory=list)  # of the loops around, outermost first


@dataclass
class PartitionedReader:
    """Reads the modules of one program; what it parses once serves all candidates."""

    axis_sizes: dict[str, int]
    _shardings: dict[Any, _ValueSharding] = field(default_factory=dict)
    _types: dict[Any, tuple[tuple[int, ...], str, float]] = field(default_factory=dict)
    _axis_lists: dict[Any, tuple[tuple[str, ...], int]] = field(default_factory=dict)
    _sources: SourceLines = field(default_factory=SourceLines)
    _values: dict[Any, _ValueSharding] = field(default_factory=dict)

    def read(self, main: Any, reused_results: frozenset[int]) -> PartitionedProgram:
        """Return the records of a partitioned function; `reused_results` need no new memory."""
        self._values = {}
        reading = _Reading()
        block = main.regions[0].blocks[0]
        arguments = self._attribute_shardings(main, "arg_attrs", len(block.arguments))
        for argument, sharding in zip(block.arguments, arguments, strict=True):
            if sharding is not None:
                self._values[argument] = sharding
        terminator = list(block.operations)[-1]
        reused = {terminator.operands[index] for index in reused_results}
        peak = self._read_block(block, 1, reading, free=reused)
        results = [self._sharding_of(value) for value in terminator.operands]
        return PartitionedProgram(
            collectives=tuple(reading.collectives),
            products=tuple(reading.products),
            memory_passes=tuple(
                MemoryPass(source=source, operation=operation, n_bytes=n_bytes)
                for (source, operation), n_bytes in reading.passes.items()
            ),
            argument_axes=tuple(self._axes_of(value) or () for value in block.arguments),
            result_axes=tuple(sharding.axes for sharding in results),
            argument_bytes=round(sum(map(self._local_bytes, block.arguments))),
            result_bytes=round(sum(map(self._local_bytes, terminator.operands))),
            peak_bytes=round(peak),
            has_unknown_trip_count=reading.has_unknown_trip_count,
        )

    # ------------------------------------------------------------------------------------- blocks

    def _read_block(
        self, block: Any, count: int, reading: _Reading, free: Set[Any] = frozenset()
    ) -> float:
        """Read the operations of a block; return the bytes that are alive at once inside of it."""
        operations = list(block.operations)
        for op in operations:
            self._store_shardings(op)
        uses = find_uses(operations)
        frees: dict[int, float] = {}
        alive = peak = 0.0
        for index, op in enumerate(operations):
            name = op.operation.name
            inner = self._read_operation(op, name, count, reading, uses, operations)
            allocated = 0.0
            for result in op.results:
                if name == "stablehlo.optimization_barrier" or result in free:
                    continue
                if self._is_stored(result, name, uses, operations):
                    n_bytes = self._local_bytes(result)
                    if name == "stablehlo.dynamic_update_slice":
                        n_bytes = 0.0  # in place
                    allocated += n_bytes
                    last = max(uses.get(result, [index]))
                    frees[last] = frees.get(last, 0.0) + n_bytes
            alive += allocated
            peak = max(peak, alive + inner)
            alive -= frees.pop(index, 0.0)
        return peak

    def _read_operation(
        self,
        op: Any,
        name: str,
        count: int,
        reading: _Reading,
        uses: dict[Any, list[int]],
        operations: list[Any],
    ) -> float:
        """Collect one operation; return the bytes that its regions need."""
        if name == "stablehlo.while":
            return self._read_while(op, count, reading)
        if name in ("stablehlo.case", "sdy.manual_computation"):
            blocks = [block for region in op.operation.regions for block in region.blocks]
            return max((self._read_block(block, count, reading) for block in blocks), default=0.0)
        if name in _AXES_ATTRIBUTE or name == "sdy.collective_permute":
            self._read_collective(op, name, count, reading, uses, operations)
        elif name == "stablehlo.dot_general":
            reading.products.append(self._read_dot(op, count))
        elif name == "stablehlo.convolution":
            reading.products.append(self._read_convolution(op, count))
        self._count_traffic(op, name, count, reading, uses, operations)
        return 0.0

    def _read_while(self, op: Any, count: int, reading: _Reading) -> float:
        trips = trip_count(op)
        if trips is None:
            reading.has_unknown_trip_count = True
        # The name stacks of operations in a loop start at the loop.
        reading.loop_stacks.append(self._sources.find(op.location)[1])
        peak = 0.0
        for region in op.operation.regions:  # the condition, the body
            block = region.blocks[0]
            for argument, result in zip(block.arguments, op.results, strict=True):
                if result in self._values:
                    self._values[argument] = self._values[result]
            n_executions = count * (1 if trips is None else trips)
            peak = max(peak, self._read_block(block, n_executions, reading))
        reading.loop_stacks.pop()
        return peak

    def _is_stored(
        self, value: Any, producer: str, uses: dict[Any, list[int]], operations: list[Any]
    ) -> bool:
        """Return whether a value is in memory, and not only inside of a fusion."""
        if producer in ("stablehlo.constant", "sdy.all_slice"):
            return False
        if producer in _UNFUSED or producer == "stablehlo.reduce":
            return True
        return any(operations[i].operation.name in _UNFUSED for i in uses.get(value, ()))

    def _count_traffic(
        self,
        op: Any,
        name: str,
        count: int,
        reading: _Reading,
        uses: dict[Any, list[int]],
        operations: list[Any],
    ) -> None:
        """Count the bytes of a fusion at its ends: values that it reads, values that it stores."""
        if name in _NO_TRAFFIC or name == "stablehlo.constant":
            return
        n_bytes = 0.0
        if name == "stablehlo.dynamic_update_slice":
            n_bytes += 2 * self._local_bytes(op.operands[1])
        elif name in ("stablehlo.dynamic_slice", "stablehlo.gather"):
            n_bytes += 2 * sum(map(self._local_bytes, op.results))
        else:
            for operand in op.operands:
                owner = operand.owner
                is_stored = isinstance(owner, ir.Block) or self._is_stored(
                    operand, owner.name, uses, operations
                )
                # The first reader counts: later ones are usually in the same fusion.
                if is_stored and operations[min(uses[operand])] == op:
                    n_bytes += self._local_bytes(operand)
            for result in op.results:
                if self._is_stored(result, name, uses, operations):
                    n_bytes += self._local_bytes(result)
        if n_bytes >= _SMALL:
            source, _ = self._sources.find(op.location)
            key = source, name.rpartition(".")[2]
            reading.passes[key] = reading.passes.get(key, 0.0) + n_bytes * count

    # ----------------------------------------------------------------------- collectives, products

    def _read_collective(
        self,
        op: Any,
        name: str,
        count: int,
        reading: _Reading,
        uses: dict[Any, list[int]],
        operations: list[Any],
    ) -> None:
        if name == "sdy.all_slice":
            return  # each device drops what it does not keep: nothing is sent
        kind, result = name.removeprefix("sdy."), op.results[0]
        result_bytes, result_shape = self._local_bytes(result), self._local_shape(result)
        if name == "sdy.collective_permute":
            before, after = self._axes_of(op.operands[0]), self._axes_of(result)
            names = {a for axes in (before or (), after or ()) for dim in axes for a in dim}
            axes = tuple(a for a in self.axis_sizes if a in names)
            group = math.prod(self.axis_sizes[a] for a in axes)
        else:
            axes, group = self._axis_list(op.attributes[_AXES_ATTRIBUTE[name]])
        users = uses.get(result, [])
        if name == "sdy.all_reduce" and len(users) == 1:
            # XLA makes one reduce-scatter of an all-reduce and the slice of its result.
            user = operations[users[0]]
            if user.operation.name == "sdy.all_slice":
                sliced, _ = self._axis_list(user.attributes["slicing_axes"])
                if set(sliced) == set(axes):
                    kind, result_bytes = "reduce_scatter", self._local_bytes(user.results[0])
                    result_shape = self._local_shape(user.results[0])
        if group <= 1:
            return
        source, name_stack = self._sources.find(op.location)
        shape, dtype, _ = self._type(result.type)
        reading.collectives.append(
            InsertedCall(
                kind=cast(CollectiveKind, kind),
                axes=axes,
                group_size=group,
                operand_bytes=round(self._local_bytes(op.operands[0])),
                result_bytes=round(result_bytes),
                dtype=dtype,
                shape=shape,
                source=source,
                name_stack="/".join([*reading.loop_stacks, name_stack]),
                count=count,
                operand_shape=self._local_shape(op.operands[0]),
                result_shape=result_shape,
            )
        )

    def _read_dot(self, op: Any, count: int) -> LocalProduct:
        numbers = op.attributes["dot_dimension_numbers"]
        dims = self._dot_dims(numbers)
        lhs, rhs = (self._local_shape(operand) for operand in op.operands)
        lhs_batch, rhs_batch, lhs_inner, rhs_inner = dims
        batch = math.prod(lhs[d] for d in lhs_batch)
        # Both operands are sharded alike after Shardy; the smaller is the shard if one is not.
        inner = math.prod(min(lhs[a], rhs[b]) for a, b in zip(lhs_inner, rhs_inner, strict=True))
        rows = math.prod(n for d, n in enumerate(lhs) if d not in (*lhs_batch, *lhs_inner))
        columns = math.prod(n for d, n in enumerate(rhs) if d not in (*rhs_batch, *rhs_inner))
        source, _ = self._sources.find(op.location)
        return LocalProduct(
            batch=batch,
            rows=rows,
            inner=inner,
            columns=columns,
            dtype=self._type(op.operands[0].type)[1],
            n_bytes=round(sum(map(self._local_bytes, (*op.operands, *op.results)))),
            source=source,
            count=count,
        )

    def _dot_dims(self, attribute: Any) -> tuple[tuple[int, ...], ...]:
        text = str(attribute)

        def numbers(name: str) -> tuple[int, ...]:
            match = re.search(rf"{name} = \[([\d, ]*)\]", text)
            return tuple(map(int, re.findall(r"\d+", match[1]))) if match else ()

        return (
            numbers("lhs_batching_dimensions"),
            numbers("rhs_batching_dimensions"),
            numbers("lhs_contracting_dimensions"),
            numbers("rhs_contracting_dimensions"),
        )

    def _read_convolution(self, op: Any, count: int) -> LocalProduct:
        """Return a convolution as a product: outputs x (window x inputs), by elements."""
        kernel = self._local_shape(op.operands[1])
        result = self._local_shape(op.results[0])
        text = str(op.attributes["dimension_numbers"])
        # [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]
        kernel_dims = re.findall(r"[\w]+", text.split("x[")[1].split("]")[0])
        columns = kernel[kernel_dims.index("o")]
        inner = math.prod(kernel) // max(columns, 1)
        source, _ = self._sources.find(op.location)
        return LocalProduct(
            batch=1,
            rows=math.prod(result) // max(columns, 1),
            inner=inner,
            columns=columns,
            dtype=self._type(op.operands[0].type)[1],
            n_bytes=round(sum(map(self._local_bytes, (*op.operands, *op.results)))),
            source=source,
            count=count,
        )

    # --------------------------------------------------------------------------- shapes, shardings

    def _store_shardings(self, op: Any) -> None:
        attributes = op.operation.attributes
        name = op.operation.name
        if name.startswith("sdy.") and "out_sharding" in attributes:
            self._values[op.results[0]] = self._parse(attributes["out_sharding"])
        elif name in ("sdy.sharding_constraint", "sdy.reshard"):
            self._values[op.results[0]] = self._parse(attributes["sharding"])
        elif name == "sdy.manual_computation":
            per_value = sdy.TensorShardingPerValueAttr(attributes["out_shardings"]).shardings
            for result, sharding in zip(op.results, per_value, strict=True):
                self._values[result] = self._parse(sharding)
        elif "sdy.sharding" in attributes:
            per_value = sdy.TensorShardingPerValueAttr(attributes["sdy.sharding"]).shardings
            for result, sharding in zip(op.results, per_value, strict=True):
                self._values[result] = self._parse(sharding)

    def _attribute_shardings(self, main: Any, key: str, n: int) -> list[_ValueSharding | None]:
        if key not in main.attributes:
            return [None] * n
        dicts = [ir.DictAttr(item) for item in ir.ArrayAttr(main.attributes[key])]
        return [self._parse(d["sdy.sharding"]) if "sdy.sharding" in d else None for d in dicts]

    def _parse(self, attribute: Any) -> _ValueSharding:
        if attribute not in self._shardings:
            self._shardings[attribute] = self._parse_sharding(sdy.TensorShardingAttr(attribute))
        return self._shardings[attribute]

    def _parse_sharding(self, sharding: Any) -> _ValueSharding:
        is_exact, axes, shards = True, [], []
        for dimension in sharding.dimension_shardings:
            refs = [sdy.AxisRefAttr(ref) for ref in sdy.DimensionShardingAttr(dimension).axes]
            factor = 1
            for ref in refs:
                sub_axis = ref.sub_axis_info
                is_exact = is_exact and sub_axis is None
                factor *= (
                    self.axis_sizes[ref.name]
                    if sub_axis is None
                    else sdy.SubAxisInfoAttr(sub_axis).size
                )
            axes.append(tuple(ref.name for ref in refs))
            shards.append(factor)
        return _ValueSharding(tuple(axes) if is_exact else None, tuple(shards))

    def _axis_list(self, attribute: Any) -> tuple[tuple[str, ...], int]:
        """Return the mesh axes of a collective, and the size of its groups."""
        if attribute not in self._axis_lists:
            axes, group = [], 1
            for name, _, size in _AXIS.findall(str(attribute)):
                axes.append(name)
                group *= int(size) if size else self.axis_sizes[name]
            self._axis_lists[attribute] = tuple(dict.fromkeys(axes)), group
        return self._axis_lists[attribute]

    def _sharding_of(self, value: Any) -> _ValueSharding:
        rank = len(self._type(value.type)[0])
        return self._values.get(value) or _ValueSharding(((),) * rank, (1,) * rank)

    def _axes_of(self, value: Any) -> DimAxes | None:
        return self._sharding_of(value).axes

    def _local_shape(self, value: Any) -> tuple[int, ...]:
        shape = self._type(value.type)[0]
        sharding = self._values.get(value)
        if sharding is None:
            return shape
        return tuple(-(-n // k) for n, k in zip(shape, sharding.shards, strict=True))

    def _local_bytes(self, value: Any) -> float:
        shape, _, item_bytes = self._type(value.type)
        sharding = self._values.get(value)
        shards = 1 if sharding is None else math.prod(sharding.shards)
        return math.prod(shape) * item_bytes / shards

    def _type(self, value_type: Any) -> tuple[tuple[int, ...], str, float]:
        """Return shape, dtype as JAX abbreviates it, and bytes of one element."""
        if value_type not in self._types:
            self._types[value_type] = parse_type(value_type)
        return self._types[value_type]
