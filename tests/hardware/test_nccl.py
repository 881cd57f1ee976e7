"""NCCL's times by message size: bounds that hold for every group, and how a chip selects them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.errors import InvalidHardwareFile
from shardlab.hardware.chips import hardware_names, parse_hardware
from shardlab.hardware.nccl import NcclNetwork, nccl_time
from shardlab.hardware.nccl_constants import architecture_names
from shardlab.hardware.step_timer import StepCollective, StepTimer
from shardlab.hardware.switched import Spans

H100 = NcclNetwork(name="hopper", nvlink=450e9, adapter=50e9, node=8)
MIB = 2**20
OPERATIONS = ("all_gather", "psum_scatter", "psum", "all_to_all", "ppermute", "pbroadcast")
groups = st.builds(
    lambda in_node, n_nodes: Spans(in_node, n_nodes, 8 // in_node),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([2, 3, 4, 8, 32, 512]),
) | st.builds(Spans, st.sampled_from([2, 3, 4, 8]), st.just(1), st.just(1))


@pytest.mark.parametrize("op", OPERATIONS)
@given(spans=groups, n_bytes=st.integers(1, 2**32), more=st.integers(1, 2**32))
def test_more_bytes_never_take_less_time(op, spans, n_bytes, more):
    time, longer = (nccl_time(op, size, spans, H100).seconds for size in (n_bytes, n_bytes + more))
    assert time <= longer * (1 + 1e-9)


@pytest.mark.parametrize("name", architecture_names())
@given(
    op=st.sampled_from(["all_gather", "psum_scatter"]), spans=groups, n_bytes=st.integers(1, 2**32)
)
def test_no_gather_is_faster_than_the_links_of_a_node(name, op, spans, n_bytes):
    network = NcclNetwork(name=name, nvlink=450e9, adapter=50e9, node=8)
    seconds = nccl_time(op, n_bytes, spans, network).seconds
    gathered = n_bytes * spans.size if op == "all_gather" else n_bytes
    into_node = gathered * (spans.n_nodes - 1) / spans.n_nodes / (50e9 * spans.in_node)
    into_gpu = gathered * (spans.size - 1) / spans.size / (450e9 + 50e9)
    assert seconds >= max(into_node, into_gpu)


@pytest.mark.parametrize("op", ["all_gather", "psum_scatter", "psum"])
@pytest.mark.parametrize("n_bytes", [MIB, 64 * MIB, 1024 * MIB])
def test_more_nodes_never_make_a_collective_of_large_arrays_faster(op, n_bytes):
    times = []
    for n_nodes in (1, 2, 4, 16, 64):
        payload = n_bytes // (8 * n_nodes) if op == "all_gather" else n_bytes
        times.append(nccl_time(op, payload, Spans(8, n_nodes, 1), H100).seconds)
    assert times == sorted(times)


def test_a_mesh_axis_between_nodes_is_timed_at_the_adapters():
    gather = StepCollective(
        what="parameters", axes=("tensor",), op="all_gather", payload_bytes=64 * MIB, count=1
    )
    timer = StepTimer(hardware=parse_hardware("h100"))
    _, [inside] = timer.fastest_placement((("data", 8), ("tensor", 8)), [gather])
    _, [between] = timer.fastest_placement((("tensor", 8), ("data", 8)), [gather])
    assert (inside.network, between.network) == ("NVLink", "between nodes")
    # one adapter of 50 GB/s for each group, instead of NVLink's 450 GB/s
    assert between.seconds == pytest.approx(7 * 64 * MIB / 48e9, rel=0.1)
    assert between.seconds > 7 * inside.seconds


@pytest.mark.parametrize(
    ("payload", "formula"),
    [
        (2**10, "NCCL ring, LL: 43 us + V / 2.11 GB/s"),
        (2**18, "NCCL ring, LL128: 79 us + V / 206 GB/s"),
        (2**28, "NCCL ring, Simple: 146 us + V / 345 GB/s"),
    ],
)
def test_the_protocol_depends_on_the_message(payload, formula):
    assert nccl_time("all_gather", payload, Spans(8, 4, 1), H100).formula == formula


def test_the_latency_of_a_step_can_be_set():
    slow = NcclNetwork(name="hopper", nvlink=450e9, adapter=50e9, node=8, hop=34e-6)
    time, slower = (nccl_time("psum", 8, Spans(8, 2, 1), one).seconds for one in (H100, slow))
    assert 5 * time < slower < 10 * time


def test_nvidia_chips_are_timed_by_nccl_and_others_are_not():
    by_architecture = {name: parse_hardware(name).nccl for name in hardware_names()}
    assert {by_architecture[name] for name in ("a100", "a100-40gb")} == {"ampere"}
    assert {by_architecture[name] for name in ("h100", "h200", "h800")} == {"hopper"}
    assert {by_architecture[name] for name in ("b200", "gb200", "gb300")} == {"blackwell"}
    assert by_architecture["mi300x"] is by_architecture["tpu-v5p"] is None


def test_a_chip_file_selects_the_architecture(tmp_path):
    path = tmp_path / "chip.toml"
    path.write_text('like = "h100"\nnccl = "none"\n')
    assert parse_hardware(path).nccl is None
    path.write_text('like = "mi300x"\nnccl = "hoper"\n')
    with pytest.raises(InvalidHardwareFile, match="Unknown NCCL architecture 'hoper'") as caught:
        parse_hardware(path)
    assert "Did you mean 'hopper'?" in caught.value.what
