"""The constants of nccl.toml: what NCCL's model assumes, and what nccl-tests measured beside it."""

from __future__ import annotations

import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log2
from typing import Any

PROTOCOLS = ("LL", "LL128", "Simple")
LL, LL128, SIMPLE = range(3)
ByProtocol = tuple[float, float, float]
ByNodes = tuple[float, float, float]  # one node, two, four and more
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class StepLatency:
    """Microseconds of one call, of a step over NVLink, and of a step between nodes."""

    base: ByProtocol
    nvlink: ByProtocol
    net: ByProtocol


@dataclass(frozen=True, kw_only=True)
class ModelShares:
    """Shares of a bandwidth in NCCL's model, and the latency factor of long all-reduces."""

    ring_ll: float
    ring_ll128: float
    tree: float
    tree_pattern: float
    tree_ll: float
    tree_ll128: float
    ring_plateau: float
    nvlink_used: float
    net_used: float
    tree_reached_ll: tuple[float, ...]
    tree_reached_ll128: tuple[float, ...]
    tree_reached_simple: tuple[float, ...]

    @property
    def tree_reached(self) -> tuple[Points, Points, Points]:
        """The share of its bandwidth that a tree reaches, by protocol and message size."""
        return (
            _powers_of_two(self.tree_reached_ll),
            _powers_of_two(self.tree_reached_ll128),
            _powers_of_two(self.tree_reached_simple),
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Shares of the bandwidths of the model that nccl-tests measured; latencies in microseconds."""

    ring_gather: Points
    ring_all_reduce: Points
    nvls: float
    nvls_launch: float
    nvls_tree_net: float
    nvls_tree_nodes: Points
    ll_in_node: Points
    ring_between_nodes: Points
    ring_all_reduce_between_nodes: Points
    nvls_tree: Points
    all_to_all_nvlink: float
    all_to_all_latency: Points
    all_to_all_net_loss: float
    all_to_all_net: Points


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The constants of one generation of GPUs; bandwidths in GB/s per channel, `max_ll` of all."""

    channels: int
    nvls_efficiency: float
    nvls_bandwidth: float
    net_overhead: float
    max_ll: ByNodes
    max_ring_ll128: ByNodes
    max_tree_ll128: ByNodes
    max_tree: ByNodes
    max_nvls_tree: ByNodes


@dataclass(frozen=True, kw_only=True)
class NcclConstants:
    """All of nccl.toml."""

    sources: Mapping[str, str]
    ring: StepLatency
    tree: StepLatency
    nvls_latency: float
    model: ModelShares
    tree_reached: tuple[Points, Points, Points]
    measured: Measured
    architectures: Mapping[str, Architecture]


@cache
def nccl_constants() -> NcclConstants:
    """Return the constants; the file is read once."""
    data = tomllib.loads(files("shardlab.hardware").joinpath("nccl.toml").read_text("utf-8"))
    latency = data["latency"]
    model = ModelShares(**_tuples(data["model"]))
    return NcclConstants(
        sources=data["sources"],
        ring=StepLatency(**_tuples(latency["ring"])),
        tree=StepLatency(**_tuples(latency["tree"])),
        nvls_latency=latency["nvls"]["nvlink"],
        model=model,
        tree_reached=model.tree_reached,
        measured=Measured(**_tuples(data["measured"])),
        architectures={
            name: Architecture(**_tuples(table)) for name, table in data["architectures"].items()
        },
    )


def architecture_names() -> tuple[str, ...]:
    """Return the names that a chip's `nccl` can have.

    >>> architecture_names()
    ('ampere', 'hopper', 'blackwell')
    """
    return tuple(nccl_constants().architectures)


def interpolate(points: Points, x: float) -> float:
    """Return the value at x, by a power law between points; outside of them that of the nearest.

    >>> round(interpolate(((2, 10.0), (8, 40.0)), 4)), interpolate(((2, 10.0), (8, 40.0)), 1)
    (20, 10.0)
    """
    # A share that at most doubles where x doubles then never makes a longer message faster.
    upper = bisect_right(points, (x, float("inf")))
    if upper == 0 or upper == len(points):
        return points[max(0, upper - 1)][1]
    (x0, y0), (x1, y1) = points[upper - 1], points[upper]
    return float(y0 * (x / x0) ** (log2(y1 / y0) / log2(x1 / x0)))


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a TOML table with its lists as tuples."""
    return {
        key: _tuple(value) if isinstance(value, list) else value for key, value in table.items()
    }


def _tuple(values: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuple(value) if isinstance(value, list) else value for value in values)


def _powers_of_two(shares: tuple[float, ...]) -> Points:
    return tuple((64.0 * 2**power, share) for power, share in enumerate(shares))
