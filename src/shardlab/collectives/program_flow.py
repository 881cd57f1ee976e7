"""How arguments of a program reach its results: through which constructs, and around which.

A `FlowGraph` has a node for each value or operation, and an edge from each to what is computed
from it. It is the same for a StableHLO module (`_jax/module_flow.py`) and for a jaxpr
(`tracing/jaxpr_flow.py`); what a problem requires is decided on it.

>>> graph = FlowGraph()
>>> x = graph.add_input()
>>> total = graph.add_node("psum", [x], in_body=True)
>>> graph.add_output(graph.add_node("shard_map", [total]))
>>> graph.read_flow()
ProgramFlow(constructs=('psum', 'shard_map'), unused=(), outside=(), is_placed=False)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

VALUE = ""  # a node that only passes a value on: a reshape, a loop carry, an argument of a function
ARITHMETIC = "arithmetic"
PLACEMENT = "placement"
SHARD_MAP = "shard_map"
# It gets full arrays and returns full arrays: every device does the same.
UNSHARDED_SHARD_MAP = "unsharded shard_map"
AXIS_INDEX = "axis_index"
# These have no operand: they are sources of data, as the arguments are.
_SOURCES = (AXIS_INDEX,)
_NO_CONSTRUCTS = {VALUE, ARITHMETIC, PLACEMENT}
MATRIX_PRODUCTS = ("dot_general", "convolution", "conv_general_dilated", "ragged_dot")


@dataclass(frozen=True, kw_only=True)
class ProgramFlow:
    """What lies between the arguments and the results of a program.

    `constructs` are the collectives, shard_maps and axis indices that an argument reaches and that
    reach a result, `unused` those of which none does; `outside` are the operations that compute on
    such values outside of any shard_map. A program is placed if no argument reaches a result around
    a sharding.
    """

    constructs: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    is_placed: bool = False


class FlowGraph:
    """Values and operations of a program with their kinds, and what is computed from what."""

    def __init__(self) -> None:
        self._targets: list[list[int]] = []
        self._kinds: list[str] = []
        self._names: list[str] = []
        self._in_body: list[bool] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []

    def add_node(
        self, kind: str, sources: Iterable[int], *, name: str = "", in_body: bool = False
    ) -> int:
        """Return a new node that is computed from others."""
        node = len(self._kinds)
        self._targets.append([])
        self._kinds.append(kind)
        self._names.append(name)
        self._in_body.append(in_body)
        for source in sources:
            self.connect(source, node)
        return node

    def connect(self, source: int, target: int) -> None:
        self._targets[source].append(target)

    def add_input(self) -> int:
        node = self.add_node(VALUE, ())
        self._inputs.append(node)
        return node

    def add_output(self, node: int) -> None:
        self._outputs.append(node)

    def read_flow(self) -> ProgramFlow:
        """Return what lies between inputs and outputs."""
        every_node = range(len(self._kinds))
        # A program without array arguments computes its result from nothing: all of it counts.
        starts: Sequence[int] = self._inputs or every_node
        extra = [node for node in every_node if self._kinds[node] in _SOURCES]
        forward = self._reachable([*starts, *extra], self._targets)
        backward = self._reachable(self._outputs, self._reversed())
        on_path = [node for node in every_node if node in forward and node in backward]
        constructs = {self._kinds[node] for node in on_path} - _NO_CONSTRUCTS
        outside = {
            self._names[node]
            for node in on_path
            if self._kinds[node] == ARITHMETIC and not self._in_body[node]
        }
        placements = {node for node in every_node if self._kinds[node] == PLACEMENT}
        unplaced = self._reachable(
            [node for node in starts if node not in placements], self._targets, placements
        )
        return ProgramFlow(
            constructs=tuple(sorted(constructs)),
            unused=tuple(sorted(set(self._kinds) - constructs - _NO_CONSTRUCTS)),
            outside=tuple(sorted(outside)),
            is_placed=not any(node in unplaced for node in self._outputs),
        )

    def _reversed(self) -> list[list[int]]:
        sources: list[list[int]] = [[] for _ in self._kinds]
        for node, targets in enumerate(self._targets):
            for target in targets:
                sources[target].append(node)
        return sources

    def _reachable(
        self, starts: Iterable[int], edges: Sequence[Sequence[int]], around: Iterable[int] = ()
    ) -> set[int]:
        """Return the nodes that are reached without those of `around`."""
        blocked = set(around)
        reached: set[int] = set()
        pending = [node for node in starts if node not in blocked]
        while pending:
            node = pending.pop()
            if node not in reached:
                reached.add(node)
                pending += [target for target in edges[node] if target not in blocked]
        return reached
