"""The KV cache: published sizes, and what divides it."""

from __future__ import annotations

import pytest

import shardlab
from shardlab.planner.memory.kv_cache import cache_items, token_bytes
from shardlab.planner.memory.optimizer import Policy
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Model
from shardlab.planner.models.load import load_model
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import parse_mesh


def cache(model, mesh, **options):
    (item,) = cache_items(load_model(model), parse_mesh(mesh), Workload(**options))
    return item.bytes_per_device


@pytest.mark.parametrize(
    ("model", "dtype", "expected"),
    [
        # scaling book, applied-inference.md: 2 * K * H * L = 160kB in int8 (table: 324, 162, 81 kB)
        ("llama3-70b", "bf16", 327_680),
        ("llama3-70b", "int8", 163_840),
        ("llama3-70b", "int4", 81_920),
        # "Insights into DeepSeek-V3" (arXiv 2505.09343), table 1, KB per token in bf16; the table
        # was not at hand, but (512 + 64) * 61 * 2 of the published configuration is the same
        ("deepseek-v3", "bf16", 70_272),
        ("qwen2.5-72b", "bf16", 327_680),
        ("llama3.1-405b", "bf16", 516_096),
    ],
)
def test_a_token_takes_the_published_bytes(model, dtype, expected):
    arch = load_model(model).architecture
    assert token_bytes(arch, Workload(batch=1, sequence=1, cache_dtype=dtype)) == expected


def test_the_scaling_book_llama_13b_sequence_takes_six_point_seven_gigabytes():
    # inference.md: 8192 * 40 * 128 * 40 * 2 * 2 = 6.7 GB; a batch of 8 takes 53.6 (53.7 exactly)
    one = cache("llama2-13b", "data=1", batch=1, sequence=8192)
    assert round(one / 1e9, 1) == 6.7
    assert cache("llama2-13b", "data=1", batch=8, sequence=8192) == 8 * one


def test_the_scaling_book_llama_70b_serving_fits_eight_chips_and_barely():
    # applied-inference.md: batch 32 of 8192 tokens, all in int8: 41.9e9 + 70e9 = 112 GB, at least 7
    # TPU v5e of 16 GB, so a 4x2; "a tight fit" that overhead may break.
    serve = {
        "strategy": "tensor",
        "hardware": "tpu-v5e",
        "policy": Policy(parameters=parse_dtype("int8")),
        "workload": Workload(batch=32, sequence=8192, cache_dtype="int8"),
    }
    made = shardlab.plan("llama3-70b", "tensor=8", headroom=0, **serve)
    assert round(made.bytes_of("kv_cache") * 8 / 1e9, 1) == 42.9  # the book rounds 163,840 to 160e3
    assert made.bytes_per_device * 8 == pytest.approx(112e9, rel=0.02)
    assert made.fits
    assert not shardlab.plan("llama3-70b", "tensor=4", headroom=0, **serve).fits
    assert not shardlab.plan("llama3-70b", "tensor=8", headroom=0.15, **serve).fits


def test_batch_sequence_heads_and_layers_are_divided():
    whole = cache("llama3-70b", "data=1", batch=32, sequence=8192)
    for mesh, parts in [("data=4,fsdp=2", 8), ("tensor=8", 8), ("context=4", 4), ("stage=5", 5)]:
        assert cache("llama3-70b", mesh, batch=32, sequence=8192) == whole / parts, mesh


def test_more_devices_than_kv_heads_hold_copies():
    at_8 = cache("llama3-70b", "tensor=8", batch=1, sequence=8192)
    assert cache("llama3-70b", "tensor=64", batch=1, sequence=8192) == at_8
    (item,) = cache_items(
        load_model("llama3-70b"), parse_mesh("tensor=64"), Workload(batch=1, sequence=8192)
    )
    assert "2 × 128 × 1 heads (8 / 8, 8 copies of each)" in item.formula


def test_heads_that_do_not_divide_fill_some_devices_more():
    # 40 heads on 16 devices: the fullest has 3
    one_head = cache("llama2-13b", "tensor=40", batch=1, sequence=10)
    assert cache("llama2-13b", "tensor=16", batch=1, sequence=10) == 3 * one_head


def test_a_latent_cache_is_whole_on_every_tensor_device():
    whole = cache("deepseek-v3", "tensor=1", batch=3, sequence=100)
    assert whole == 3 * 100 * 61 * (512 + 64) * 2
    assert cache("deepseek-v3", "tensor=8", batch=3, sequence=100) == whole


@pytest.mark.parametrize(
    ("model", "n_global", "n_local", "window"),
    [
        # MaxText (configs/models, models/gemma3.py): sliding_window_size, and five local layers
        # before each global one in Gemma 3, one in Gemma 2
        ("gemma3-27b", 10, 52, 1024),
        ("gemma2-9b", 21, 21, 4096),
        ("mistral-7b-v0.1", 0, 32, 4096),
    ],
)
def test_local_layers_keep_no_more_tokens_than_their_window(model, n_global, n_local, window):
    arch = load_model(model).architecture
    width = 2 * arch.kv_heads * arch.head_dim * 2
    long, short = 32_768, 512
    assert cache(model, "data=1", batch=2, sequence=short) == 2 * width * arch.layers * short
    expected = 2 * width * (n_global * long + n_local * window)
    assert cache(model, "data=1", batch=2, sequence=long) == expected


def test_a_stage_has_its_share_of_the_local_layers():
    # of 62 layers of Gemma 3 27B, 31 on each of two stages: 26 local, 5 global
    width, long = 2 * 16 * 128 * 2, 32_768
    expected = width * (5 * long + 26 * 1024)
    assert cache("gemma3-27b", "stage=2", batch=1, sequence=long) == expected


def test_a_model_of_unknown_measures_has_no_cache():
    assert (
        cache_items(
            Model(name="tree", groups=()), parse_mesh("data=1"), Workload(batch=1, sequence=1)
        )
        == ()
    )
