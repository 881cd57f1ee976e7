"""Communication of a step: the scaling book's table, and what changes it."""

from __future__ import annotations

import pytest

from shardlab.planner.memory.dtype_policy import parse_dtype_policy
from shardlab.planner.memory.optimizer import parse_optimizer
from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.load import load_model
from shardlab.planner.models.table import parse_table
from shardlab.planner.strategies.strategy import parse_strategy, shard_model
from shardlab.planner.timing.step_communication import decoding_collectives, training_collectives
from shardlab.planner.timing.weight_bytes import WeightCounter
from shardlab.sharding.mesh import parse_mesh

D, F, B = 64, 256, 128
# Two matrices per layer and nothing else, as training.md simplifies a transformer.
PLAIN = parse_table(
    f"""
name = "plain"
[architecture]
layers = 1
hidden = {D}
heads = 16
kv_heads = 16
head_dim = 4
ffn = {F}
vocab = 2
gated = false
[tensors]
"layers.0.mlp.up_proj.weight" = "bf16[{F},{D}]"
"layers.0.mlp.down_proj.weight" = "bf16[{D},{F}]"
""",
    "here",
)


def collectives(model, mesh, strategy, workload=None, optimizer="adamw"):
    """Return by payload and axes: operation, gathered or unreduced bytes, number of calls."""
    mesh = parse_mesh(mesh)
    sharded = tuple(shard_model(model, parse_strategy(strategy), mesh))
    counter = WeightCounter(optimizer=parse_optimizer(optimizer), policy=parse_dtype_policy(None))
    weights = counter.count_bytes(sharded, mesh)
    workload = workload or Workload(batch=B, sequence=1, remat="none")
    calls = {}
    for call in training_collectives(model.architecture, weights, mesh, workload):
        size = 1
        for name in call.axes:
            size *= mesh.shape[name]
        full_bytes = call.payload_bytes * (size if call.op == "all_gather" else 1)
        calls.setdefault((call.what, call.axes), []).append((call.op, full_bytes, call.count))
    return calls


def n_bytes(calls_by_axes, *axes):
    """Return the bytes as the book counts them: an all-reduce twice."""
    return sum(
        full_bytes * count * (2 if op == "psum" else 1)
        for (_, call_axes), calls in calls_by_axes.items()
        for op, full_bytes, count in calls
        if call_axes == axes
    )


# JAX scaling book, training.md (0819a7d), "Comms per layer (bytes, forward + backward pass)"
def test_data_parallelism_sends_8df():
    assert n_bytes(collectives(PLAIN, "data=4", "data-parallel"), "data") == 8 * D * F


def test_fsdp_sends_4df_forward_and_8df_backward():
    assert n_bytes(collectives(PLAIN, "fsdp=4", "fsdp"), "fsdp") == 4 * D * F + 8 * D * F


def test_tensor_parallelism_sends_4bd_forward_and_backward_for_each_of_two_blocks():
    calls = collectives(PLAIN, "tensor=4", "tensor")
    # the book has one block, the feed-forward one
    assert n_bytes(calls, "tensor") == 2 * (4 * B * D + 4 * B * D)
    assert calls == {
        ("activations", ("tensor",)): [
            ("all_gather", 2 * B * D, 4),
            ("psum_scatter", 2 * B * D, 4),
        ]
    }


def test_each_of_two_axes_makes_the_collectives_of_the_other_smaller():
    calls = collectives(PLAIN, "fsdp=8,tensor=4", "fsdp+tensor")
    assert n_bytes(calls, "fsdp") == 12 * D * F // 4
    assert n_bytes(calls, "tensor") == 16 * B * D // 8


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_sends_the_bytes_of_an_all_reduce(stage):
    calls = collectives(PLAIN, "data=4", f"zero{stage}")
    assert n_bytes(calls, "data") == 8 * D * F
    assert {payload for payload, _ in calls} == {"gradients", "updated parameters"}


