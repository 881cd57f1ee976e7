"""The dtype policy, its text forms, and what it does to fp8 checkpoints."""

from __future__ import annotations

import pytest

from shardlab.errors import InvalidType, UnknownOption
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.dtype_policy import DtypePolicy, parse_dtype_policy
from shardlab.planner.model import Model
from shardlab.planner.models.presets import load_preset
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.dtype import parse_dtype

F32, BF16, FP8 = parse_dtype("f32"), parse_dtype("bf16"), parse_dtype("float8_e4m3fn")


def bytes_per_parameter(policy, optimizer, dtype=BF16):
    """Of parameters, gradients and the optimizer, without its counters."""
    made = plan(Model(name="m", groups=(TensorGroup(path_parts=("w",), shape=(64, 100), dtype=dtype),)), "data=1", optimizer=optimizer,
                policy=policy)  # fmt: skip
    row = made.rows[0]
    return tuple(row.bytes_of(kind) / 6400 for kind in ("parameters", "gradients", "optimizer"))


@pytest.mark.parametrize(
    ("policy", "optimizer", "wanted"),
    [
        (None, "adamw", (2, 2, 12)),
        (None, "adam", (2, 2, 8)),
        ("mixed", "lion", (2, 2, 8)),  # a master copy and one moment
        ("mixed", "sgd", (2, 2, 4)),
        ("bf16-all", "adamw", (2, 2, 4)),
        ("fp32", "adamw", (4, 4, 8)),
        ("bf16,moments=same,master=none", "adamw", (2, 2, 4)),
        ("bf16,gradients=f32", "adamw", (2, 4, 12)),
        ("moments=bf16", "momentum", (2, 2, 2)),
        ("as-is", "muon", (2, 2, 4)),
    ],
)
def test_a_policy_decides_the_bytes_of_each_parameter(policy, optimizer, wanted):
    assert bytes_per_parameter(policy, optimizer) == wanted


@pytest.mark.parametrize(("dtype", "gigabytes"), [("bf16", 140), ("int8", 70), ("int4", 35)])
def test_narrow_parameters_for_inference_take_the_scaling_book_s_bytes(dtype, gigabytes):
    # How to Scale Your Model, applied-inference.md: LLaMA 3-70B in bf16, int8 and int4.
    made = plan("llama3-70b", "tensor=8", policy=dtype)
    assert made.bytes_per_device == load_preset("llama3-70b").n_parameters * gigabytes // 70
    assert gigabytes == pytest.approx(made.bytes_per_device / 1e9, rel=0.01)


def test_gradients_of_fp8_parameters_have_16_bits():
    assert bytes_per_parameter(None, "adamw", FP8) == (1, 2, 12)


def test_what_is_no_fraction_is_neither_cast_nor_trained():
    model = Model(name="m", groups=(TensorGroup(path_parts=("positions",), shape=(10,), dtype=parse_dtype("i32")),
                        TensorGroup(path_parts=("rng",), shape=(2,), dtype=parse_dtype("key<fry>"))))  # fmt: skip
    made = plan(model, "data=1", optimizer="adamw", policy="bf16")
    assert [each.name for row in made.rows for each in row.held] == ["parameter", "parameter"]
    assert made.bytes_of("parameters") == 10 * 4 + 2 * 8


def test_scales_of_fp8_blocks_are_not_trained():
    made = plan("deepseek-v3", "fsdp=8", strategy="fsdp", optimizer="adamw")
    scales = [row for row in made.rows if row.path.endswith("weight_scale_inv")]
    assert len(scales) > 10
    assert {len(row.held) for row in scales} == {1}


def test_scales_are_gone_where_fp8_weights_are_held_in_bf16():
    model = load_preset("deepseek-v3")
    scales = [each for each in model.groups if "scale_inv" in each.name]
    n_elements = sum(each.n_tensors * each.n_elements for each in scales)
    n_scales = sum(each.n_tensors for each in scales)
    made = plan(model, "fsdp=1", optimizer="adamw", policy="bf16")
    assert not any("scale_inv" in row.path for row in made.rows)
    assert made.bytes_of("parameters") == 2 * (model.n_parameters - n_elements)
    assert made.notes[-1].startswith(
        f"{n_scales:,} tensors of fp8 block scales are multiplied into"
    )


@pytest.mark.parametrize(
    ("text", "said", "fix"),
    [
        ("bf17", "There is no dtype and no dtype policy 'bf17'", "'bf16', the nearest name"),
        ("mixd", "policies are as-is, mixed, bf16-all", ""),
        ("weights=bf16", "no part 'weights'", ""),
        ("gradient=bf16", "no part 'gradient'", "'gradients'."),
        ("moments=int8", "int8 holds no fractions, and moments need them", "such as bf16"),
        ("key<fry>", "key<fry> holds no fractions, and parameters need them", "such as bf16"),
        ("master=", "There is no dtype ''", ""),
    ],
)
def test_an_unknown_policy_is_named(text, said, fix):
    with pytest.raises(UnknownOption) as caught:
        parse_dtype_policy(text)
    assert said in caught.value.what
    assert fix in caught.value.fix


@pytest.mark.parametrize("policy", [3, True, b"bf16", ["bf16"], float("nan")])
def test_a_policy_is_text_or_a_dtype(policy):
    with pytest.raises(InvalidType, match="is not a dtype policy"):
        parse_dtype_policy(policy)


def test_parts_come_after_the_text():
    assert parse_dtype_policy("mixed", gradients="f32", master="none") == DtypePolicy(
        parameters=BF16, gradients=F32, moments=F32, with_master=False
    )
    assert parse_dtype_policy(None, parameters=None) == DtypePolicy()


def test_whole_numbers_are_planned_for_inference_and_refused_for_training():
    assert plan("llama3-8b", "x=2", policy="int8").bytes_of("parameters") > 8e9
    with pytest.raises(UnknownOption, match="int8 parameters cannot be trained") as raised:
        plan("llama3-8b", "x=2", policy="int8", optimizer="adamw")
    assert "which plans for inference" in raised.value.fix
