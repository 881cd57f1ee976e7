"""How arguments of a program reach its results: through which constructs, and around which.

A `FlowGraph` has a node for each value or operation, and an edge from each to what is computed
from it. It is the same for a StableHLO module (`_jax/module_flow.py`) and for a jaxpr
(`tracing/jaxpr_flow.py`); what a problem requires is decided on it.

>>> graph = FlowGraph()
>>> x = graph.add_input()
>>> total = graph.add_node("psum", [x], in_body=True)
>>> for node in graph.add_shard_map("shard_map", [total]):
...     graph.add_output(node)
>>> graph.read_flow()  # doctest: +ELLIPSIS
ProgramFlow(constructs=('psum', 'shard_map'), ...)
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
# An operand of a shard_map that every device gets in full.
FULL_OPERAND = "full operand"
MATMUL_OPERAND = "operand of a matrix product"
AXIS_INDEX = "axis_index"
# These have no operand: they are sources of data, as the arguments are.
_SOURCES = (AXIS_INDEX,)
_NO_CONSTRUCTS = {VALUE, ARITHMETIC, PLACEMENT, FULL_OPERAND, MATMUL_OPERAND}
MATRIX_PRODUCTS = ("dot_general", "convolution", "conv_general_dilated", "ragged_dot")


@dataclass(frozen=True, kw_only=True)
class ProgramFlow:
    """What lies between the arguments and the results of a program.

    `constructs` are the collectives, shard_maps and axis indices that an argument reaches and that
    reach a result, `unused` those of which none does; `outside` are the operations that compute on
    such values outside of any shard_map. A program is placed if no argument reaches a result, or
    an operation that computes, around a sharding.

    `n_shard_maps` counts the shard_maps of such values, without those in the body of another;
    `mesh_axes` are the axis names of their meshes, which only a trace has. `has_full_operand`: one
    of them gets such an array in full. `outside_arrays` are the operations that compute an array of
    several elements outside of any shard_map, from arguments or from constants, and reach a result.
    `body_elements` is the size of the largest array in a body,
    `matmul_elements` that of the largest operand of a matrix product.
    """

    constructs: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    is_placed: bool = False
    n_shard_maps: int = 0
    mesh_axes: tuple[str, ...] = ()
    has_full_operand: bool = False
    outside_arrays: tuple[str, ...] = ()
    body_elements: int = 0
    matmul_elements: int = 0


@dataclass(frozen=True)
class _ShardMap:
    """A shard_map that is in the body of no other: its results, and the axes of its mesh."""

    results: tuple[int, ...]
    axis_names: tuple[str, ...]


class FlowGraph:
    """Values and operations of a program with their kinds, and what is computed from what."""

    def __init__(self) -> None:
        self._targets: list[list[int]] = []
        self._kinds: list[str] = []
        self._names: list[str] = []
        self._in_body: list[bool] = []
        self._elements: list[int] = []
        self._shard_maps: list[_ShardMap] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []

    def add_node(
        self,
        kind: str,
        sources: Iterable[int],
        *,
        name: str = "",
        in_body: bool = False,
        elements: int = 0,
    ) -> int:
        """Return a new node that is computed from others; `elements` is the size of its array."""
        node = len(self._kinds)
        self._targets.append([])
        self._kinds.append(kind)
        self._names.append(name)
        self._in_body.append(in_body)
        self._elements.append(elements)
        for source in sources:
            self.connect(source, node)
        return node

    def connect(self, source: int, target: int) -> None:
        self._targets[source].append(target)

    def add_shard_map(
        self,
        kind: str,
        results: Iterable[int],
        *,
        in_body: bool = False,
        axis_names: Iterable[str] = (),
    ) -> list[int]:
        """Return the nodes of the results of a shard_map; `in_body`: it is in another's body."""
        nodes = [self.add_node(kind, [result], in_body=in_body) for result in results]
        if not in_body:
            self._shard_maps.append(_ShardMap(tuple(nodes), tuple(axis_names)))
        return nodes

    def add_selection(
        self, selector: int, cases: Iterable[int], *, name: str, in_body: bool, elements: int = 0
    ) -> int:
        """Return the node of a value that is selected.

        Selecting computes, if an argument decides: `where(mask, x, 0)` is `mask * x`. With a
        selector that is known in advance it only moves elements, as padding and gathers do, which
        the lowering of JAX writes as selections.
        """
        decision = self.add_node(
            ARITHMETIC, [selector], name=name, in_body=in_body, elements=elements
        )
        return self.add_node(VALUE, [decision, *cases], in_body=in_body, elements=elements)

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
        must_be_placed = {
            *self._outputs,
            *(node for node in on_path if self._kinds[node] == ARITHMETIC),
        }
        path_set = set(on_path)
        used_maps = [item for item in self._shard_maps if path_set & set(item.results)]
        return ProgramFlow(
            constructs=tuple(sorted(constructs)),
            unused=tuple(sorted(set(self._kinds) - constructs - _NO_CONSTRUCTS)),
            outside=tuple(sorted(outside)),
            is_placed=not must_be_placed & unplaced,
            n_shard_maps=len(used_maps),
            mesh_axes=tuple(sorted({name for item in used_maps for name in item.axis_names})),
            has_full_operand=any(self._kinds[node] == FULL_OPERAND for node in on_path),
            outside_arrays=tuple(
                sorted(
                    {
                        self._names[node]
                        for node in backward
                        if self._kinds[node] == ARITHMETIC
                        and not self._in_body[node]
                        and self._elements[node] > 1
                    }
                )
            ),
            body_elements=self._max_elements(n for n in on_path if self._in_body[n]),
            matmul_elements=self._max_elements(
                node for node in on_path if self._kinds[node] == MATMUL_OPERAND
            ),
        )

    def _max_elements(self, nodes: Iterable[int]) -> int:
        return max((self._elements[node] for node in nodes), default=0)

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
