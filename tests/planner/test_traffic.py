"""What a step sends: the scaling book's table, and what changes it."""

from __future__ import annotations

import pytest

from shardlab.planner.advice.communication import decoding_exchanges, training_exchanges
from shardlab.planner.advice.weight_bytes import Scales
from shardlab.planner.memory.dtype_policy import parse_dtype_policy
from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.load import load_model
from shardlab.planner.models.table import parse_table
from shardlab.planner.strategies.strategy import parse_strategy, shard_model
from shardlab.sharding.mesh import parse_mesh

D, F, B = 64, 256, 128
# Two matrices a layer and nothing else, as training.md simplifies a transformer.
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


def sent(model, mesh, strategy, workload=None, optimizer="adamw"):
    """Return for each kind and axes the operation, the gathered or unreduced bytes, the calls."""
    mesh = parse_mesh(mesh)
    placed = shard_model(model, parse_strategy(strategy), mesh)
    held = Scales(optimizer=optimizer, policy=parse_dtype_policy(None)).weigh(placed, mesh)
    workload = workload or Workload(batch=B, sequence=1, remat="none")
    found = {}
    for each in training_exchanges(model.architecture, held, mesh, workload):
        size = 1
        for name in each.axes:
            size *= mesh.shape[name]
        whole = each.payload_bytes * (size if each.op == "all_gather" else 1)
        found.setdefault((each.what, each.axes), []).append((each.op, whole, each.count))
    return found


def n_bytes(found, *axes):
    """Return the bytes as the book counts them: an all-reduce twice."""
    return sum(
        whole * count * (2 if op == "psum" else 1)
        for (_, over), calls in found.items()
        for op, whole, count in calls
        if over == axes
    )


# JAX scaling book, training.md (0819a7d), "Comms per layer (bytes, forward + backward pass)"
def test_data_parallelism_sends_8df():
    assert n_bytes(sent(PLAIN, "data=4", "data-parallel"), "data") == 8 * D * F


def test_fsdp_sends_4df_forward_and_8df_backward():
    assert n_bytes(sent(PLAIN, "fsdp=4", "fsdp"), "fsdp") == 4 * D * F + 8 * D * F


def test_tensor_parallelism_sends_4bd_forward_and_backward_for_each_of_two_blocks():
    found = sent(PLAIN, "tensor=4", "tensor")
    # the book has one block, the feed-forward one
    assert n_bytes(found, "tensor") == 2 * (4 * B * D + 4 * B * D)
    assert found == {
        ("activations", ("tensor",)): [
            ("all_gather", 2 * B * D, 4),
            ("psum_scatter", 2 * B * D, 4),
        ]
    }


def test_mixed_each_axis_makes_the_other_ones_exchanges_smaller():
    found = sent(PLAIN, "fsdp=8,tensor=4", "fsdp+tensor")
    assert n_bytes(found, "fsdp") == 12 * D * F // 4
    assert n_bytes(found, "tensor") == 16 * B * D // 8


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_sends_the_bytes_of_an_all_reduce(stage):
    found = sent(PLAIN, "data=4", f"zero{stage}")
    assert n_bytes(found, "data") == 8 * D * F
    assert {what for what, _ in found} == {"gradients", "updated parameters"}


def test_microbatches_gather_parameters_again_and_sum_gradients_once():
    work = Workload(batch=B, sequence=1, remat="none", microbatch=B // 8)
    assert n_bytes(sent(PLAIN, "fsdp=4", "fsdp", work), "fsdp") == 8 * 12 * D * F
    assert n_bytes(sent(PLAIN, "data=4", "data-parallel", work), "data") == 8 * D * F
    # stage 2 holds no whole gradient to sum into
    assert n_bytes(sent(PLAIN, "data=4", "zero2", work), "data") == 8 * 4 * D * F + 4 * D * F
    assert n_bytes(sent(PLAIN, "tensor=4", "tensor", work), "tensor") == 16 * B * D


def test_full_remat_sends_what_the_forward_pass_sends_again():
    once, again = (
        n_bytes(
            sent(PLAIN, "tensor=4", "tensor", Workload(batch=B, sequence=1, remat=remat)), "tensor"
        )
        for remat in ("none", "full")
    )
    assert again * 2 == once * 3


def test_a_context_axis_sends_keys_and_values_and_sums_gradients():
    found = sent(PLAIN, "fsdp=4,context=2", "fsdp", Workload(batch=8, sequence=16, remat="none"))
    keys = 2 * 16 * 4 * 2 * 8 * 16 // 4  # bytes of two sequences, gathered
    assert found[("keys and values, forward and backward", ("context",))] == [
        ("all_gather", keys, 2)
    ]
    assert found[("gradients of keys and values", ("context",))] == [("psum_scatter", keys, 1)]
    assert found[("gradients", ("context",))] == [("psum", 4 * D * F // 4, 1)]


def test_tokens_go_to_their_experts_and_back_in_each_mixture_layer():
    model = load_model("mixtral-8x7b")
    work = Workload(batch=64, sequence=128, remat="none")
    found = sent(model, "fsdp=4,expert=8", "fsdp+expert", work)
    tokens = 64 * 128 // 32
    # 32 layers, there and back, forward and backward; 2 experts, hidden 4096, bf16
    assert found[("tokens to their experts and back", ("expert",))] == [
        ("all_to_all", tokens * 2 * 4096 * 2, 2 * 2 * 32)
    ]
    # an expert's gradients are summed where it is; all else is cut over the expert axis too
    over = {axes for what, axes in found if what == "parameters, forward"}
    assert over == {("fsdp",), ("fsdp", "expert")}
    of_experts = 3 * 4096 * 14336 * 2  # bytes a layer and expert: one of 8 is on a device
    [(_, gathered, _)] = found[("parameters, forward", ("fsdp",))]
    assert gathered == of_experts


def test_deciding_where_tokens_go_costs_tensor_axes_once_for_each_expert():
    model = load_model("mixtral-8x7b")
    found = sent(
        model, "expert=8,tensor=4", "expert+tensor", Workload(batch=64, sequence=128, remat="none")
    )
    array = 64 * 128 // 8 * 4096 * 2
    assert found[("activations", ("tensor",))][0] == ("all_gather", array, 2 * 32)
    assert found[("tokens at their experts", ("tensor",))][0] == ("all_gather", 2 * array, 2 * 32)


def test_decoding_sends_activations_of_one_token_a_sequence():
    model = load_model("llama3-70b")
    mesh = parse_mesh("data=2,tensor=8")
    calls = list(decoding_exchanges(model.architecture, mesh, Workload(batch=64, sequence=8192)))
    assert [(each.op, each.count) for each in calls] == [("all_gather", 160), ("psum_scatter", 160)]
    assert calls[1].payload_bytes == 32 * 8192 * 2
