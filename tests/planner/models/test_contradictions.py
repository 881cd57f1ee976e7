"""Architecture and tensors: a config of another model is detected, the right one never is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.models.checkpoints import write_tensors
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.architecture import count_layers, find_contradictions
from shardlab.planner.models.load import load_model
from shardlab.planner.models.presets import load_preset, preset_names
from shardlab.planner.strategies.layer_stack import stack_model
from shardlab.planner.tensor_group import parse_tensor_group
from shardlab.sharding.dtype import parse_dtype

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 320,
}
TENSORS = {
    "model.embed_tokens.weight": (320, 64),
    **{f"model.layers.{n}.self_attn.k_proj.weight": (16, 64) for n in range(4)},
    **{f"model.layers.{n}.mlp.up_proj.weight": (96, 64) for n in range(4)},
}


@pytest.mark.parametrize("name", preset_names())
def test_published_architectures_agree_with_published_tensors(name):
    model = load_preset(name)
    assert find_contradictions(model.groups, model.architecture) == ()
    for over in ("layers", "experts"):
        arrays = stack_model(model, over)
        assert find_contradictions(arrays.groups, model.architecture) == ()


@pytest.mark.parametrize(
    ("measure", "value", "message"),
    [
        ("layers", 33, "layers 33, and the tensors have 32"),
        ("layers", 24, "layers 24, and the tensors have 32"),
        ("hidden", 2048, "hidden 2048, and the tensors have 4096"),
        ("heads", 16, "heads × head_dim 2048, and the tensors have 4096"),
        ("kv_heads", 32, "kv_heads × head_dim 4096, and the tensors have 1024"),
        ("vocab", 32000, "vocab 32000, and the tensors have 128256"),
    ],
)
def test_each_field_is_compared(measure, value, message):
    model = load_preset("llama3-8b")
    architecture = replace(model.architecture, **{measure: value})
    assert find_contradictions(model.groups, architecture) == (message,)


def test_padded_rows_of_an_embedding_and_further_layers_are_no_contradiction():
    model = load_preset("llama3-8b")
    architecture = replace(model.architecture, vocab=128_000, layers=31)
    assert find_contradictions(model.groups, architecture) == ()


def test_unknown_names_contradict_nothing():
    groups = [parse_tensor_group("thing.{0..7}.matrix", (8, 4), parse_dtype("bf16"))]
    assert find_contradictions(groups, load_preset("llama3-8b").architecture) == ()


def test_layers_are_counted_for_each_tower():
    bf16 = parse_dtype("bf16")
    groups = [
        parse_tensor_group("text.layers.{0..7}.up", (8, 4), bf16),
        parse_tensor_group("text.layers.8.up", (8, 6), bf16),
        parse_tensor_group("vision.layers.{0..2}.experts.{0..4}.up", (8, 4), bf16),
    ]
    assert count_layers(groups) == {"text": 9, "vision": 3}


def test_a_config_of_another_model_is_noted_and_not_used(tmp_path):
    write_tensors(tmp_path / "model.safetensors", TENSORS)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    assert load_model(tmp_path).architecture.layers == 4
    config.write_text(json.dumps(CONFIG | {"num_hidden_layers": 99, "hidden_size": 8}))
    model = load_model(tmp_path)
    assert model.architecture is None
    assert model.notes == (
        "config.json belongs to another model, so activations and caches are not estimated: "
        "it says layers 99, and the tensors have 4; it says hidden 8, and the tensors have 64; "
        "it says kv_heads × head_dim 2, and the tensors have 16.",
    )
    result = plan(model, "x=2", optimizer="adam", workload=Workload(batch=8, sequence=128))
    assert result.bytes_of("activations") == 0
    assert any("so activations are not counted" in note for note in result.notes)
