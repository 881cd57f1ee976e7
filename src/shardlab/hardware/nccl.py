"""The time of one collective of NCCL, by message size: the fastest of its algorithms and protocols.

>>> network = NcclNetwork(name="hopper", nvlink=450e9, adapter=50e9, node=8)
>>> for n_bytes in (2**20, 2**30):
...     timing = nccl_time("psum", n_bytes, Spans(8, 4, 1), network)
...     print(f"{timing.seconds * 1e6:.0f} us, {timing.formula}")
83 us, NCCL tree, LL128: 66 us + V / 59.2 GB/s
6293 us, NCCL NVLS and tree: 81 us + V / 173 GB/s

NCCL chooses by its own model, latency + V / bandwidth for each algorithm (ring, tree, NVLS) and
protocol (LL, LL128, Simple): `nccl.toml` has its constants, and the shares of these bandwidths that
nccl-tests measured. V is the gathered or unreduced array, p the operand on one device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import log2

from shardlab.collectives.wire import REDUCTIONS
from shardlab.hardware.nccl_constants import (
    LL,
    PROTOCOLS,
    SIMPLE,
    Architecture,
    interpolate,
    nccl_constants,
)
from shardlab.hardware.switched import Spans
from shardlab.hardware.timing import Timing, gathered_bytes

_GB, _US = 1e9, 1e-6
_RING_HOP = 3.4e-6  # hop_latency in chips.toml: one step of a ring over NVLink, Simple
_MIN_NVLS, _MIN_NVLS_TREE = 8, 4  # GPUs of a group in one node
_NVLS_CHANNELS = 16  # one of them is not used for data
_MAX_CHANNELS = 32
_PLATEAU_BYTES = 64  # per channel and GPU


@dataclass(frozen=True, kw_only=True)
class NcclNetwork:
    """The network of a group of GPUs: its architecture, and bandwidths in bytes/s per GPU.

    `adapter` is one GPU's share of the bandwidth out of its node, `node` the number of GPUs of a
    node. `hop` scales all latencies of steps; it is the step of a ring over NVLink.
    """

    name: str
    nvlink: float
    adapter: float
    node: int
    hop: float = _RING_HOP

    @cached_property
    def chip(self) -> Architecture:
        return nccl_constants().architectures[self.name]

    @property
    def latency_scale(self) -> float:
        return self.hop / _RING_HOP

    @property
    def nvlink_gb(self) -> float:
        """What NCCL uses of NVLink, in GB/s."""
        return self.nvlink * nccl_constants().model.nvlink_used / _GB

    @property
    def nvls_gb(self) -> float:
        """What a GPU sends into the NVLink switch with NVLS, in GB/s; 0 without it."""
        data_channels = (_NVLS_CHANNELS - 1) / _NVLS_CHANNELS
        share = self.chip.nvls_bandwidth * self.chip.nvls_efficiency * data_channels
        return self.nvlink * share / _GB if share else 0.0

    def adapters_gb(self, n_gpus: int) -> float:
        """What NCCL uses of the adapters of some GPUs of one node, in GB/s."""
        return self.adapter * n_gpus * nccl_constants().model.net_used / _GB

    def n_channels(self, spans: Spans) -> int:
        """Return the channels: one for each link in a node, one or two for each adapter."""
        if spans.n_nodes == 1:
            return self.chip.channels
        if spans.in_node > 8:
            return min(_MAX_CHANNELS, spans.in_node)
        return min(8, 2 * spans.in_node)


@dataclass(frozen=True)
class _Candidate:
    """One algorithm and protocol: microseconds of latency, and V / time in GB/s."""

    label: str
    latency: float
    bandwidth: float

    def seconds(self, n_bytes: int) -> float:
        return self.latency * _US + n_bytes / (self.bandwidth * _GB)


def nccl_time(
    op: str, payload_bytes: int, spans: Spans, network: NcclNetwork, crossing: int | None = None
) -> Timing:
    """Return the time of one call; `crossing` as in `switched_time`."""
    if op in ("ppermute", "pbroadcast"):
        return _time_send(payload_bytes, spans, network, crossing)
    if op == "all_to_all":
        return _time_all_to_all(payload_bytes, spans, network)
    n_bytes = gathered_bytes(op, payload_bytes, spans.size)
    candidates = _candidates(n_bytes, spans, network, op in REDUCTIONS)
    best = min(candidates, key=lambda candidate: candidate.seconds(n_bytes))
    formula = f"NCCL {best.label}: {best.latency:.0f} us + V / {best.bandwidth:.3g} GB/s"
    return Timing(best.seconds(n_bytes), formula, _network_name(spans))


def _candidates(
    n_bytes: int, spans: Spans, network: NcclNetwork, is_all_reduce: bool
) -> Iterator[_Candidate]:
    yield from _ring(n_bytes, spans, network, is_all_reduce)
    if spans.n_nodes == 1:
        yield from _nvls(spans, network, is_all_reduce)
    elif is_all_reduce:
        yield from _tree(n_bytes, spans, network)
        yield from _nvls_tree(n_bytes, spans, network)


def _ring(
    n_bytes: int, spans: Spans, network: NcclNetwork, is_all_reduce: bool
) -> Iterator[_Candidate]:
    constants, chip = nccl_constants(), network.chip
    model, n, m = constants.model, spans.size, spans.n_nodes
    times = 2 if is_all_reduce else 1
    n_steps, n_net_steps = times * (n - 1), times * (m - 1)
    bus = _ring_bandwidth(spans, network, is_all_reduce)
    reached = _ring_reached(n_bytes, spans, network, is_all_reduce)
    bucket, channels = _node_bucket(m), network.n_channels(spans)
    limits = (
        min(chip.max_ll[bucket], bus * model.ring_ll),
        min(bus * model.ring_ll128, channels * chip.max_ring_ll128[bucket]),
        bus,
    )
    # A group with one GPU in each node waits for the network in every step, as a tree does.
    net = (constants.tree if spans.in_node == 1 else constants.ring).net
    for protocol, limit in enumerate(limits):
        overhead = chip.net_overhead * (3 if protocol == SIMPLE else 1) if m > 1 else 0.0
        step = max(constants.ring.nvlink[protocol], overhead)
        steps = (n_steps - n_net_steps) * step + n_net_steps * net[protocol]
        latency = constants.ring.base[protocol] + steps * network.latency_scale
        is_long = n_bytes / (channels * n) >= _PLATEAU_BYTES
        if is_all_reduce and protocol == SIMPLE and m > 1 and is_long:
            latency *= model.ring_plateau
        if m == 1 and protocol == LL:
            limit *= interpolate(constants.measured.ll_in_node, n)
        yield _Candidate(f"ring, {PROTOCOLS[protocol]}", latency, limit * n / n_steps * reached)


def _ring_bandwidth(spans: Spans, network: NcclNetwork, is_all_reduce: bool) -> float:
    """Return the bandwidth of a ring in GB/s, as each GPU sends and receives it."""
    if spans.n_nodes == 1:
        measured = nccl_constants().measured
        shares = measured.ring_all_reduce if is_all_reduce else measured.ring_gather
        return network.nvlink_gb * interpolate(shares, spans.in_node)
    # A node has one ring for each adapter, so the adapters of all GPUs of a group add up; each ring
    # enters one GPU through its adapter and all others over NVLink.
    adapters = network.adapters_gb(spans.in_node)
    if spans.in_node == 1:
        return adapters
    return min(adapters, network.nvlink_gb * spans.in_node / (spans.in_node - 1))


def _ring_reached(n_bytes: int, spans: Spans, network: NcclNetwork, is_all_reduce: bool) -> float:
    """Return the share of its bandwidth that a ring between nodes reaches with this message."""
    if spans.n_nodes == 1:
        return 1.0
    measured, n_bytes_per_gpu = nccl_constants().measured, n_bytes / spans.size
    reached = 1.0
    if spans.in_node == network.node > 1:
        reached = interpolate(measured.ring_between_nodes, n_bytes_per_gpu)
    if is_all_reduce:
        # More nodes need longer messages to fill the ring.
        depth = 1 + 0.2 * max(0, _log2(spans.n_nodes) - 2)
        share = interpolate(measured.ring_all_reduce_between_nodes, n_bytes_per_gpu)
        reached = min(reached, float(share**depth))
    return reached


def _tree(n_bytes: int, spans: Spans, network: NcclNetwork) -> Iterator[_Candidate]:
    constants, chip = nccl_constants(), network.chip
    model, tree = constants.model, constants.tree
    m, bucket = spans.n_nodes, _node_bucket(spans.n_nodes)
    channels = network.n_channels(spans)
    # Between two nodes each sends one half of the tree.
    adapters = network.adapters_gb(spans.in_node) * (2 if m == 2 else 1)
    bus = min(min(network.nvlink_gb, adapters) * model.tree, channels * chip.max_tree[bucket])
    limits = (
        min(bus * model.tree_ll, chip.max_ll[bucket]),
        min(bus * model.tree_ll128, channels * chip.max_tree_ll128[bucket]),
        bus,
    )
    for protocol, limit in enumerate(limits):
        # Up and down: a chain of the GPUs of a node, then one level for each doubling of nodes.
        steps = (spans.in_node - 1) * tree.nvlink[protocol] + _log2(m) * tree.net[protocol]
        latency = tree.base[protocol] + 2 * steps * network.latency_scale
        reached = interpolate(constants.tree_reached[protocol], n_bytes)
        bandwidth = limit * model.tree_pattern * reached / 2
        yield _Candidate(f"tree, {PROTOCOLS[protocol]}", latency, bandwidth)


def _nvls(spans: Spans, network: NcclNetwork, is_all_reduce: bool) -> Iterator[_Candidate]:
    """Yield NVLS: the NVLink switch reduces and copies."""
    n, bandwidth, measured = spans.in_node, network.nvls_gb, nccl_constants().measured
    if not bandwidth or n < _MIN_NVLS:
        return
    latency = nccl_constants().nvls_latency * network.latency_scale + measured.nvls_launch
    # An all-reduce sends its operand and receives the result at the same time.
    rate = bandwidth * (n / (n - 1) if is_all_reduce else (n - 1) / n)
    yield _Candidate("NVLS", latency, rate * measured.nvls)


def _nvls_tree(n_bytes: int, spans: Spans, network: NcclNetwork) -> Iterator[_Candidate]:
    """Yield NVLS inside each node with a tree between nodes."""
    if not network.nvls_gb or spans.in_node < _MIN_NVLS_TREE:
        return
    constants, n, m = nccl_constants(), spans.size, spans.n_nodes
    measured = constants.measured
    adapters = network.adapters_gb(spans.in_node) * (2 if m == 2 else 1)
    per_channel = network.chip.max_nvls_tree[_node_bucket(m)]
    limit = min(2 * network.nvls_gb, adapters, min(_MAX_CHANNELS, spans.in_node) * per_channel)
    reached = interpolate(measured.nvls_tree, n_bytes / n)
    reached *= interpolate(measured.nvls_tree_nodes, m)
    steps = constants.nvls_latency + 2 * _log2(m) * measured.nvls_tree_net
    bandwidth = limit * n / (2 * (n - 1)) * reached
    yield _Candidate("NVLS and tree", steps * network.latency_scale, bandwidth)


def _time_all_to_all(payload: int, spans: Spans, network: NcclNetwork) -> Timing:
    """Time an all-to-all: every pair of GPUs sends at the same time."""
    measured, m = nccl_constants().measured, spans.n_nodes
    latency = interpolate(measured.all_to_all_latency, m) * network.latency_scale
    nvlink = network.nvlink * measured.all_to_all_nvlink
    inside = payload * (spans.in_node - 1) / spans.size / nvlink
    if m == 1:
        formula = f"NCCL all-to-all: {latency:.0f} us + p (n-1)/n / {nvlink / _GB:.3g} GB/s"
        return Timing(latency * _US + inside, formula, "NVLink")
    share = interpolate(measured.all_to_all_net, payload / spans.size)
    if m >= 4:  # more pairs fill an adapter sooner
        share = 1 - (1 - share) / _log2(m)
    adapter = network.adapter * (1 - measured.all_to_all_net_loss / m) * share
    seconds = latency * _US + max(inside, payload * (m - 1) / m / adapter)
    formula = f"NCCL all-to-all: {latency:.0f} us + p (m-1)/m / {adapter / _GB:.3g} GB/s"
    return Timing(seconds, formula, "between nodes")


def _time_send(payload: int, spans: Spans, network: NcclNetwork, crossing: int | None) -> Timing:
    """Time sends to one other GPU, and broadcasts, which pass from GPU to GPU as fast."""
    ring = nccl_constants().ring
    # Each GPU sends through its own adapter, also if it is the only one that leaves the node.
    crosses = spans.n_nodes > 1 and crossing != 0
    hop = (ring.net if crosses else ring.nvlink)[SIMPLE] * network.latency_scale
    latency = ring.base[SIMPLE] + hop
    rate = min(network.nvlink_gb, network.adapters_gb(1)) if crosses else network.nvlink_gb
    formula = f"NCCL send: {latency:.0f} us + p / {rate:.3g} GB/s"
    seconds = latency * _US + payload / (rate * _GB)
    return Timing(seconds, formula, "between nodes" if crosses else "NVLink")


def _network_name(spans: Spans) -> str:
    return "NVLink" if spans.n_nodes == 1 else "between nodes"


def _node_bucket(n_nodes: int) -> int:
    return min(n_nodes, 3) - 1


def _log2(n: int) -> int:
    return int(log2(n))
