"""Resharding: which collectives take one layout of an array to another, and what they send.

>>> before, after = (layout("8x16", spec, "d=2,m=4") for spec in ("d", "None,m"))
>>> for step in reshard(before, after):
...     print(step)
slice over 'm', dimension 1: free; P('d') -> P('d', 'm')
all_gather over 'd', dimension 0: each device sends 64 bytes; P('d', 'm') -> P(None, 'm')

`reshard_search` finds the sequence with the fewest bytes. It may split a mesh axis into sub-axes,
as XLA does; the layouts of such a step are on the split mesh (`sub_axes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from shardlab._text.units import bytes_text
from shardlab.errors import LayoutMismatch
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.reshard_search import Edge, ReshardProblem, find_cheapest_path
from shardlab.sharding.spec import Spec
from shardlab.sharding.sub_axes import (
    Assignment,
    SubAxes,
    merge_axes,
    parent_axis,
    split_axes,
    split_mesh,
)


@dataclass(frozen=True, kw_only=True)
class ReshardStep:
    """One collective over all devices, from layout `before` to layout `after`.

    `kind` is all_gather, all_to_all, collective_permute, or slice, which is local and free.
    `sent_bytes` is what one device sends on a ring, and `n_senders` devices send; in a permute, a
    device that already holds its new shard sends nothing. `dim` is the dimension whose sharding
    changes; an all_to_all moves mesh axes from `dim` to `to_dim`.
    """

    kind: str
    mesh_axes: tuple[str, ...]
    before: Layout
    after: Layout
    sent_bytes: int
    n_senders: int
    dim: int | None = None
    to_dim: int | None = None

    @property
    def hues(self) -> dict[str, int]:
        """The position in the palette of each mesh axis; sub-axes have that of their axis."""
        axes = dict.fromkeys(map(parent_axis, self.before.mesh.axis_names))
        positions = {name: position for position, name in enumerate(axes)}
        return {name: positions[parent_axis(name)] for name in self.before.mesh.axis_names}

    @property
    def group_size(self) -> int:
        """The number of devices that communicate with each other."""
        return prod(self.before.mesh.shape[name] for name in self.mesh_axes)

    @property
    def total_sent_bytes(self) -> int:
        """The bytes that all devices together send."""
        return self.sent_bytes * self.n_senders

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "kind": self.kind,
            "mesh_axes": list(self.mesh_axes),
            "dim": self.dim,
            "to_dim": self.to_dim,
            "group_size": self.group_size,
            "sent_bytes": self.sent_bytes,
            "n_senders": self.n_senders,
            "total_sent_bytes": self.total_sent_bytes,
            "before": str(self.before.spec),
            "after": str(self.after.spec),
        }

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.mesh_axes))
        dims = "" if self.dim is None else f", dimension {self.dim}"
        dims += "" if self.to_dim is None else f" to {self.to_dim}"
        cost = f"{self.senders_text()} {self.sent_bytes:,} bytes" if self.sent_bytes else "free"
        return f"{self.kind} over {names}{dims}: {cost}; {self.before.spec} -> {self.after.spec}"

    def senders_text(self) -> str:
        """Return who sends: `each device sends`, or `4 of 8 devices send`."""
        n_devices = self.before.n_devices
        if self.n_senders in (0, n_devices):
            return "each device sends"
        return f"{self.n_senders:,} of {n_devices:,} devices send"


def reshard(before: Layout, after: Layout) -> tuple[ReshardStep, ...]:
    """Return the cheapest sequence of collectives that takes `before` to `after`.

    >>> replicated, sharded = layout("8", "", "x=4"), layout("8", "x", "x=4")
    >>> [(step.kind, step.sent_bytes) for step in reshard(replicated, sharded)]
    [('slice', 0)]
    >>> [(step.kind, step.sent_bytes) for step in reshard(sharded, replicated)]
    [('all_gather', 24)]
    >>> reshard(sharded, sharded)
    ()

    Cheapest by the bytes that all devices send on rings of g devices: all_gather (g-1)/g of the
    gathered array, all_to_all (g-1)/g of the local shard, collective_permute the local shard if it
    moves, slice nothing; then by the bytes of one device, then by the number of steps. The XLA
    compiler may choose another sequence; tests/oracle compares: it never sends fewer bytes.
    """
    _check_same_array(before, after)
    start, goal = _layout_assignment(before), _layout_assignment(after)
    sub_axes = split_axes(before.mesh, start, goal)
    edges = find_cheapest_path(
        ReshardProblem(
            shape=before.shape,
            axis_sizes={name: size for factors in sub_axes.values() for name, size in factors},
            dtype=before.dtype,
            start=_split_assignment(start, sub_axes),
            goal=_split_assignment(goal, sub_axes),
        )
    )
    ends = _StepLayouts(before=before, after=after, sub_axes=sub_axes)
    assignments = [_split_assignment(start, sub_axes), *(edge.after for edge in edges)]
    return tuple(map(ends.make_step, edges, assignments))


@dataclass(frozen=True, kw_only=True)
class _StepLayouts:
    """Makes steps from edges: a mesh axis stays unsplit where a step does not need its sub-axes."""

    before: Layout
    after: Layout
    sub_axes: dict[str, SubAxes]

    def make_step(self, edge: Edge, start: Assignment) -> ReshardStep:
        # In a permute the order of the mesh axes has no meaning.
        mesh_axes = edge.mesh_axes
        if edge.kind == "collective_permute":
            order = [name for factors in self.sub_axes.values() for name, _ in factors]
            mesh_axes = tuple(sorted(mesh_axes, key=order.index))
        dims = (*start, *edge.after, mesh_axes)
        split = {}
        for axis, factors in self.sub_axes.items():
            merged = tuple(merge_axes(names, factors, axis) for names in dims)
            if len(factors) > 1 and None in merged:
                split[axis] = factors
            elif len(factors) > 1:
                dims = tuple(names for names in merged if names is not None)
        rank = len(start)
        return ReshardStep(
            kind=edge.kind,
            mesh_axes=dims[-1],
            before=self._layout(dims[:rank], split),
            after=self._layout(dims[rank:-1], split),
            sent_bytes=edge.sent_bytes,
            n_senders=edge.n_senders,
            dim=edge.dim,
            to_dim=edge.to_dim,
        )

    def _layout(self, assignment: Assignment, split: dict[str, SubAxes]) -> Layout:
        # The spec of an end may spell its assignment differently, such as with axes of size 1.
        for end in (self.before, self.after):
            if not split and _layout_assignment(end) == assignment:
                return end
        entries = list(assignment)
        while entries and not entries[-1]:
            entries.pop()
        mesh = split_mesh(self.before.mesh, split)
        return layout(self.before.shape, Spec(*entries), mesh, self.before.dtype)


def _split_assignment(assignment: Assignment, sub_axes: dict[str, SubAxes]) -> Assignment:
    return tuple(
        tuple(name for axis in names for name, _ in sub_axes[axis]) for names in assignment
    )


def _layout_assignment(end: Layout) -> Assignment:
    """Return the mesh axes of every dimension, without axes of size 1, which do not shard."""
    sizes = end.mesh.shape
    axes = [tuple(name for name in names if sizes[name] > 1) for names in end.spec.axes]
    return (*axes, *((),) * (len(end.shape) - len(axes)))


def _check_same_array(before: Layout, after: Layout) -> None:
    for field in ("shape", "dtype", "mesh"):
        first, second = getattr(before, field), getattr(after, field)
        if first != second:
            raise LayoutMismatch(
                f"The layouts have different {field}: {first} and {second}.",
                where=f"from {before.spec} to {after.spec}",
                fix=f"two layouts of one array on one mesh, with the same {field}.",
            )
    for end in (before, after):
        if end.spec.unreduced:
            raise LayoutMismatch(
                "Devices of an unreduced layout hold partial sums, not shards of the array.",
                where=f"from {before.spec} to {after.spec}",
                fix="reduce it first (psum or psum_scatter), then reshard the result.",
            )


# What one device sends on a ring of g devices.
_COST_RULES = {
    "all_gather": "(g-1)/g of the gathered shard",
    "all_to_all": "(g-1)/g of its shard",
    "collective_permute": "a full shard",
}


def reshard_text(before: Layout, after: Layout, steps: Sequence[ReshardStep]) -> str:
    """Return the steps as a numbered list, each with the rule behind its bytes.

    >>> columns, rows = layout("8x16", "None,model", "model=4"), layout("8x16", "model", "model=4")
    >>> print(reshard_text(columns, rows, reshard(columns, rows)))
    From P(None, 'model') to P('model')
      1. all_to_all over model: P(None, 'model') -> P('model')
         each device sends 96 bytes: (g-1)/g of its shard, on a ring of g=4
    """
    return "\n".join(_reshard_lines(before, after, steps))


def _reshard_lines(before: Layout, after: Layout, steps: Sequence[ReshardStep]) -> Iterator[str]:
    yield f"From {before.spec} to {after.spec}"
    if not steps:
        yield "  no communication: each device already holds its shard"
    for number, step in enumerate(steps, start=1):
        names = ", ".join(step.mesh_axes)
        yield f"  {number}. {step.kind} over {names}: {step.before.spec} -> {step.after.spec}"
        yield f"     {_cost_text(step)}"
    if len(steps) > 1:
        yield f"  total: {sent_text(steps)}"
    split = {name for step in steps for name in step.mesh_axes if parent_axis(name) != name}
    if split:
        sub_axis = min(split)
        axis = parent_axis(sub_axis)
        yield f"  {sub_axis} is a sub-axis: a factor of mesh axis {axis!r}, as XLA writes it"


def sent_text(steps: Sequence[ReshardStep]) -> str:
    """Return what a sequence of steps sends, for one device and for all devices together."""
    total = sum(step.total_sent_bytes for step in steps)
    per_device = sum(step.sent_bytes for step in steps)
    is_uneven = per_device * steps[0].before.n_devices != total
    most = "at most " if is_uneven else ""
    return f"each device sends {most}{bytes_text(per_device)}, all together {bytes_text(total)}"


def _cost_text(step: ReshardStep) -> str:
    if step.kind == "slice":
        return "free: each device keeps a slice of its shard"
    rule = f"{_COST_RULES[step.kind]}, on a ring of g={step.group_size}"
    if step.kind == "collective_permute":
        rule = f"{_COST_RULES[step.kind]}, to one other device"
    return f"{step.senders_text()} {bytes_text(step.sent_bytes)}: {rule}"
