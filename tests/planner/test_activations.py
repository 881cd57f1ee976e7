"""Activations: published formulas and figures, and what divides them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import shardlab
from shardlab.planner.memory.activations import count_token_memory, layer_tensors, saved_item
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import workload_shards
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.load import load_model
from shardlab.sharding.mesh import parse_mesh

# Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models" (arXiv
# 2205.05198), table 3: heads, hidden, layers; all with sequence 2048, tensor parallel 8. The table
# itself was not at hand: the sizes were checked by the parameters that they add up to.
MEGATRON = {
    "22B": (64, 6144, 48),
    "175B": (96, 12288, 96),
    "530B": (128, 20480, 105),
    "1T": (160, 25600, 128),
}
S, T = 2048, 8


def gpt(name):
    heads, hidden, layers = MEGATRON[name]
    arch = Architecture(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=51200,
        gated=False,
    )
    return Model(name=name, groups=(), architecture=arch)


def saved_bytes(model, mesh="tensor=1", **options):
    """Bytes saved of all layers on a device, with Megatron's defaults unless overridden."""
    options = {"flash": False, "dropout": True, "remat": "none"} | options
    batch, sequence = options.pop("batch", 1), options.pop("sequence", S)
    work = Workload(batch=batch, sequence=sequence, **options)
    return saved_item(model.architecture, workload_shards(parse_mesh(mesh)), work).bytes_per_device


def token_memory(architecture, mesh, workload):
    return count_token_memory(architecture, workload_shards(parse_mesh(mesh)), workload)


