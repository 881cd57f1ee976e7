"""The time of one collective in a switched network: NVLink domains in a fat tree, or DCN.

>>> one_node = Spans(in_node=8, n_nodes=1, sharing=1)
>>> round(switched_time("all_gather", 4_194_304, one_node, inside=4.5e11).seconds * 1e6)
65

n is the number of devices of a group in one node (over DCN: in one slice), m the number of nodes
that the group spans. Formulas: JAX scaling book, gpus.md; levels overlap, so the slowest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from shardlab.collectives.wire import REDUCTIONS
from shardlab.hardware.timing import Timing, gathered_bytes
from shardlab.sharding.mesh import MeshSizes


@dataclass(frozen=True)
class Spans:
    """How one group spans nodes: its devices per node, its nodes, and the groups per node."""

    in_node: int
    n_nodes: int
    sharing: int

    @property
    def size(self) -> int:
        return self.in_node * self.n_nodes


def switched_time(
    op: str,
    payload_bytes: int,
    spans: Spans,
    *,
    inside: float = 0.0,
    egress: float = 0.0,
    crossing: int | None = None,
) -> Timing:
    """Return the time of one call: the slower of the levels inside a node and between nodes.

    `crossing` is the number of devices of a node that send to another node in a ppermute.
    """
    # A group with one device per node uses only the network between nodes.
    levels = []
    if spans.n_nodes > 1 or spans.in_node == 1:
        levels.append(_time_between_nodes(op, payload_bytes, spans, egress, crossing))
    if spans.in_node > 1:
        levels.append(_time_within_node(op, payload_bytes, spans, inside))
    return max(levels, key=lambda level: level.seconds)


def _time_within_node(op: str, payload: int, spans: Spans, nvlink: float) -> Timing:
    n = spans.in_node
    if op in ("ppermute", "pbroadcast"):
        return Timing(payload / nvlink, "in a node: p / nvlink", "NVLink")
    if op == "all_to_all":
        seconds = payload * (n - 1) / spans.size / nvlink
        formula = "V (n-1)/n^2 / nvlink" if spans.n_nodes == 1 else "p (n-1)/X / nvlink"
        return Timing(seconds, f"in a node: {formula}", "NVLink")
    # An all-reduce is a reduce-scatter followed by an all-gather of the same bytes.
    times, twice = (2, "2 x ") if op in REDUCTIONS else (1, "")
    seconds = times * gathered_bytes(op, payload, spans.size) * (n - 1) / n / nvlink
    return Timing(seconds, f"in a node: {twice}V (n-1)/n / nvlink", "NVLink")


def _time_between_nodes(
    op: str, payload: int, spans: Spans, egress: float, crossing: int | None
) -> Timing:
    m, sharing = spans.n_nodes, spans.sharing
    if op in ("ppermute", "pbroadcast"):
        senders = sharing * spans.in_node if crossing is None else crossing * sharing
        formula = f"between nodes: {senders} p / node_egress"
        return Timing(senders * payload / egress, formula, "between nodes")
    # All groups that have devices in a node share its egress, and run at the same time.
    shared = f"{sharing} groups x " if sharing > 1 else ""
    if op == "all_to_all":
        seconds = sharing * spans.in_node * payload * (m - 1) / m / egress
        formula = f"between nodes: {shared}V (m-1)/m^2 / node_egress"
        return Timing(seconds, formula, "between nodes")
    times, twice = (2, "2 x ") if op in REDUCTIONS else (1, "")
    n_bytes = gathered_bytes(op, payload, spans.size)
    seconds = times * sharing * n_bytes * (m - 1) / m / egress
    formula = f"between nodes: {twice}{shared}V (m-1)/m / node_egress"
    return Timing(seconds, formula, "between nodes")


def dcn_time(op: str, payload_bytes: int, inside: int, n_slices: int, dcn: float) -> Timing:
    """Return the time over the data-center network; `inside` chips of each slice share the data."""
    if op in ("ppermute", "pbroadcast"):
        return Timing(payload_bytes / dcn, "DCN: p / dcn", "DCN")
    if op == "all_to_all":
        seconds = payload_bytes * (n_slices - 1) / n_slices / dcn
        return Timing(seconds, "DCN: p (m-1)/m / dcn", "DCN")
    times, twice = (2, "2 x ") if op in REDUCTIONS else (1, "")
    # After a reduce-scatter inside the slice each chip sends 1/inside of the array over DCN.
    n_bytes = gathered_bytes(op, payload_bytes, inside * n_slices)
    part = f"V/{inside}" if inside > 1 else "V"
    seconds = times * n_bytes / inside * (n_slices - 1) / n_slices / dcn
    return Timing(seconds, f"DCN: {twice}{part} (m-1)/m / dcn", "DCN")


def spans_of(
    mesh: MeshSizes, axes: Sequence[str], domain: int, group_size: int | None = None
) -> Spans:
    """Return how the groups over these mesh axes span nodes of `domain` devices in mesh order.

    >>> spans_of((("data", 4), ("model", 8)), ["data"], 8)
    Spans(in_node=1, n_nodes=4, sharing=8)

    If groups differ (the mesh is not divisible into domains), the group with most nodes counts.
    """
    return _compute_spans(tuple(mesh), tuple(axes), domain, group_size)


def usable_domain(domain: int, n_devices: int) -> int:
    """Return how many devices of each NVLink domain a job of `n_devices` gets.

    >>> usable_domain(72, 256), usable_domain(72, 144), usable_domain(8, 12)
    (64, 72, 8)

    Schedulers place a job in equal blocks, one per domain (Slurm's topology/block). Sizes of groups
    are powers of two, and groups of 64 in consecutive blocks of 72 would straddle two domains:
    NVIDIA's recipes for NVL72 ask for segments of 16 trays, 64 of the 72 GPUs.
    """
    if n_devices <= domain or n_devices % domain == 0:
        return domain
    return 1 << (domain.bit_length() - 1)


@lru_cache(maxsize=4096)  # a search repeats the same groups on many meshes
def _compute_spans(
    mesh: MeshSizes, axes: tuple[str, ...], domain: int, group_size: int | None
) -> Spans:
    domain = usable_domain(domain, prod(size for _, size in mesh))
    # Device ids of the group at the origin; all other groups are this one shifted.
    n_devices, members = 1, [0]
    for name, size in reversed(mesh):
        if name in axes:
            members = [n_devices * step + member for step in range(size) for member in members]
        n_devices *= size
    most_nodes = max(
        len({(first + member) // domain for member in members})
        for first in _group_starts(mesh, axes)
    )
    in_node = -(-len(members) // most_nodes)
    if group_size is not None and group_size < len(members):  # axis_index_groups
        in_node = min(in_node, group_size)
        most_nodes = -(-group_size // in_node)
    return Spans(in_node, most_nodes, max(1, min(domain, n_devices) // in_node))


def _group_starts(mesh: MeshSizes, axes: Sequence[str], max_groups: int = 64) -> list[int]:
    """Return the first device of each group, of at most `max_groups` groups."""
    # Groups differ only in how they align with nodes; 64 of them are enough of a sample.
    stride, firsts = 1, [0]
    for name, size in reversed(mesh):
        if name not in axes:
            firsts = [
                stride * step + first for step in range(min(size, max_groups)) for first in firsts
            ]
        stride *= size
    return firsts[:max_groups]


def max_crossing_senders(pairs: Sequence[tuple[int, int]], node_of: Callable[[int], int]) -> int:
    """Return the number of devices that send to another node, in the busiest node."""
    senders: dict[int, int] = {}
    for sender, receiver in pairs:
        if node_of(sender) != node_of(receiver):
            senders[node_of(sender)] = senders.get(node_of(sender), 0) + 1
    return max(senders.values(), default=0)
