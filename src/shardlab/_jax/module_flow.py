"""The data flow of an exported program, from its StableHLO; calls are followed at each call."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
from jax._src.interpreters import mlir  # make_ir_context, with all dialects loaded
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import sdy  # Shardy's attributes

from shardlab._jax.exported_program import (
    MAX_DEPTH,
    MAX_STEPS,
    ModuleFunctions,
    TooDeep,
    collective_name,
)
from shardlab.collectives.program_flow import (
    ARITHMETIC,
    AXIS_INDEX,
    FULL_OPERAND,
    MATMUL_OPERAND,
    MATRIX_PRODUCTS,
    PLACEMENT,
    SHARD_MAP,
    UNSHARDED_SHARD_MAP,
    VALUE,
    FlowGraph,
    ProgramFlow,
)

# These move elements, repeat them or convert them, and compute nothing.
_MOVEMENTS = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("bitcast_convert", "broadcast", "broadcast_in_dim", "concatenate", "constant", "convert"),
        *("create_token", "dynamic_slice", "dynamic_update_slice", "gather", "get_tuple_element"),
        *("iota", "optimization_barrier", "pad", "reshape", "reverse", "slice"),
        *("transpose", "tuple"),
    )
)
_TERMINATORS = ("func.return", "stablehlo.return", "sdy.return")
_DEVICE_NUMBERS = ("stablehlo.partition_id", "stablehlo.replica_id")
Environment = dict[Any, int]  # value of the module -> node


def read_module_flow(exported: jax.export.Exported) -> ProgramFlow:
    """Return what lies between the arguments and the results of an exported program."""
    with mlir.make_ir_context():
        functions = ModuleFunctions(exported.mlir_module(serialized=False))
        graph = FlowGraph()
        if functions.main is not None:
            walk = _FlowWalk(functions, graph)
            inputs = [graph.add_input() for _ in functions.main.regions[0].blocks[0].arguments]
            for node in walk.walk_function(functions.main, inputs, False, 0):
                graph.add_output(node)
        return graph.read_flow()


class _FlowWalk:
    """Adds the operations of a module to a graph."""

    def __init__(self, functions: ModuleFunctions, graph: FlowGraph) -> None:
        self._functions, self._graph = functions, graph
        self._steps = 0

    def walk_function(
        self, function: Any, arguments: Sequence[int], in_body: bool, depth: int
    ) -> list[int]:
        # A new environment: the same function may be called in a shard_map and outside.
        return self._walk_block(function.regions[0].blocks[0], arguments, {}, in_body, depth)

    def _walk_block(
        self,
        block: Any,
        arguments: Sequence[int],
        environment: Environment,
        in_body: bool,
        depth: int,
    ) -> list[int]:
        """Add the operations of a block, and return the nodes of what it returns."""
        environment.update(zip(block.arguments, arguments, strict=True))
        for op in block.operations:
            operation = op.operation
            self._steps += 1
            if self._steps > MAX_STEPS or depth > MAX_DEPTH:
                raise TooDeep("the program's functions call each other too often")
            operands = [environment[value] for value in operation.operands]
            if operation.name in _TERMINATORS:
                return operands
            results = self._add_operation(operation, operands, environment, in_body, depth)
            environment.update(zip(operation.results, results, strict=True))
        return []

    def _add_operation(
        self,
        op: Any,
        operands: Sequence[int],
        environment: Environment,
        in_body: bool,
        depth: int,
    ) -> list[int]:
        """Return the nodes of the results of an operation."""
        if op.name == "stablehlo.while":
            return self._add_loop(op, operands, environment, in_body, depth)
        if op.name in ("stablehlo.case", "stablehlo.if"):
            return self._add_branches(op, operands, environment, in_body, depth)
        if op.name == "sdy.manual_computation":
            return self._add_shard_map(op, operands, environment, in_body, depth)
        if op.name == "sdy.named_computation":
            block = op.regions[0].blocks[0]
            return self._walk_block(block, operands, environment, in_body, depth + 1)
        called = list(self._functions.called_by(op))
        if called:
            return self.walk_function(called[0], operands, in_body, depth + 1)
        if op.name == "stablehlo.optimization_barrier":
            return [self._graph.add_node(VALUE, [operand]) for operand in operands]
        return self._add_plain_operation(op, operands, in_body)

    def _add_plain_operation(self, op: Any, operands: Sequence[int], in_body: bool) -> list[int]:
        name = op.name.partition(".")[2]
        elements = max((_n_elements(result) for result in op.results), default=0)
        if name == "select":
            selected = self._graph.add_selection(
                operands[0], operands[1:], name=name, in_body=in_body, elements=elements
            )
            return [selected]
        if name in MATRIX_PRODUCTS:
            operands = [
                self._graph.add_node(MATMUL_OPERAND, [operand], elements=_n_elements(value))
                for operand, value in zip(operands, op.operands, strict=True)
            ]
        node = self._graph.add_node(
            _operation_kind(op), operands, name=name, in_body=in_body, elements=elements
        )
        return [node] * len(op.results)

    def _add_shard_map(
        self,
        op: Any,
        operands: Sequence[int],
        environment: Environment,
        in_body: bool,
        depth: int,
    ) -> list[int]:
        block = op.regions[0].blocks[0]
        inputs, results = (_are_sharded(op, key) for key in ("in_shardings", "out_shardings"))
        arguments = []
        for operand, is_sharded, value in zip(operands, inputs, block.arguments, strict=True):
            is_full = bool(_shape(value)) and not is_sharded
            arguments.append(
                self._graph.add_node(
                    FULL_OPERAND if is_full else VALUE,
                    [operand],
                    in_body=True,
                    elements=_n_elements(value),
                )
            )
        outs = self._walk_block(block, arguments, environment, True, depth + 1)
        kind = SHARD_MAP if any(inputs) or any(results) else UNSHARDED_SHARD_MAP
        return self._graph.add_shard_map(kind, outs, in_body=in_body)

    def _add_loop(
        self,
        loop: Any,
        operands: Sequence[int],
        environment: Environment,
        in_body: bool,
        depth: int,
    ) -> list[int]:
        carries = [self._graph.add_node(VALUE, [operand]) for operand in operands]
        condition, body = (
            self._walk_block(region.blocks[0], carries, environment, in_body, depth + 1)
            for region in loop.regions
        )
        for carry, result in zip(carries, body, strict=True):
            self._graph.connect(result, carry)
        # How often a loop runs is information, too.
        return [self._graph.add_node(VALUE, [carry, *condition]) for carry in carries]

    def _add_branches(
        self,
        op: Any,
        operands: Sequence[int],
        environment: Environment,
        in_body: bool,
        depth: int,
    ) -> list[int]:
        branches = [
            self._walk_block(region.blocks[0], (), environment, in_body, depth + 1)
            for region in op.regions
        ]
        return [
            self._graph.add_selection(operands[0], results, name="cond", in_body=in_body)
            for results in zip(*branches, strict=True)
        ]


def _are_sharded(shard_map: Any, key: str) -> list[bool]:
    """Return which operands or results of a shard_map are sharded."""
    return [
        any(
            sdy.DimensionShardingAttr(dimension).axes
            for dimension in sdy.TensorShardingAttr(sharding).dimension_shardings
        )
        for sharding in sdy.TensorShardingPerValueAttr(shard_map.attributes[key]).shardings
    ]


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a value; () if it is no array, for example a token."""
    if not isinstance(value.type, ir.RankedTensorType):
        return ()
    return tuple(value.type.shape)


def _n_elements(value: Any) -> int:
    return prod(_shape(value))


def _operation_kind(op: Any) -> str:
    collective = collective_name(op)
    if collective:
        return collective
    if op.name in _DEVICE_NUMBERS:
        return AXIS_INDEX
    if op.name == "sdy.sharding_constraint":
        return PLACEMENT
    return VALUE if op.name in _MOVEMENTS or op.name.startswith("sdy.") else ARITHMETIC
