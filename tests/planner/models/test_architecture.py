"""Architectures given to a model whose source has none: for activations and caches."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

import shardlab
from shardlab.cli import main
from shardlab.errors import InvalidModel
from shardlab.planner.advice.advice_text import advice_text
from shardlab.planner.models.architecture import parse_architecture
from shardlab.planner.models.load import load_model
from shardlab.planner.plan_text import plan_headline
from shardlab.planner.snapshots.saved_plan import canonical_text, load_plan

LLAMA = load_model("llama3-8b")
ARCHITECTURE = asdict(LLAMA.architecture)
WORK = {"workload": shardlab.Workload(batch=8, sequence=4096), "hardware": "tpu-v5p"}
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


class Array:
    def __init__(self, shape):
        self.shape, self.dtype = shape, "bf16"


def tree():
    """Return the tensors of Llama as nested dicts, without an architecture."""
    actual = {}
    for group in LLAMA.groups:
        for path in group.paths():
            *above, last = path.split(".")
            position = actual
            for key in above:
                position = position.setdefault(key, {})
            position[last] = Array(group.shape)
    return actual


@pytest.fixture
def files(tmp_path):
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in ARCHITECTURE.items())
    (tmp_path / "plain.toml").write_text(lines, "utf-8")
    (tmp_path / "table.toml").write_text(f"[architecture]\n{lines}", "utf-8")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    return tmp_path


@pytest.mark.parametrize("optimizer", ["none", "adamw"])
def test_a_model_with_a_given_architecture_is_planned_as_one_that_has_it(optimizer):
    options = {"strategy": "fsdp+tensor", "optimizer": optimizer, **WORK}
    ours = shardlab.plan(tree(), "fsdp=8,tensor=2", architecture=ARCHITECTURE, **options)
    theirs = shardlab.plan("llama3-8b", "fsdp=8,tensor=2", **options)
    counted = [
        [(item.name, item.bytes_per_device) for item in plan_result.items]
        for plan_result in (ours, theirs)
    ]
    assert counted[0] == counted[1]
    assert ours.bytes_per_device == theirs.bytes_per_device


@pytest.mark.parametrize("name", ["plain.toml", "table.toml", "config.json"])
def test_an_architecture_is_read_from_files(files, name):
    assert parse_architecture(files / name) == LLAMA.architecture
    assert parse_architecture(str(files / name)) == LLAMA.architecture


def test_the_architecture_of_a_preset_is_given_by_name():
    assert parse_architecture("llama3-8b") == LLAMA.architecture


@pytest.mark.parametrize(("optimizer", "message"), [("adamw", "activations"), ("none", "KV cache")])
def test_what_fits_without_activations_says_so_first(optimizer, message):
    options = {"strategy": "fsdp", "optimizer": optimizer, **WORK}
    result = shardlab.plan(tree(), "fsdp=8", **options)
    assert plan_headline(result).startswith(f"fits ({message} not counted): ")
    with_architecture = shardlab.plan(tree(), "fsdp=8", architecture="llama3-8b", **options)
    assert plan_headline(with_architecture).startswith("fits: ")


def test_a_saved_plan_still_says_what_was_not_counted(tmp_path):
    result = shardlab.plan(tree(), "fsdp=8", strategy="fsdp", optimizer="adamw", **WORK)
    (tmp_path / "plan.json").write_text(canonical_text(result), "utf-8")
    assert plan_headline(load_plan(tmp_path / "plan.json")) == plan_headline(result)


def test_an_architecture_of_another_model_is_reported():
    second = replace(LLAMA.architecture, layers=7)
    result = shardlab.plan(tree(), "fsdp=8", strategy="fsdp", architecture=second, **WORK)
    assert "layers 7, and the tensors have 32" in " ".join(result.notes)


def test_advice_ranks_by_time_if_an_architecture_is_given(files):
    options = {"batch": 8, "sequence": 4096, "architecture": str(files / "table.toml")}
    best = shardlab.advise(tree(), "tpu-v5p", 8, **options)
    theirs = shardlab.advise("llama3-8b", "tpu-v5p", 8, batch=8, sequence=4096)
    assert best.ranked[0].step == theirs.ranked[0].step
    assert f"--architecture {files / 'table.toml'}" in best.command


def test_advice_without_an_architecture_tries_no_remat_and_says_what_is_not_counted():
    advice = shardlab.advise(tree(), "tpu-v5p", 8, batch=8, sequence=4096)
    assert {candidate.remat for candidate in (*advice.ranked, *advice.others)} == {"full"}
    text = advice_text(advice)
    assert ", activations not counted" in text.splitlines()[0]
    assert "with the estimated activations" not in text
    assert "architecture= in Python" in " ".join(advice.notes)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "3 is not an architecture"),
        (b"llama3-8b", "is not an architecture"),
        ("", "Unknown architecture ''"),
        ("unknown", "Unknown architecture 'unknown'"),
        ("gone.toml", "gone.toml"),
        ({}, "'layers' is missing"),
        ({**ARCHITECTURE, "layers": -1}, "'layers' is -1"),
        ({**ARCHITECTURE, "layer": 1}, "Unknown key 'layer'"),
    ],
)
def test_what_is_not_an_architecture_is_reported(source, message):
    with pytest.raises(InvalidModel, match=message):
        shardlab.plan(tree(), "fsdp=8", architecture=source)


@pytest.mark.parametrize("text", ["layers = ", "[1]", "\x00", "architecture = 3"])
def test_a_file_that_has_other_content_is_reported(tmp_path, text):
    for name in ("a.toml", "a.json"):
        (tmp_path / name).write_text(text, "utf-8")
        with pytest.raises(InvalidModel, match=r"is not|missing|Unknown key"):
            parse_architecture(tmp_path / name)


def test_the_shell_takes_an_architecture(files, capsys):
    message = ["plan", str(files / "model.json"), "--mesh", "fsdp=8", "--batch", "8"]
    table = {"name": "mine", "tensors": {"layers.{0..31}.mlp.up_proj.weight": "bf16[14336,4096]"}}
    (files / "model.json").write_text(json.dumps(table), "utf-8")
    with pytest.raises(SystemExit, match="0"):
        main([*message, "--sequence", "4096", "--architecture", str(files / "config.json")])
    assert "keys and values" in capsys.readouterr().out
