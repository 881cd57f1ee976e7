"""Keras LayoutMap: layouts of Python and JSON files, and each key that matches no variable."""

from __future__ import annotations

import json

import pytest

from planner.configs.sample_files import KERAS, KERAS_MODEL
from shardlab.errors import InvalidRules, InvalidRunConfig
from shardlab.planner.configs.keras_layouts import (
    check_layouts,
    parse_layouts,
    read_python_layouts,
)
from shardlab.planner.models.table import parse_table
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

MODEL = parse_table(KERAS_MODEL, "keras.toml")


def test_layouts_of_a_program_are_read_without_running_it():
    layouts = read_python_layouts(KERAS, "layouts.py")
    assert layouts.mesh == Mesh(batch=2, model=4)
    assert [(rule.pattern, rule.spec) for rule in layouts.rules.rules] == [
        ("token_embedding/embeddings", Spec("model", "batch")),
        (
            "decoder_block.*attention.*(query|key|value)/kernel",
            Spec("model", None, None),
        ),
        ("decoder_blok.*ffw.*kernel", Spec(None, "model")),
    ]
    assert layouts.rules.rules[1].where == "layouts.py:11"
    assert layouts.notes == ("Layouts that the program computes are not read: line 13.",)


def test_each_key_that_matches_no_variable_is_named_with_the_nearest_path():
    assert check_layouts(read_python_layouts(KERAS, "layouts.py").rules, MODEL) == (
        "Layout 3, 'decoder_blok.*ffw.*kernel', matches no variable; the nearest path is "
        "'decoder_block_0/ffw_gating/kernel'.",
    )


def test_more_than_a_few_unmatched_keys_are_all_listed():
    data = {f"block_{n}/quary/kernel": ["model"] for n in range(9)}
    problems = check_layouts(parse_layouts(data, "x.json").rules, MODEL)
    assert len(problems) == 9
    assert all("decoder_block_0/attention/query/kernel" in problem for problem in problems)


def test_two_keys_for_one_variable_are_an_error_of_keras():
    data = {"ffw.*kernel": [None, "model"], "decoder_block.*gating": [None, "model"]}
    problems = check_layouts(parse_layouts(data, "x.json").rules, MODEL)
    assert problems == (
        "Keras raises an error for 'decoder_block_0/ffw_gating/kernel': 'ffw.*kernel' and "
        "'decoder_block.*gating' both match it.",
    )


def test_a_key_that_is_the_path_itself_takes_precedence():
    data = {"token.*": ["model", None], "token_embedding/embeddings": [None, "model"]}
    assert check_layouts(parse_layouts(data, "x.json").rules, MODEL) == ()


def test_layouts_of_json_may_have_a_mesh():
    text = '{"layout_map": {"kernel": [null, "model"]}, "mesh": {"batch": 2, "model": 4}}'
    layouts = parse_layouts(json.loads(text), "x.json")
    assert (layouts.mesh, layouts.rules.rules[0].spec) == (
        Mesh(batch=2, model=4),
        Spec(None, "model"),
    )


@pytest.mark.parametrize(
    ("data", "error", "what"),
    [
        ([], InvalidRunConfig, "[] is not a mapping of layouts."),
        ({}, InvalidRunConfig, "There are no layouts."),
        ({"layout_map": 3}, InvalidRunConfig, "There are no layouts."),
        ({"kernel": "model"}, InvalidRunConfig, "The layout of 'kernel' is 'model'."),
        ({"kernel": [3]}, InvalidRules, "Invalid spec"),
        ({"(": ["model"]}, InvalidRules, "Invalid pattern"),
        ({"layout_map": {"k": ["m"]}, "mesh": 3}, InvalidRunConfig, "The mesh is 3"),
        ({f"k{n}": ["m"] for n in range(3000)}, InvalidRules, "There are 3,000 rules."),
    ],
)
def test_mistakes_in_layouts_are_named(data, error, what):
    with pytest.raises(error) as raised:
        parse_layouts(data, "x.json")
    assert what in raised.value.what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = 1", "The file assigns no layout to a LayoutMap."),
        ("x = (", "The file is not valid Python"),
        ('other["kernel"] = (None,)', "The file assigns no layout to a LayoutMap."),
        ("(" * 5000, "The file is not valid Python"),
    ],
)
def test_a_program_without_layouts_is_rejected(text, what):
    with pytest.raises(InvalidRunConfig) as raised:
        read_python_layouts(text, "x.py")
    assert raised.value.what.startswith(what)
