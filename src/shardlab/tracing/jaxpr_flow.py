"""The data flow of a traced program, read from its jaxpr; calls are followed at each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from shardlab import _jax
from shardlab.collectives.program_flow import (
    ARITHMETIC,
    AXIS_INDEX,
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
        *("pad", "pcast", "pvary", "random_unwrap", "random_wrap", "reshape", "rev", "select_n"),
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
            outs = self.walk_jaxpr(params["jaxpr"], operands, True)
            kind = SHARD_MAP if _has_shards(params) else UNSHARDED_SHARD_MAP
            return [self._graph.add_node(kind, [out], in_body=in_body) for out in outs]
        if name == "scan":
            return self._add_scan(params, operands, in_body)
        if name == "while":
            return self._add_while(params, operands, in_body)
        if name == "cond":
            branches = [
                self.walk_jaxpr(branch, operands[1:], in_body) for branch in params["branches"]
            ]
            return [
                self._graph.add_node(VALUE, [operands[0], *outs])
                for outs in zip(*branches, strict=True)
            ]
        body = called_jaxpr(name, params)
        if body is not None and len(_jax.open_jaxpr(body)[0].invars) == len(operands):
            outs = self.walk_jaxpr(body, operands, in_body)
            return self._add_out_shardings(params, outs) if name in _JITS else outs
        return self._add_operation(eqn, operands, in_body)

    def _add_operation(self, eqn: Any, operands: list[int], in_body: bool) -> list[int]:
        name = str(eqn.primitive.name)
        inner = list(_jax.inner_jaxprs(eqn.params))
        merged = self._graph.add_node(_equation_kind(eqn), operands, name=name, in_body=in_body)
        # A primitive that is not known here: any value may depend on any of its operands.
        for body in inner if name not in COLLECTIVES else ():
            jaxpr, _ = _jax.open_jaxpr(body)
            outs = self.walk_jaxpr(body, [merged] * len(jaxpr.invars), in_body)
            merged = self._graph.add_node(VALUE, [merged, *outs])
        return [merged] * len(eqn.outvars)

    def _add_out_shardings(self, params: Any, outs: Sequence[int]) -> list[int]:
        """Return the results of a jit; with out_shardings they are placed."""
        shardings = params.get("out_shardings") or [None] * len(outs)
        return [
            self._graph.add_node(PLACEMENT, [out])
            if isinstance(sharding, jax.sharding.Sharding)
            else out
            for out, sharding in zip(outs, shardings, strict=True)
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


def _has_shards(params: Any) -> bool:
    """Return whether an operand or a result of a shard_map is sharded."""
    specs = (*params["in_specs"], *params["out_specs"])
    return any(entry is not None for spec in specs for entry in spec)


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
