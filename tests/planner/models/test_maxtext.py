"""MaxText's sharding dumps: paths, specs and shapes, and invalid files."""

from __future__ import annotations

import copy
import json

import pytest

from shardlab.errors import InvalidModel, InvalidPlan, InvalidRules, InvalidType
from shardlab.planner.make_plan import plan
from shardlab.planner.models.load import load_model
from shardlab.planner.snapshots.golden_file import load_golden, load_specs
from shardlab.sharding.spec import Spec

MESH = {"axis_names": ["data", "fsdp", "tensor"], "shape": {"data": 1, "fsdp": 4, "tensor": 2}}


def array(spec, shape):
    return {"mesh": MESH, "partition_spec": spec, "shape": shape}


# The form of MaxText's tests/utils/sharding_dump.py: names of tree paths, a train state in Linen.
NAMED = {
    ".step": array([], []),
    ".params/['params']/['decoder']/['layers_0']/['mlp']/['wo']/['kernel']": array(
        ["tensor", ["fsdp", "data"]], [64, 16]
    ),
    ".params/['params']/['decoder']/['layers_1']/['mlp']/['wo']/['kernel']": array(
        ["tensor", ["fsdp", "data"]], [64, 16]
    ),
    ".params/['params']/['token_embedder']/['embedding']": array([None, "fsdp"], [96, 16]),
    ".opt_state/[0]/.count": array([], []),
    ".opt_state/[0]/.mu/['params']/['token_embedder']/['embedding']": array(
        [None, "fsdp"], [96, 16]
    ),
}
LOGICAL = {
    name: {"partition_spec": spec, "shape": NAMED[name]["shape"]}
    for name, spec in zip(
        NAMED,
        ([], ["mlp", "embed"], ["mlp", "embed"], ["vocab", "embed"], [], ["vocab", "embed"]),
        strict=True,
    )
}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "qwen" / "v6e-8" / "slice_1" / "rule_default"
    folder.mkdir(parents=True)
    (folder / "named_shardings.json").write_text(json.dumps(NAMED, indent=2))
    (folder / "logical_shardings.json").write_text(json.dumps(LOGICAL, indent=2))
    return folder


def test_the_file_is_a_model_with_its_specs_axes_and_mesh(folder):
    model = load_model(folder / "named_shardings.json")
    assert model.name == "qwen"
    assert model.details["mesh"] == "data=1,fsdp=4,tensor=2"
    actual = {
        group.name: (group.n_tensors, group.shape, group.spec, group.axes) for group in model.groups
    }
    assert actual == {
        "decoder/layers_*/mlp/wo/kernel": (
            2,
            (64, 16),
            Spec("tensor", ("fsdp", "data")),
            ("mlp", "embed"),
        ),
        "token_embedder/embedding": (1, (96, 16), Spec(None, "fsdp"), ("vocab", "embed")),
    }
    assert "no dtypes" in model.notes[0]


def test_logical_names_alone_are_a_model_whose_axes_they_name(folder):
    model = load_model(folder / "logical_shardings.json")
    assert [group.axes for group in model.groups] == [("mlp", "embed"), ("vocab", "embed")]
    assert all(group.spec is None for group in model.groups)


def test_the_plan_of_the_file_has_its_specs_and_equals_it(folder):
    file = folder / "named_shardings.json"
    result = plan(load_model(file), "data=1,fsdp=4,tensor=2", optimizer="adam")
    assert {row.path: str(row.parameter.spec) for row in result.rows} == {
        "decoder/layers_*/mlp/wo/kernel": "P('tensor', ('fsdp', 'data'))",
        "token_embedder/embedding": "P(None, 'fsdp')",
    }
    comparison = load_golden(file).compare(result)
    assert comparison.same
    assert comparison.n_compared == 3


def test_the_mesh_is_the_files_own_where_none_is_given(folder):
    file = str(folder / "named_shardings.json")
    assert plan(file).to_json() == plan(file, "data=1,fsdp=4,tensor=2").to_json()
    with pytest.raises(
        InvalidType, match="No mesh was given, and 'llama3-8b' does not name one"
    ) as caught:
        plan("llama3-8b")
    assert "fsdp=4,tensor=2" in caught.value.fix


