"""config.json: its architecture is that of the preset; an invalid file is a note."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.models.checkpoints import write_tensors
from shardlab.errors import InvalidModel
from shardlab.planner.model import Architecture
from shardlab.planner.models.hf_config import model_from_config, parse_config
from shardlab.planner.models.load import load_model
from shardlab.planner.models.presets import load_preset


def config(kind, layers, hidden, heads, kv_heads, ffn, vocab, **options):
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **options,
    }


# the keys of the models' own config.json files that an architecture is read from
CONFIGS = {
    "llama3-70b": config("llama", 80, 8192, 64, 8, 28672, 128256, tie_word_embeddings=False),
    "mistral-7b-v0.1": config("mistral", 32, 4096, 32, 8, 14336, 32000),
    "mixtral-8x7b": config(
        "mixtral", 32, 4096, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2
    ),
    "gemma2-9b": config("gemma2", 42, 3584, 16, 8, 14336, 256000, head_dim=256),
    "gemma3-4b": {  # the rest is left out, as it is the default
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
    },
    "gemma3-27b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "head_dim": 128,
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_attention_heads": 32,
            "num_hidden_layers": 62,
            "num_key_value_heads": 16,
            "sliding_window": 1024,
        },
    },
    "qwen2.5-7b": config("qwen2", 28, 3584, 28, 4, 18944, 152064, tie_word_embeddings=False),
    "qwen3-32b": config("qwen3", 64, 5120, 64, 8, 25600, 151936, head_dim=128),
    "qwen3-30b-a3b": config(
        *("qwen3_moe", 48, 2048, 32, 4, 6144, 151936),
        head_dim=128,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        mlp_only_layers=[],
    ),
    "deepseek-v3": config(
        *("deepseek_v3", 61, 7168, 128, 128, 18432, 129280),
        moe_intermediate_size=2048,
        n_routed_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=8,
        first_k_dense_replace=3,
        n_group=8,
        topk_group=4,
        kv_lora_rank=512,
        q_lora_rank=1536,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
    ),
    "kimi-k2": config(
        *("kimi_k2", 61, 7168, 64, 64, 18432, 163840),
        moe_intermediate_size=2048,
        n_routed_experts=384,
        n_shared_experts=1,
        num_experts_per_tok=8,
        first_k_dense_replace=1,
        kv_lora_rank=512,
        q_lora_rank=1536,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
    ),
    "gpt-oss-20b": config(
        *("gpt_oss", 24, 2880, 64, 8, 2880, 201088),
        head_dim=64,
        num_local_experts=32,
        num_experts_per_tok=4,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 12,
        attention_bias=True,
    ),
    "llama4-maverick": {
        "model_type": "llama4",
        "text_config": config(
            *("llama4_text", 48, 5120, 40, 8, 8192, 202048),
            head_dim=128,
            intermediate_size_mlp=16384,
            num_local_experts=128,
            num_experts_per_tok=1,
            interleave_moe_layer_step=2,
            attention_chunk_size=8192,
            no_rope_layers=[1, 1, 1, 0] * 12,
        ),
        "vision_config": {"hidden_size": 1408},
    },
}
# Parameters of a checkpoint besides the language model and its published main part.
VISION_TOWERS = {"gemma3-4b": 419_816_304, "gemma3-27b": 423_060_336}
LLAMA = CONFIGS["llama3-70b"]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_gives_the_architecture_of_the_preset(name):
    assert parse_config(CONFIGS[name]) == load_preset(name).architecture


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_without_weights_has_the_tensors_of_the_published_count(name):
    model = model_from_config(CONFIGS[name], "config.json")
    preset = load_preset("deepseek-v3-main" if name == "deepseek-v3" else name)
    assert model.n_parameters == preset.n_parameters - VISION_TOWERS.get(name, 0)
    assert model.architecture == load_preset(name).architecture


def test_a_folder_with_a_config_alone_is_a_model(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    text = json.dumps({**LLAMA, "torch_dtype": "float32"})
    (folder / "config.json").write_text(text, "utf-8")
    for source in (folder, folder / "config.json"):
        model = load_model(source)
        assert (model.name, model.n_parameters) == ("my-llama", 70_553_706_496)
        assert model.n_bytes == 4 * model.n_parameters
        assert "follow from the sizes" in model.notes[0]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": "bert"}', '{"model_type": 3}'])
def test_a_config_that_is_no_decoder_is_rejected_with_its_file(tmp_path, text):
    file = tmp_path / "config.json"
    file.write_text(text, "utf-8")
    with pytest.raises(InvalidModel) as raised:
        load_model(file)
    assert raised.value.where == str(file)
    assert raised.value.fix


def test_a_shared_expert_counts_as_often_as_it_is_wide():
    actual = parse_config(
        config(
            *("qwen2_moe", 24, 2048, 16, 16, 5632, 151936),
            num_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
        )
    )
    assert (actual.experts, actual.top_k, actual.shared_experts, actual.ffn) == (60, 4, 4, 1408)


def test_a_known_language_model_inside_an_unknown_one_is_read():
    inner = config("mistral", 40, 5120, 32, 8, 32768, 131072, head_dim=128)
    actual = parse_config({"model_type": "mistral3", "text_config": inner, "vision_config": {}})
    assert (actual.layers, actual.head_dim, actual.vocab) == (40, 128, 131072)


def test_what_is_left_out_is_what_transformers_takes():
    left_out = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert parse_config(left_out).kv_heads == 64
    assert parse_config({**LLAMA, "head_dim": None}).head_dim == 128
    assert parse_config({**LLAMA, "head_dim": 96}).head_dim == 96


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "'model_type' is None; supported are llama, "),
        ([], "'model_type' is None"),
        ({"model_type": "mamba"}, "'model_type' is 'mamba'"),
        ({"model_type": ["llama"]}, "'model_type' is ['llama']"),
        ({"model_type": "llama"}, "'num_attention_heads' is None"),
        ({"model_type": "gemma3", "text_config": 3}, "'hidden_size' is None"),
        ({**LLAMA, "num_attention_heads": 0}, "'num_attention_heads' is 0"),
        ({**LLAMA, "num_attention_heads": True}, "'num_attention_heads' is True"),
        ({**LLAMA, "hidden_size": -1}, "'hidden_size' is -1"),
        ({**LLAMA, "hidden_size": 8192.0}, "'hidden_size' is 8192.0"),
        ({**LLAMA, "hidden_size": float("nan")}, "'hidden_size' is nan"),
        ({**LLAMA, "vocab_size": 2**60}, "'vocab_size' is 1152921504606846976"),
        ({**LLAMA, "tie_word_embeddings": "no"}, "'tie_word_embeddings' is 'no'"),
        ({**LLAMA, "num_experts": "8"}, "'num_experts' is '8'"),
        ({**LLAMA, "num_experts": 8}, "'num_experts_per_tok' is None"),
    ],
)
def test_a_config_that_gives_no_architecture_says_why(data, message):
    with pytest.raises(InvalidModel) as raised:
        parse_config(data)
    assert message in raised.value.what


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.none()),
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_a_config_with_values_changed_is_read_or_rejected(name, data):
    changed = json.loads(json.dumps(CONFIGS[name]))
    inner = changed.get("text_config", changed)
    for key in data.draw(st.lists(st.sampled_from(sorted(inner)), max_size=3)):
        inner[key] = data.draw(VALUES)
    try:
        assert isinstance(parse_config(changed), Architecture)
    except InvalidModel as error:
        text = error.what
        assert " is " in text


def folder_with(tmp_path, text):
    write_tensors(tmp_path / "model.safetensors", {"thing": (6, 4)})
    if text is not None:
        (tmp_path / "config.json").write_text(text, "utf-8")
    return load_model(tmp_path)


def test_a_folders_config_is_read(tmp_path):
    model = folder_with(tmp_path, json.dumps(LLAMA))
    assert (model.architecture.layers, model.notes) == (80, ())
    assert load_model(tmp_path / "model.safetensors").architecture == model.architecture


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no config.json"),
        ("", "config.json gives no architecture: "),
        ("[1]", "config.json gives no architecture: 'model_type' is None"),
        ('{"model_type": "mamba"}', "config.json gives no architecture: 'model_type' is 'mamba'"),
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ("[" * 100_000, "config.json gives no architecture: "),
        ("9" * 5000, "config.json gives no architecture: "),
        (" " * 1_000_001, "has 1,000,001 bytes"),
    ],
)
def test_a_config_that_cannot_be_read_is_a_note(tmp_path, text, message):
    model = folder_with(tmp_path, text)
    assert model.architecture is None
    assert message in model.notes[0]


def test_a_config_that_is_no_file_is_a_note(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert "is a folder, a pipe or a device" in folder_with(tmp_path, None).notes[0]
