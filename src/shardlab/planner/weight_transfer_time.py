"""The time of a transfer between two meshes on named hardware: the slowest link decides.

>>> from shardlab.hardware.chips import parse_hardware
>>> v5p = parse_hardware("v5p")
>>> estimate_transfer_time({(0, 1): 10**9}, {0: 10**9}, {1: 10**9}, v5p, True).formula
'busiest device / dcn_bandwidth'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.hardware.chips import Figure, Hardware
from shardlab.hardware.mesh_placement import even_sides


@dataclass(frozen=True, kw_only=True)
class TransferTime:
    """Seconds at peak bandwidth, a lower bound, with the formula and figures behind them."""

    hardware: str
    seconds: float
    formula: str
    figures: tuple[Figure, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "hardware": self.hardware,
            "seconds": self.seconds,
            "formula": self.formula,
            "figures": {f.name: {"value": f.value, "source": f.source} for f in self.figures},
        }


def estimate_transfer_time(
    traffic: dict[tuple[int, int], int],
    sent: dict[int, int],
    received: dict[int, int],
    hardware: Hardware,
    is_separate: bool,
) -> TransferTime:
    """Return the time at peak bandwidth; protocol overhead and stragglers come on top.

    Separate meshes on TPU are separate slices, joined by the data-center network. On GPU, devices
    fill nodes in the order of their ids.
    """
    if hardware.network == "switch":
        candidates = _switched_candidates(traffic, hardware)
    elif is_separate:
        candidates = [_busiest(sent, received, hardware, "dcn_bandwidth", 1)]
    else:
        candidates = _torus_candidates(traffic, sent, received, hardware)
    seconds, formula, figure = max(candidates, key=lambda candidate: candidate[0])
    return TransferTime(hardware=hardware.name, seconds=seconds, formula=formula, figures=(figure,))


Candidate = tuple[float, str, Figure]


def _busiest(
    sent: dict[int, int], received: dict[int, int], hardware: Hardware, name: str, n_links: int
) -> Candidate:
    figure = hardware.figure(name, needed_for="needed for a transfer between meshes")
    n_bytes = max((*sent.values(), *received.values()), default=0)
    links = f"{n_links} {name}" if n_links > 1 else name
    return n_bytes / (n_links * figure.value), f"busiest device / {links}", figure


def _torus_candidates(
    traffic: dict[tuple[int, int], int],
    sent: dict[int, int],
    received: dict[int, int],
    hardware: Hardware,
) -> list[Candidate]:
    n_links = 2 * hardware.torus_axes  # one in each direction
    figure = hardware.figure("link_bandwidth", needed_for="needed for a transfer between meshes")
    n_devices = 1 + max((device for pair in traffic for device in pair), default=0)
    # Far pairs use many links: on average a quarter of a ring, or a third of a line, per side.
    hops = sum(
        side / (4 if hardware.makes_ring(side, n_devices) else 3)
        for side in even_sides(n_devices, hardware.torus_axes)
        if side > 1
    )
    shared = sum(traffic.values()) * hops / (n_devices * n_links * figure.value)
    formula = f"all bytes x {hops:.1f} hops / ({n_devices:,} devices x {n_links} link_bandwidth)"
    return [
        _busiest(sent, received, hardware, "link_bandwidth", n_links),
        (shared, formula, figure),
    ]


def _switched_candidates(
    traffic: dict[tuple[int, int], int], hardware: Hardware
) -> list[Candidate]:
    inside: dict[tuple[str, int], int] = {}
    between: dict[tuple[str, int], int] = {}
    for (sender, receiver), n_bytes in traffic.items():
        nodes = sender // hardware.domain, receiver // hardware.domain
        ends = (sender, receiver) if nodes[0] == nodes[1] else nodes
        totals = inside if nodes[0] == nodes[1] else between
        for direction, end in zip(("out", "in"), ends, strict=True):
            totals[direction, end] = totals.get((direction, end), 0) + n_bytes
    candidates: list[Candidate] = []
    for totals, name, busiest in (
        (inside, "nvlink_bandwidth", "busiest device inside its node"),
        (between, "node_egress", "busiest node"),
    ):
        if totals or (name == "nvlink_bandwidth" and not between):
            figure = hardware.figure(name, needed_for="needed for a transfer between meshes")
            seconds = max(totals.values(), default=0) / figure.value
            candidates.append((seconds, f"{busiest} / {name}", figure))
    return candidates