def test_microbatches_gather_parameters_again_and_sum_gradients_once():
    work = Workload(batch=B, sequence=1, remat="none", microbatch=B // 8)
    assert n_bytes(collectives(PLAIN, "fsdp=4", "fsdp", work), "fsdp") == 8 * 12 * D * F
    assert n_bytes(collectives(PLAIN, "data=4", "data-parallel", work), "data") == 8 * D * F
    # stage 2 has no full gradient to accumulate into
    assert n_bytes(collectives(PLAIN, "data=4", "zero2", work), "data") == 8 * 4 * D * F + 4 * D * F
    assert n_bytes(collectives(PLAIN, "tensor=4", "tensor", work), "tensor") == 16 * B * D


def test_full_remat_repeats_the_collectives_of_the_forward_pass():
    without_remat, with_remat = (
        n_bytes(
            collectives(PLAIN, "tensor=4", "tensor", Workload(batch=B, sequence=1, remat=remat)),
            "tensor",
        )
        for remat in ("none", "full")
    )
    assert with_remat * 2 == without_remat * 3


def test_a_context_axis_sends_keys_and_values_and_sums_gradients():
    calls = collectives(
        PLAIN, "fsdp=4,context=2", "fsdp", Workload(batch=8, sequence=16, remat="none")
    )
    keys = 2 * 16 * 4 * 2 * 8 * 16 // 4  # bytes of two sequences, gathered
    assert calls[("keys and values, forward and backward", ("context",))] == [
        ("all_gather", keys, 2)
    ]
    assert calls[("gradients of keys and values", ("context",))] == [("psum_scatter", keys, 1)]
    # fsdp shards the weights over context too, so it gathers and scatters over both
    assert calls[("gradients", ("fsdp", "context"))] == [("psum_scatter", 4 * D * F, 1)]


def test_tokens_go_to_their_experts_and_back_in_each_mixture_layer():
    model = load_model("mixtral-8x7b")
    work = Workload(batch=64, sequence=128, remat="none")
    calls = collectives(model, "fsdp=4,expert=8", "fsdp+expert", work)
    tokens = 64 * 128 // 32
    # 32 layers, there and back, forward and backward; 2 experts, hidden 4096, bf16
    assert calls[("tokens to their experts and back", ("expert",))] == [
        ("all_to_all", tokens * 2 * 4096 * 2, 2 * 2 * 32)
    ]
    # an expert's gradients are summed on its device; all else is also sharded over the expert axis
    gather_axes = {axes for payload, axes in calls if payload == "parameters, forward"}
    assert gather_axes == {("fsdp",), ("fsdp", "expert")}
    of_experts = 3 * 4096 * 14336 * 2  # bytes a layer and expert: one of 8 is on a device
    [(_, gathered, _)] = calls[("parameters, forward", ("fsdp",))]
    assert gathered == of_experts


def test_tokens_at_their_experts_are_gathered_over_tensor_axes_once_per_expert():
    model = load_model("mixtral-8x7b")
    calls = collectives(
        model, "expert=8,tensor=4", "expert+tensor", Workload(batch=64, sequence=128, remat="none")
    )
    array = 64 * 128 // 8 * 4096 * 2
    assert calls[("activations", ("tensor",))][0] == ("all_gather", array, 2 * 32)
    assert calls[("tokens at their experts", ("tensor",))][0] == ("all_gather", 2 * array, 2 * 32)


def test_wide_experts_exchange_tokens_over_tensor_axes_and_gather_none():
    model = load_model("mixtral-8x7b")
    work = Workload(batch=64, sequence=128, remat="none")
    calls = list(
        training_collectives(
            model.architecture, {}, parse_mesh("expert=2,tensor=4"), work, has_wide_experts=True
        )
    )
    array = 64 * 128 // 2 * 4096 * 2
    # attention only: the tokens of the experts go from each device of a tensor axis by themselves
    assert [(call.op, call.axes, call.payload_bytes, call.count) for call in calls] == [
        ("all_gather", ("tensor",), array // 4, 2 * 32),
        ("psum_scatter", ("tensor",), array, 2 * 32),
        ("all_to_all", ("expert", "tensor"), 2 * array // 4, 2 * 2 * 32),
    ]


def test_decoding_sends_activations_of_one_token_per_sequence():
    model = load_model("llama3-70b")
    mesh = parse_mesh("data=2,tensor=8")
    calls = list(decoding_collectives(model.architecture, mesh, Workload(batch=64, sequence=8192)))
    assert [(call.op, call.count) for call in calls] == [("psum", 160)]
    assert calls[0].payload_bytes == 32 * 8192 * 2


def test_a_token_is_sent_once_to_each_node_of_its_experts():
    def sent_bytes(name, expert_nodes):
        arch = load_model(name).architecture
        calls = training_collectives(
            arch,
            {},
            parse_mesh("expert=64"),
            Workload(batch=64, sequence=4096, remat="none"),
            expert_nodes=expert_nodes,
        )
        [exchange] = [call for call in calls if call.op == "all_to_all"]
        return exchange.payload_bytes / (4096 * arch.hidden * 2)

    # DeepSeek-V3 chooses 8 experts in 4 of 8 groups; Qwen's 8 experts are anywhere.
    assert sent_bytes("deepseek-v3", 1) == sent_bytes("qwen3-235b-a22b", 1) == 8
    assert sent_bytes("deepseek-v3", 8) == 4
    assert 5 < sent_bytes("qwen3-235b-a22b", 8) < 6
