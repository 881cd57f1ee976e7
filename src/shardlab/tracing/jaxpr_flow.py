"""The data flow of a traced program, read from its jaxpr; calls are followed at each call."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax

from shardlab import _jax
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
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import COLLECTIVES
from shardlab.tracing.collective_calls import operation_name

# These move elements, repeat them or convert them, and compute nothing.
_MOVEMENTS = frozenset(
    (
        *(
            "bitcast_convert_type",
            "broadcast_in_dim",
            "concatenate",
            "convert_element_type",
            "copy",
        ),
        *("copy_p", "debug_callback", "debug_print", "device_put", "dynamic_slice"),
        *("dynamic_update_slice", "expand_dims", "gather", "iota", "name", "optimization_barrier"),
        *("pad", "pcast", "pvary", "random_unwrap", "random_wrap", "reshape", "rev"),
        *("slice", "split", "squeeze", "stop_gradient", "transpose"),
    )
)
_PLACEMENTS = ("sharding_constraint", "reshard", "mesh_cast")
_JITS = ("jit", "pjit")


def read_jaxpr_flow(closed_jaxpr: Any) -> ProgramFlow:
    """Return what lies between the arguments and the results of a traced program."""
    jaxpr, _ = _jax.open_jaxpr(closed_jaxpr)
    graph = FlowGraph()
    walk = _FlowWalk(graph)
    inputs = [graph.add_input() for _ in jaxpr.invars]
    for node in walk.walk_jaxpr(jaxpr, inputs, False):
        graph.add_output(node)
    return graph.read_flow()


class _FlowWalk:
    """Adds the equations of a jaxpr to a graph."""

    def __init__(self, graph: FlowGraph) -> None:
        self._graph = graph

    def walk_jaxpr(self, body: Any, arguments: Sequence[int], in_body: bool) -> list[int]:
        """Add all equations, and return the nodes of the results."""
        jaxpr, _ = _jax.open_jaxpr(body)
        nodes: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        nodes.update((const, self._graph.add_node(VALUE, ())) for const in jaxpr.constvars)

        def node_of(atom: Any) -> int:
            is_literal = isinstance(atom, _jax.Literal)
            return self._graph.add_node(VALUE, ()) if is_literal else nodes[atom]

        for eqn in jaxpr.eqns:
            operands = [node_of(atom) for atom in eqn.invars]
            nodes.update(zip(eqn.outvars, self._add_equation(eqn, operands, in_body), strict=True))
        return [node_of(atom) for atom in jaxpr.outvars]

    def _add_equation(self, eqn: Any, operands: list[int], in_body: bool) -> list[int]:
        name, params = str(eqn.primitive.name), eqn.params
        if name == "shard_map":
            return self._add_shard_map(params, operands, in_body)
        if name == "scan":
            return self._add_scan(params, operands, in_body)
        if name == "while":
            return self._add_while(params, operands, in_body)
        if name == "cond":
            branches = [
                self.walk_jaxpr(branch, operands[1:], in_body) for branch in params["branches"]
            ]
            return [
                self._graph.add_selection(operands[0], outs, name=name, in_body=in_body)
                for outs in zip(*branches, strict=True)
            ]
        body = called_jaxpr(name, params)
        if body is not None and len(_jax.open_jaxpr(body)[0].invars) == len(operands):
            if name not in _JITS:
                return self.walk_jaxpr(body, operands, in_body)
            placed = self._add_placements(params.get("in_shardings"), operands)
            outs = self.walk_jaxpr(body, placed, in_body)
            return self._add_placements(params.get("out_shardings"), outs)
        return self._add_operation(eqn, operands, in_body)

    def _add_operation(self, eqn: Any, operands: list[int], in_body: bool) -> list[int]:
        name = str(eqn.primitive.name)
        elements = max((_n_elements(var) for var in eqn.outvars), default=0)
        if name == "select_n":
            selected = self._graph.add_selection(
                operands[0], operands[1:], name=name, in_body=in_body, elements=elements
            )
            return [selected]
        if name in MATRIX_PRODUCTS:
            operands = [
                self._graph.add_node(MATMUL_OPERAND, [operand], elements=_n_elements(atom))
                for operand, atom in zip(operands, eqn.invars, strict=True)
            ]
        inner = list(_jax.inner_jaxprs(eqn.params))
        merged = self._graph.add_node(
            _equation_kind(eqn), operands, name=name, in_body=in_body, elements=elements
        )
        # A primitive that is not known here: any value may depend on any of its operands.
        for body in inner if name not in COLLECTIVES else ():
            jaxpr, _ = _jax.open_jaxpr(body)
            outs = self.walk_jaxpr(body, [merged] * len(jaxpr.invars), in_body)
            merged = self._graph.add_node(VALUE, [merged, *outs])
        return [merged] * len(eqn.outvars)

    def _add_shard_map(self, params: Any, operands: Sequence[int], in_body: bool) -> list[int]:
        body, _ = _jax.open_jaxpr(params["jaxpr"])
        arguments = []
        for operand, spec, var in zip(operands, params["in_specs"], body.invars, strict=True):
            is_full = bool(var.aval.shape) and not _is_sharded(spec)
            kind = FULL_OPERAND if is_full else VALUE
            arguments.append(
                self._graph.add_node(kind, [operand], in_body=True, elements=_n_elements(var))
            )
        outs = self.walk_jaxpr(params["jaxpr"], arguments, True)
        has_shards = any(map(_is_sharded, (*params["in_specs"], *params["out_specs"])))
        kind = SHARD_MAP if has_shards else UNSHARDED_SHARD_MAP
        names = params["mesh"].axis_names
        return self._graph.add_shard_map(kind, outs, in_body=in_body, axis_names=names)

    def _add_placements(self, shardings: Any, nodes: Sequence[int]) -> list[int]:
        """Return the operands or the results of a jit; those with shardings are placed."""
        return [
            self._graph.add_node(PLACEMENT, [node])
            if isinstance(sharding, jax.sharding.Sharding)
            else node
            for node, sharding in zip(nodes, shardings or [None] * len(nodes), strict=True)
        ]

    def _add_scan(self, params: Any, operands: list[int], in_body: bool) -> list[int]:
        n_consts, n_carry = _jax.scan_operand_counts(params)
        carries = [
            self._graph.add_node(VALUE, [operand])
            for operand in operands[n_consts : n_consts + n_carry]
        ]
        arguments = [*operands[:n_consts], *carries, *operands[n_consts + n_carry :]]
        outs = self.walk_jaxpr(params["jaxpr"], arguments, in_body)
        for carry, result in zip(carries, outs, strict=False):
            self._graph.connect(result, carry)
        return [*carries, *outs[n_carry:]]

    def _add_while(self, params: Any, operands: list[int], in_body: bool) -> list[int]:
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        consts = operands[: n_cond + n_body]
        carries = [
            self._graph.add_node(VALUE, [operand]) for operand in operands[n_cond + n_body :]
        ]
        condition = self.walk_jaxpr(params["cond_jaxpr"], [*consts[:n_cond], *carries], in_body)
        outs = self.walk_jaxpr(params["body_jaxpr"], [*consts[n_cond:], *carries], in_body)
        for carry, result in zip(carries, outs, strict=True):
            self._graph.connect(result, carry)
        return [self._graph.add_node(VALUE, [carry, *condition]) for carry in carries]


def _is_sharded(spec: Any) -> bool:
    return any(entry is not None for entry in spec)


def _n_elements(atom: Any) -> int:
    return prod(getattr(atom.aval, "shape", ()))


def _equation_kind(eqn: Any) -> str:
    name = str(eqn.primitive.name)
    if name in COLLECTIVES:
        return operation_name(name)
    if name == "axis_index":
        return AXIS_INDEX
    if name in _PLACEMENTS:
        return PLACEMENT
    if name == "device_put" and any(d is not None for d in eqn.params.get("devices", ())):
        return PLACEMENT
    return VALUE if name in _MOVEMENTS else ARITHMETIC
