"""Dimension meanings: what dimensions are for, inferred from names."""

from __future__ import annotations

import pytest

from shardlab.planner.models.presets import load_preset, preset_names
from shardlab.planner.strategies.dim_meaning import dim_meanings_of, meanings_from_path
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.dtype import parse_dtype

BF16 = parse_dtype("bf16")


@pytest.mark.parametrize("name", preset_names())
def test_every_matrix_of_every_preset_has_a_meaning(name):
    groups = load_preset(name).groups
    unknown = [
        group.name for group in groups if len(group.shape) > 1 and not dim_meanings_of(group)
    ]
    assert unknown == []


@pytest.mark.parametrize("name", preset_names())
def test_heads_mlp_and_vocab_of_a_preset_have_the_sizes_its_architecture_says(name):
    model = load_preset(name)
    architecture = model.architecture
    for group in model.groups:
        if "vision" in group.name or "weight_scale" in group.name or "shared" in group.name:
            continue
        for meaning, size in zip(dim_meanings_of(group) or (), group.shape, strict=False):
            if meaning == "vocab":
                assert size == architecture.vocab, group.name
            if meaning == "embed":
                assert size == architecture.hidden, group.name
            if meaning == "mlp":
                assert size in (architecture.ffn, architecture.dense_ffn), group.name
            if meaning == "heads" and not architecture.kv_lora_rank:
                assert size == architecture.heads * architecture.head_dim, group.name
            if meaning == "kv_heads":
                assert size == architecture.kv_heads * architecture.head_dim, group.name


@pytest.mark.parametrize(
    ("path", "shape", "axes"),
    [
        # torch: [out, in]
        ("model.layers.3.self_attn.k_proj.bias", (6,), ("kv_heads",)),
        ("layers.0.attention.wo.weight", (4, 6), ("embed", "heads")),
        ("layers.0.feed_forward.w2.weight", (4, 9), ("embed", "mlp")),
        ("transformer.h.0.mlp.c_fc.weight", (4, 16), ("embed", "mlp")),  # GPT-2 is [in, out]
        ("transformer.h.0.mlp.c_fc.weight", (16, 4), ("mlp", "embed")),  # and nanoGPT [out, in]
        ("transformer.h.0.attn.c_attn.weight", (4, 12), ("embed", "qkv")),
        ("transformer.h.0.attn.c_attn.weight", (12, 4), ("qkv", "embed")),
        ("transformer.h.0.attn.c_attn.bias", (12,), ("qkv",)),
        ("transformer.h.0.mlp.c_fc.bias", (16,), ("mlp",)),
        ("h/0/mlp/c_fc/kernel", (4, 16), ("embed", "mlp")),  # the same in Flax
        ("h/0/mlp/c_proj/kernel", (16, 4), ("mlp", "embed")),
        ("h/mlp/c_fc/kernel", (3, 4, 16), ("layers", "embed", "mlp")),
        ("h/0/attn/c_attn/kernel", (4, 12), ("embed", "qkv")),
        ("model.layers.3.mlp.gate.weight", (8, 64), (None, "embed")),  # a router
        ("model.layers.3.self_attn.q_a_proj.weight", (6, 8), ("q_lora_up_proj", "embed")),
        ("model.layers.3.self_attn.q_b_proj.weight", (24, 6), ("heads", "q_lora")),
        (
            "model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
            (5, 8),
            ("kv_lora_up_proj", "embed"),
        ),
        ("model.layers.3.self_attn.kv_b_proj.weight", (32, 4), ("heads", "kv_lora")),
        # linen and NNX: [in, out], attention in three axes
        ("layers_0/attn/query/kernel", (4, 2, 3), ("embed", "heads", "head_dim")),
        ("layers/0/attn/value/bias", (2, 3), ("kv_heads", "head_dim")),
        ("layers.0.attn.out.kernel.value", (2, 3, 4), ("heads", "head_dim", "embed")),
        ("block/mlp/gate/kernel", (4, 9), ("embed", "mlp")),  # no router: as wide as the rest
        ("block/mlp/down/kernel", (9, 4), ("mlp", "embed")),
        ("embed/embedding", (100, 4), ("vocab", "embed")),
        ("norm/scale", (4,), ("norm",)),
        # MaxText, scanned: layers on array axis 1
        ("params/token_embedder/embedding", (100, 4), ("vocab", "embed")),
        ("params/decoder/logits_dense/kernel", (4, 100), ("embed", "vocab")),
        ("params/decoder/decoder_norm/scale", (4,), ("norm",)),
        ("decoder/layers/pre_self_attention_layer_norm/scale", (4, 7), ("norm", "layers")),
        (
            "decoder/layers/self_attention/query/kernel",
            (4, 7, 2, 3),
            ("embed", "layers", "heads", "head_dim"),
        ),
        ("decoder/layers/mlp/wo/kernel", (9, 7, 4), ("mlp", "layers", "embed")),
        (
            "decoder/moe_layers/M_0/MoeBlock_0/wo",
            (5, 7, 9, 4),
            ("experts", "layers", "mlp", "embed"),
        ),
        ("decoder/dense_layers/mlp/wo/kernel", (9, 1, 4), ("mlp", "layers", "embed")),
        (
            "decoder/moe_layers/self_attention/wkv_b/kernel",
            (5, 7, 2, 8),
            ("kv_lora", "layers", "heads", "head_dim"),
        ),
        ("decoder/layers/MoeBlock_0/wi_0", (5, 7, 4, 9), ("experts", "layers", "embed", "mlp")),
        ("decoder/layers/MoeBlock_0/gate/kernel", (4, 7, 5), ("embed", "layers", None)),
        # stacked elsewhere: layers first
        ("blocks/mlp/up/kernel", (7, 4, 9), ("layers", "embed", "mlp")),
        # nothing that anybody knows
        ("encoder/conv/kernel", (3, 3, 8, 16), None),
        ("Dense_0/kernel", (4, 9), None),
        ("weight", (4, 9), None),
        ("q_proj.weight", (), None),
        ("", (4,), None),
    ],
)
def test_names_of_public_models_tell_what_their_axes_are(path, shape, axes):
    assert meanings_from_path(path, shape) == axes


def test_what_the_author_calls_an_axis_comes_before_its_name():
    group = TensorGroup(
        path_parts=("layers.0.q_proj.kernel",),
        shape=(4, 6),
        dtype=BF16,
        axes=("mlp_moe", "joined_kv"),
    )
    assert dim_meanings_of(group) == ("mlp", "heads")


def test_axes_that_only_the_author_understands_leave_the_name_to_decide():
    group = TensorGroup(
        path_parts=("layers.0.q_proj.kernel",), shape=(4, 6), dtype=BF16, axes=("foo", None)
    )
    assert dim_meanings_of(group) == ("embed", "heads")
