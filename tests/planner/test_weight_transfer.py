"""The transfer of a model's weights between two meshes, and `shardlab reshard`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from shardlab.cli import main
from shardlab.hardware.chips import parse_hardware
from shardlab.planner.weight_transfer import plan_chunks, transfer_weights
from shardlab.planner.weight_transfer_time import estimate_transfer_time

SMALL = ("qwen3-0.6b", "fsdp=8", "data=2,tensor=4")
STRATEGIES = {"strategy": "fsdp", "to_strategy": "tensor"}


def test_separate_replicas_each_receive_all_weights():
    moved = transfer_weights(*SMALL, **STRATEGIES, is_separate=True)
    assert moved.n_shared_devices == 0
    assert set(moved.received_bytes.values()) == {moved.destination_bytes}
    assert moved.total_bytes == 8 * moved.destination_bytes
    assert sum(tensor.total_bytes for tensor in moved.tensors) == moved.total_bytes


def test_on_shared_devices_less_is_sent_and_both_copies_are_resident():
    moved = transfer_weights(*SMALL, **STRATEGIES)
    assert moved.n_shared_devices == 8
    assert moved.total_bytes < 8 * moved.destination_bytes
    assert moved.memory.resident_bytes == moved.source_bytes + moved.destination_bytes


def test_the_dtype_that_is_sent_scales_the_bytes():
    sent = [transfer_weights(*SMALL, **STRATEGIES, dtype=dtype) for dtype in ("bf16", "f32")]
    assert sent[1].total_bytes == 2 * sent[0].total_bytes


@pytest.mark.parametrize(
    ("limit", "chunk", "rounds"), [(None, None, 1), (100, None, 1), (120, 10, 5), (900, 50, 1)]
)
def test_chunks_keep_the_busiest_device_below_the_limit(limit, chunk, rounds):
    memory = plan_chunks({0: 100, 1: 60}, {0: 50}, {1: 50}, limit)
    assert (memory.chunk_bytes, memory.n_rounds, memory.unchunked_bytes) == (chunk, rounds, 150)
    if chunk is not None:
        assert memory.chunked_bytes <= limit


def test_time_is_that_of_the_slowest_link():
    h100, v5p = parse_hardware("h100"), parse_hardware("v5p")
    traffic = {(0, 8): 10**9, (1, 8): 10**9, (2, 3): 10**9}
    between = estimate_transfer_time(traffic, {}, {}, h100, True)
    assert between.seconds == 2e9 / h100.figure("node_egress").value
    slices = estimate_transfer_time({(0, 1): 10**9}, {0: 10**9}, {1: 10**9}, v5p, True)
    assert slices.seconds == 1e9 / v5p.figure("dcn_bandwidth").value


def run(*args):
    return CliRunner().invoke(main, ["reshard", *args], prog_name="shardlab")


ARGS = ("qwen3-0.6b", "--mesh", "fsdp=8", "--strategy", "fsdp", "--to-mesh", "tensor=4")


def test_the_command_prints_bytes_memory_time_and_tensors():
    done = run(*ARGS, "--to-strategy", "tensor", "--hardware", "h100", "--peak-memory", "80GB")
    assert done.exit_code == 0, done.output
    for fact in ("every element of every destination shard arrives", "in chunks of", "on h100"):
        assert fact in done.stdout


def test_json_and_a_limit_that_is_too_small():
    done = run(*ARGS, "--to-strategy", "tensor", "--peak-memory", "1MB", "--json", "-")
    assert done.exit_code == 1
    data = json.loads(done.stdout)
    assert data["memory"]["chunk_bytes"] is None
    assert data["every_element_arrives_once"] is True


def test_layout_shows_the_transfer_to_another_mesh():
    args = ["layout", "8x6", "--spec", "fsdp", "--mesh", "fsdp=4", "--to", "None,tensor"]
    done = CliRunner().invoke(main, [*args, "--to-mesh", "tensor=2", "--separate"])
    assert "2 devices receive, at most 96 bytes each, from 4 devices" in done.stdout