@pytest.mark.parametrize("name", MEGATRON)
def test_a_gpt_layer_has_the_bytes_of_megatrons_formulas(name):
    # Table 2 of the paper, a row each; b = 3 so that the batch shows.
    a, h, layers = MEGATRON[name]
    sbh, scores = S * 3 * h, Fraction(5 * a * S, h)
    model = gpt(name)
    tensor = f"tensor={T}"
    assert saved_bytes(model, batch=3) == layers * sbh * (34 + scores)
    assert saved_bytes(model, tensor, batch=3, sequence_parallel=False) == (
        layers * sbh * (10 + 24 // T + scores / T)
    )
    assert saved_bytes(model, tensor, batch=3) == layers * (sbh // T) * (34 + scores)
    assert saved_bytes(model, tensor, batch=3, remat="selective", sequence_parallel=False) == (
        layers * sbh * (10 + 24 // T)
    )
    assert saved_bytes(model, tensor, batch=3, remat="selective") == layers * sbh * 34 // T
    assert (
        saved_bytes(model, tensor, batch=3, remat="full", sequence_parallel=False)
        == layers * sbh * 2
    )


@pytest.mark.parametrize(("name", "ratio", "saved"), [("175B", 80, 0.70), ("530B", 64, 0.65)])
def test_recomputing_attention_saves_the_published_share(name, ratio, saved):
    # Section 5 of the paper: 5as/h is 80 for GPT-3 and 64 for MT-NLG; 70 % and 65 % are saved.
    a, h, _ = MEGATRON[name]
    assert 5 * a * S / h == ratio
    share = 1 - saved_bytes(gpt(name), remat="selective") / saved_bytes(gpt(name))
    assert round(share, 2) == saved


@pytest.mark.parametrize("name", ["175B", "530B", "1T"])
def test_both_techniques_together_give_the_published_factor_of_five(name):
    # The abstract: "reduces activation memory by 5x", against tensor parallelism alone.
    baseline = saved_bytes(gpt(name), "tensor=8", sequence_parallel=False)
    assert round(baseline / saved_bytes(gpt(name), "tensor=8", remat="selective")) == 5


def test_the_first_pipeline_stage_saves_as_much_as_without_stages():
    # Section 4.2.3: with 1F1B the first stage of p holds p microbatches of L/p layers.
    unsharded = saved_bytes(gpt("175B"), batch=64, microbatch=1)
    assert saved_bytes(gpt("175B"), "stage=8", batch=64, microbatch=1) == unsharded
    # and with fewer microbatches than stages, only these
    assert saved_bytes(gpt("175B"), "stage=8", batch=2, microbatch=1) == unsharded / 8 * 2


def test_the_scaling_book_llama_checkpoints_take_twenty_one_terabytes():
    # applied-training.md: batch of 4M tokens, 2 * 8192 * 4e6 * 4 * 80 = 20.97e12 ("~20.9TB"; one
    # version of the page writes a 3 in the formula, with the result of a 4).
    model = load_model("llama3-70b")
    book = saved_bytes(model, "data=1", batch=1000, sequence=4000, remat="4")
    assert book == 2 * 8192 * 4e6 * 4 * 80


def test_the_scaling_book_block_remat_takes_four_terabytes():
    # transformers.md, gradient checkpointing: B * T = 4M, L = 64, D = 8192: "we'd only save 4.2TB"
    arch = Architecture(
        layers=64, hidden=8192, heads=64, kv_heads=64, head_dim=128, ffn=4 * 8192, vocab=32000
    )
    block = saved_bytes(
        Model(name="book", groups=(), architecture=arch), batch=1000, sequence=4000, remat="full"
    )
    assert round(block / 1e12, 1) == 4.2
    # and "roughly" 20 arrays of that size without any, 84 TB: with keys and values in every head
    every = saved_bytes(
        Model(name="book", groups=(), architecture=arch),
        batch=1000,
        sequence=4000,
        flash=True,
        dropout=False,
    )
    assert every == 20 * block


def test_remat_dots_saves_seven_arrays_of_a_layer():
    # transformers.md: "only save the outputs of large matmuls ... closer to 7 per layer". The
    # product before the residual sum is saved as that sum, the last one as the next layer's input.
    arch = load_model("llama3-70b").architecture
    tensors = layer_tensors(arch, Workload(batch=1, sequence=4096))
    products = [tensor.name for tensor in tensors if tensor.is_matmul_output]
    assert products == ["queries", "keys", "values", "mlp input", "gate", "up"]
    assert saved_bytes(load_model("llama3-70b"), remat="dots", flash=True, dropout=False) == (
        80 * 2048 * 2 * (8192 + 8192 + 2 * 1024 + 8192 + 2 * 28672)
    )


def test_batch_sequence_tensor_and_stage_axes_each_divide():
    model = load_model("llama3-70b")
    options = {"batch": 32, "flash": True, "dropout": False, "remat": "full"}
    unsharded = saved_bytes(model, "data=1", **options)
    for mesh, n_shards in [
        ("data=4", 4),
        ("data=2,fsdp=4,expert=2", 16),
        ("context=2", 2),
        ("tensor=8", 8),
        ("stage=5", 5),
        ("data=4,context=2,tensor=8,stage=5", 320),
        ("nobody_knows=4", 1),
    ]:
        assert saved_bytes(model, mesh, **options) == unsharded / n_shards, mesh


def test_without_sequence_parallelism_layer_inputs_are_replicated_over_the_tensor_axis():
    model = load_model("llama3-70b")
    options = {"flash": True, "dropout": False, "remat": "full", "sequence_parallel": False}
    assert saved_bytes(model, "tensor=8", **options) == saved_bytes(model, "tensor=1", **options)


def test_keys_and_values_have_no_more_shards_than_heads():
    arch = load_model("llama3-70b").architecture  # 8 kv heads
    model = Model(name="", groups=(), architecture=replace(arch, ffn=16, hidden=64, heads=64))
    work = {"flash": True, "dropout": False, "sequence_parallel": False}
    at_8, at_16 = (saved_bytes(model, f"tensor={n}", remat="dots", **work) for n in (8, 16))
    halved = 80 * S * 2 * (64 * 128 + 2 * 16) * (1 / 8 - 1 / 16)  # queries, gate, up
    assert at_8 - at_16 == halved


@pytest.mark.parametrize(("field", "size"), [("heads", 28), ("ffn", 28), ("vocab", 28)])
def test_sizes_not_divisible_by_the_tensor_axis_are_replicated(field, size):
    arch = replace(load_model("llama3-8b").architecture, kv_heads=8, **{field: size})
    work = Workload(batch=1, sequence=16, remat="none")
    larger = replace(arch, **{field: 8 * size})  # the same on a device, and it divides
    unsharded, sharded, finer = (
        token_memory(*case, work)
        for case in ((arch, "tensor=1"), (arch, "tensor=8"), (larger, "tensor=8"))
    )
    for name in ("saved", "logits"):
        assert getattr(sharded, name) == getattr(finer, name)
    assert unsharded != sharded
    assert unsharded.saved / 8 + unsharded.logits / 8 < sharded.saved + sharded.logits


def test_an_unused_mesh_axis_divides_no_activations():
    def activations(mesh, strategy):
        result = shardlab.plan(
            "llama3-8b",
            mesh,
            strategy=strategy,
            optimizer="adamw",
            workload=Workload(batch=8, sequence=512),
        )
        return result.bytes_of("activations")

    assert activations("fsdp=4,tensor=8", "fsdp") == activations("fsdp=4", "fsdp")
    assert activations("fsdp=4,tensor=8", "fsdp+tensor") < activations("fsdp=4", "fsdp") / 4


def test_a_mixture_counts_the_experts_of_a_token_and_its_dense_layers():
    model = load_model("deepseek-v3")
    arch = model.architecture
    routed = sum(
        tensor.bits for tensor in layer_tensors(arch, Workload(batch=1, sequence=1), is_moe=True)
    )
    dense = sum(
        tensor.bits for tensor in layer_tensors(arch, Workload(batch=1, sequence=1), is_moe=False)
    )
    options = {"flash": True, "dropout": False, "sequence": 1}
    assert saved_bytes(model, **options) * 8 == 58 * routed + 3 * dense
    assert routed - dense == 8 * (
        256 * 4 + 2 * 2 * 8 * 7168 + 2 * 3 * (8 + 1) * 2048 - 2 * 3 * 18432
    )


def test_latent_attention_has_values_narrower_than_keys_and_shared_experts_their_own_width():
    # DeepSeek-V3 (arXiv 2412.19437), 4.2: 128 heads of 128, rotary part 64 of queries and keys,
    # latent 512; each expert 2048 wide. Two shared ones here, so that their number counts.
    arch = replace(load_model("deepseek-v3").architecture, shared_experts=2)
    widths = {
        tensor.name: tensor.bits // 16
        for tensor in layer_tensors(arch, Workload(batch=1, sequence=1))
    }
    heads = {
        name: widths[name] for name in ("queries", "keys", "values", "attention output", "latent")
    }
    assert heads == {
        "queries": 128 * 192,
        "keys": 128 * 192,
        "values": 128 * 128,
        "attention output": 128 * 128,
        "latent": 512 + 64,
    }
    assert (widths["expert up"], widths["shared expert up"]) == (8 * 2048, 2 * 2048)
    # every device of a tensor axis expands its own heads from the full latent array
    whole = [
        tensor.name
        for tensor in layer_tensors(arch, Workload(batch=1, sequence=1))
        if tensor.sharding == "replicated"
    ]
    assert whole == ["latent"]


def test_a_recomputed_layer_needs_what_was_not_saved():
    arch = load_model("llama3-70b").architecture
    none, full = (
        token_memory(arch, "tensor=8", Workload(batch=4, sequence=2048, remat=remat))
        for remat in ("none", "full")
    )
    assert full.saved / 80 + full.recomputed == none.saved / 80
    assert none.recomputed == 0
    assert full.logits == none.logits == 4 * 2048 * 128256 // 8


def test_chunks_divide_the_logits_and_offloaded_tensors_are_copied_back():
    arch = load_model("llama3-8b").architecture
    work = Workload(batch=8, sequence=2048, remat="query_proj+out_proj")
    on_device = token_memory(arch, "data=8", work)
    changed = token_memory(arch, "data=8", replace(work, loss_chunks=4, offload="query_proj"))
    assert changed.logits == on_device.logits / 4
    queries = 2048 * 4096 * 2
    assert on_device.saved - changed.saved == 32 * queries
    assert changed.recomputed - on_device.recomputed == queries


def test_a_formula_names_its_divisors():
    work = Workload(batch=512, sequence=4096, microbatch=128)
    shards = workload_shards(parse_mesh("data=2,fsdp=32,tensor=8"))
    item = saved_item(load_model("llama3-70b").architecture, shards, work)
    assert item.formula == (
        "80 layers × 8,192 tokens × 16,384 bytes / tensor=8 (input); "
        "tokens: microbatch 128 / (data=2 × fsdp=32) × sequence 4,096"
    )


def test_a_model_of_unknown_architecture_has_no_activations():
    tree = Model(name="tree", groups=())
    plan = shardlab.plan(
        tree,
        "data=1",
        strategy="data-parallel",
        optimizer="adamw",
        workload=Workload(batch=1, sequence=1),
    )
    assert plan.bytes_of("activations") == 0