def test_specs_by_path_are_rules(folder):
    rules = load_specs(folder / "named_shardings.json")
    assert len(rules.specs) == 3
    bare = load_model(folder / "logical_shardings.json")
    result = plan(bare, "data=1,fsdp=4,tensor=2", rules=rules)
    assert load_golden(folder / "named_shardings.json").compare(result).same


def test_a_plan_with_another_spec_shape_mesh_or_tensor_differs(folder):
    golden = load_golden(folder / "named_shardings.json")
    model = load_model(folder / "named_shardings.json")
    rules = {"rules": [("wo", "fsdp"), (".*", "None,fsdp")]}
    result = plan(model, "data=2,fsdp=4,tensor=2", rules=rules, optimizer="adam")
    actual = {(change.name, change.old, change.new) for change in golden.compare(result).changes}
    assert actual == {
        ("mesh", "data=1,fsdp=4,tensor=2", "data=2,fsdp=4,tensor=2"),
        (
            "decoder/layers_0/mlp/wo/kernel and 1 more",
            "P('tensor', ('fsdp', 'data'))",
            "P('fsdp')",
        ),
    }


def test_a_plan_of_another_model_is_rejected_by_name(folder):
    golden = load_golden(folder / "named_shardings.json")
    with pytest.raises(InvalidPlan, match="No tensor of the plan has a path of the file"):
        golden.compare(plan("llama3-8b", "data=1"))


def test_logical_names_are_no_rules(folder):
    with pytest.raises(InvalidRules, match="logical names"):
        load_specs(folder / "logical_shardings.json")


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("partition_spec", "data", "The partition_spec is 'data'"),
        ("partition_spec", [3], r"The partition_spec is \[3\]"),
        ("partition_spec", [["data", None]], "The partition_spec is"),
        ("partition_spec", [None] * 100, "The partition_spec is"),
        ("shape", [-1, 4], r"The shape is \[-1, 4\]"),
        ("shape", [1.5, 4], "The shape is"),
        ("shape", [True, 4], "The shape is"),
        ("shape", "16x4", "The shape is '16x4'"),
        ("mesh", {"axis_names": ["a"], "shape": {}}, "The mesh is"),
        ("mesh", {"axis_names": ["a"], "shape": {"a": 3}}, "different meshes"),
        ("mesh", 3, "The mesh is 3"),
    ],
)
def test_a_damaged_entry_is_named(tmp_path, key, value, match):
    data = copy.deepcopy(NAMED)
    name = list(data)[3]
    data[name][key] = value
    file = tmp_path / "named_shardings.json"
    file.write_text(json.dumps(data))
    for load, error in (
        (load_model, InvalidModel),
        (load_golden, InvalidPlan),
        (load_specs, InvalidRules),
    ):
        with pytest.raises(error, match=match) as raised:
            load(file)
        assert "token_embedder" in raised.value.where or "different meshes" in match


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"a": {"partition_spec": []}, "b": 3}'])
def test_a_file_that_is_none_of_maxtexts_is_rejected(tmp_path, text):
    file = tmp_path / "named_shardings.json"
    file.write_text(text)
    for load, error in ((load_model, InvalidModel), (load_golden, InvalidPlan)):
        with pytest.raises(error):
            load(file)
    with pytest.raises((InvalidRules, InvalidPlan)):
        load_specs(file)


def test_a_spec_longer_than_its_array_is_a_finding_or_an_error_never_a_crash(tmp_path):
    data = copy.deepcopy(NAMED)
    data[list(data)[3]]["shape"] = [96]
    file = tmp_path / "named_shardings.json"
    file.write_text(json.dumps(data))
    try:
        result = plan(load_model(file), "data=1,fsdp=4,tensor=2")
    except InvalidModel:
        return
    assert str(result)
