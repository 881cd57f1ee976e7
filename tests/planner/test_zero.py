"""Published figures of memory per device, from plans of full models."""

from __future__ import annotations

import pytest

from shardlab.errors import UnknownOption
from shardlab.planner.make_plan import plan
from shardlab.planner.models.presets import load_preset
from shardlab.planner.models.table import parse_table

# A GPT of 7.5 billion parameters: 36 layers of width 4096, and a table that makes up the sum.
GPT = """
name = "gpt-7.5b"
[tensors]
"wte.weight" = "bf16[59072,4096]"
"wpe.weight" = "bf16[2048,4096]"
"h.{0..35}.ln_1.weight" = "bf16[4096]"
"h.{0..35}.ln_1.bias" = "bf16[4096]"
"h.{0..35}.attn.c_attn.weight" = "bf16[12288,4096]"
"h.{0..35}.attn.c_attn.bias" = "bf16[12288]"
"h.{0..35}.attn.c_proj.weight" = "bf16[4096,4096]"
"h.{0..35}.attn.c_proj.bias" = "bf16[4096]"
"h.{0..35}.ln_2.weight" = "bf16[4096]"
"h.{0..35}.ln_2.bias" = "bf16[4096]"
"h.{0..35}.mlp.c_fc.weight" = "bf16[16384,4096]"
"h.{0..35}.mlp.c_fc.bias" = "bf16[16384]"
"h.{0..35}.mlp.c_proj.weight" = "bf16[4096,16384]"
"h.{0..35}.mlp.c_proj.bias" = "bf16[4096]"
"ln_f.weight" = "bf16[4096]"
"ln_f.bias" = "bf16[4096]"
"""


@pytest.fixture(scope="module")
def gpt():
    model = parse_table(GPT, "test")
    assert round(model.n_parameters / 1e9, 3) == 7.5
    return model


@pytest.mark.parametrize(
    ("strategy", "gigabytes"),
    [("data-parallel", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)],
)
def test_the_zero_paper_s_figures_for_7_5_billion_parameters_on_64_devices(
    gpt, strategy, gigabytes
):
    # Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    # SC 2020, figure 1: K = 12, 7.5B parameters, 64-way data parallel.
    result = plan(gpt, "data=64", strategy=strategy, optimizer="adamw")
    assert round(result.bytes_per_device / 1e9, 1) == gigabytes


@pytest.mark.parametrize("d", [1, 2, 8, 64])
@pytest.mark.parametrize(
    ("policy", "bytes_each"),
    [("bf16,gradients=f32", lambda d: 6 + 12 / d), ("fp32", lambda d: 8 + 8 / d)],
)
def test_megatron_s_distributed_optimizer_takes_its_bytes_for_each_parameter(
    gpt, policy, bytes_each, d
):
    # Megatron-LM, README, "Distributed Optimizer": bytes per parameter by dtypes.
    result = plan(gpt, f"data={d}", strategy="zero1", optimizer="adamw", policy=policy)
    counter = 4
    assert result.bytes_per_device - counter == gpt.n_parameters * bytes_each(d)


def test_the_scaling_book_s_10_bytes_for_each_parameter_of_llama_70b():
    # How to Scale Your Model, training.md and applied-training.md: bf16 parameters (140 GB), both
    # moments in fp32 (560 GB), no master copy, and gradients that come and go.
    model = load_preset("llama3-70b")
    result = plan(model, "fsdp=1", strategy="fsdp", optimizer="adam")
    counter = 4
    assert result.bytes_of("parameters") == 2 * model.n_parameters
    assert result.bytes_of("optimizer") - counter == 8 * model.n_parameters


def test_zero_stages_shard_states_then_gradients_then_parameters(gpt):
    shares = {}
    for strategy in ("data-parallel", "zero1", "zero2"):
        result = plan(gpt, "data=64", strategy=strategy, optimizer="adamw")
        shares[strategy] = tuple(
            round(result.unreplicated_bytes_of(kind) / result.bytes_of(kind), 3)
            for kind in ("parameters", "gradients", "optimizer")
        )
    assert shares == {
        "data-parallel": (1, 1, 1),
        "zero1": (1, 1, 64),
        "zero2": (1, 64, 64),
    }


def test_zero_combines_with_tensor_parallelism():
    result = plan("llama3-70b", "data=16,tensor=8", strategy="tensor+zero1", optimizer="adamw")
    row = next(row for row in result.rows if "mlp.up_proj" in row.path)
    assert {array.name: str(array.spec) for array in row.arrays} == {
        "parameter": "P('tensor')",
        "gradient": "P('tensor')",
        "master": "P('tensor', 'data')",
        "mu": "P('tensor', 'data')",
        "nu": "P('tensor', 'data')",
    }


def test_zero_shards_the_states_of_tensors_sharded_by_rules():
    rules = [(r"up_proj", (None, "tensor")), (r".*", ())]
    result = plan("llama3-8b", "data=4,tensor=8", rules=rules, strategy="zero2", optimizer="adam")
    row = next(row for row in result.rows if "mlp.up_proj" in row.path)
    assert {array.name: str(array.spec) for array in row.arrays} == {
        "parameter": "P(None, 'tensor')",
        "gradient": "P('data', 'tensor')",
        "mu": "P('data', 'tensor')",
        "nu": "P('data', 'tensor')",
    }
    assert [line.pattern for line in result.rules] == ["up_proj", ".*"]  # those of the user
    note = result.notes[-1]
    assert "ZeRO stage 2: the optimizer's states and the gradients are also sharded" in note


def test_zero_leaves_the_specs_that_a_model_has_of_its_own():
    model = parse_table(
        'name = "own"\n[tensors]\n"w" = { array = "f32[8,12]", spec = "None,model" }', "test"
    )
    result = plan(model, "data=4,model=2", strategy="zero1", optimizer="lion")
    specs = {array.name: str(array.spec) for array in result.rows[0].arrays}
    assert specs == {
        "parameter": "P(None, 'model')",
        "gradient": "P(None, 'model')",
        "mu": "P('data', 'model')",
    }


def test_rules_and_a_strategy_that_shards_parameters_are_one_too_many():
    with pytest.raises(UnknownOption, match="Rules and the strategy 'fsdp' both give specs"):
        plan("llama3-8b", "data=4", rules=[(".*", ())], strategy="fsdp")
