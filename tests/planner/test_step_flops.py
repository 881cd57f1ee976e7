"""FLOPs of a step, compared with published counts."""

from __future__ import annotations

import pytest

from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.load import load_model
from shardlab.planner.timing.step_flops import (
    active_parameters,
    decoding_flops,
    training_flops,
)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),  # Jiang et al. 2024, arXiv 2401.04088: 13B active of 47B
        ("qwen3-30b-a3b", 3.35),  # model card: 3.3B activated
        ("qwen3-235b-a22b", 22.2),  # model card: 22B activated
        ("deepseek-v3-main", 37.55),  # DeepSeek-V3, arXiv 2412.19437: 37B activated
        ("llama3-70b", 70.55),
    ],
)
def test_active_parameters_are_those_that_one_token_uses(name, billions):
    assert active_parameters(load_model(name)) / 1e9 == pytest.approx(billions, abs=0.05)


def test_llama_70b_takes_6_3_yottaflops_for_15_trillion_tokens():
    # JAX scaling book, applied-training.md (0819a7d): 4.2e11 per token, 6.3e24 in total; it rounds
    # to 70e9 parameters and leaves attention out.
    model = load_model("llama3-70b")
    per_token = training_flops(
        model, model.architecture, Workload(batch=1, sequence=1, remat="none")
    )
    assert per_token == pytest.approx(4.2e11, rel=0.01)
    assert per_token * 15e12 == pytest.approx(6.3e24, rel=0.01)


def test_attention_takes_12_l_n_h_for_each_token_and_token_of_its_sequence():
    # JAX scaling book, transformers.md: 12 B T^2 N H for each layer
    model = load_model("llama3-8b")
    short, long = (
        training_flops(model, model.architecture, Workload(batch=1, sequence=size, remat="none"))
        / size
        for size in (1, 8193)
    )
    # half of it: a token attends to those before it
    assert long - short == pytest.approx(12 * 32 * 32 * 128 * 8192 / 2)


def test_model_flops_do_not_depend_on_remat():
    model = load_model("llama3-8b")
    none, full = (
        training_flops(model, model.architecture, Workload(batch=2, sequence=4096, remat=remat))
        for remat in ("none", "full")
    )
    assert none == full


def test_decoding_a_token_takes_2_flops_per_parameter():
    model = load_model("llama3-8b")
    work = decoding_flops(model, model.architecture, Workload(batch=5, sequence=1))
    assert work / 5 == pytest.approx(2 * 8_030_261_248, rel=0.001)


def test_values_narrower_than_keys_take_fewer_flops():
    # DeepSeek-V3: queries and keys of 128 + 64, values of 128 (arXiv 2412.19437, section 4.2)
    model = load_model("deepseek-v3-main")
    arch = model.architecture
    assert (arch.head_dim, arch.value_dim) == (192, 128)
    short, long = (
        training_flops(model, arch, Workload(batch=1, sequence=size, remat="none")) / size
        for size in (1, 4097)
    )
    assert long - short == pytest.approx(6 * 61 * 128 * (192 + 128) * 4096 / 2)


def test_latent_attention_decodes_on_the_latent_array():
    model = load_model("deepseek-v3-main")
    short, long = (
        decoding_flops(model, model.architecture, Workload(batch=1, sequence=size))
        for size in (1, 4097)
    )
    assert long - short == pytest.approx(2 * 61 * 128 * (512 + 64 + 512) * 4096)


def test_local_layers_attend_only_to_their_window():
    model = load_model("gemma3-27b")  # 52 of 62 layers look back over 1024 tokens
    short, long = (
        decoding_flops(model, model.architecture, Workload(batch=1, sequence=size))
        for size in (1024, 8192)
    )
    assert long - short == pytest.approx(4 * 10 * 32 * 128 * (8192 - 1024))
