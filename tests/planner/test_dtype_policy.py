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
    """Return the bytes of parameters, gradients and optimizer states, without counters."""
    model = Model(name="m", groups=(TensorGroup(path_parts=("w",), shape=(64, 100), dtype=dtype),))
    (row,) = plan(model, "data=1", optimizer=optimizer, policy=policy).rows
    return tuple(row.bytes_of(kind) / 6400 for kind in ("parameters", "gradients", "optimizer"))


@pytest.mark.parametrize(
    ("policy", "optimizer", "expected"),
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
def test_a_policy_decides_the_bytes_of_each_parameter(policy, optimizer, expected):
    assert bytes_per_parameter(policy, optimizer) == expected


@pytest.mark.parametrize(("dtype", "gigabytes"), [("bf16", 140), ("int8", 70), ("int4", 35)])
def test_narrow_parameters_for_inference_take_the_scaling_book_s_bytes(dtype, gigabytes):
    # How to Scale Your Model, applied-inference.md: LLaMA 3-70B in bf16, int8 and int4.
    policy_plan = plan("llama3-70b", "tensor=8", policy=dtype)
    assert policy_plan.bytes_per_device == load_preset("llama3-70b").n_parameters * gigabytes // 70
    assert gigabytes == pytest.approx(policy_plan.bytes_per_device / 1e9, rel=0.01)


def test_gradients_of_fp8_parameters_have_16_bits():
    assert bytes_per_parameter(None, "adamw", FP8) == (1, 2, 12)


def test_integers_and_keys_are_neither_converted_nor_trained():
    positions = TensorGroup(path_parts=("positions",), shape=(10,), dtype=parse_dtype("i32"))
    keys = TensorGroup(path_parts=("rng",), shape=(2,), dtype=parse_dtype("key<fry>"))
    model = Model(name="m", groups=(positions, keys))
    policy_plan = plan(model, "data=1", optimizer="adamw", policy="bf16")
    assert [array.name for row in policy_plan.rows for array in row.arrays] == [
        "parameter",
        "parameter",
    ]
    assert policy_plan.bytes_of("parameters") == 10 * 4 + 2 * 8


def test_scales_of_fp8_blocks_are_not_trained():
    policy_plan = plan("deepseek-v3", "fsdp=8", strategy="fsdp", optimizer="adamw")
    scales = [row for row in policy_plan.rows if row.path.endswith("weight_scale_inv")]
    assert len(scales) > 10
    assert {len(row.arrays) for row in scales} == {1}


def test_scales_disappear_if_fp8_weights_are_stored_in_bf16():
    model = load_preset("deepseek-v3")
    scales = [group for group in model.groups if "scale_inv" in group.name]
    n_elements = sum(group.n_tensors * group.n_elements for group in scales)
    n_scales = sum(group.n_tensors for group in scales)
    policy_plan = plan(model, "fsdp=1", optimizer="adamw", policy="bf16")
    assert not any("scale_inv" in row.path for row in policy_plan.rows)
    assert policy_plan.bytes_of("parameters") == 2 * (model.n_parameters - n_elements)
    assert policy_plan.notes[-1].startswith(
        f"{n_scales:,} tensors of fp8 block scales are multiplied into"
    )


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("bf17", "Unknown dtype or dtype policy 'bf17'", "Did you mean 'bf16'?"),
        ("mixd", "policies: as-is, mixed, bf16-all", "Did you mean 'mixed'?"),
        ("weights=bf16", "no part 'weights'", ""),
        ("gradient=bf16", "no part 'gradient'", "Did you mean 'gradients'?"),
        (
            "moments=int8",
            "int8 is not a floating-point dtype, and moments need one",
            "such as bf16",
        ),
        (
            "key<fry>",
            "key<fry> is not a floating-point dtype, and parameters need one",
            "such as bf16",
        ),
        ("master=", "Unknown dtype ''", ""),
    ],
)
def test_an_unknown_policy_is_rejected(text, what, fix):
    with pytest.raises(UnknownOption) as caught:
        parse_dtype_policy(text)
    assert what in caught.value.what
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


def test_integers_are_planned_for_inference_and_rejected_for_training():
    assert plan("llama3-8b", "x=2", policy="int8").bytes_of("parameters") > 8e9
    with pytest.raises(UnknownOption, match="int8 parameters cannot be trained") as raised:
        plan("llama3-8b", "x=2", policy="int8", optimizer="adamw")
    assert "which plans inference" in raised.value.fix
