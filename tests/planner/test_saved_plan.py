"""Saved plans: byte for byte the same, written atomically, and no file can do harm."""

from __future__ import annotations

import copy
import json
import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab._files import atomic_write
from shardlab._files.atomic_write import write_atomically
from shardlab.errors import InvalidPlan, LabError
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.planner.plan import FORMAT_VERSION
from shardlab.planner.plan_text import plan_text
from shardlab.planner.rules.rules_file import rules_text
from shardlab.planner.snapshots import saved_plan as saved
from shardlab.planner.snapshots.golden_file import rules_of_plan
from shardlab.planner.snapshots.saved_plan import canonical_text, load_plan, parse_plan, save_plan

SAVED = plan(
    "llama3-8b",
    "fsdp=4,tensor=16",
    strategy="fsdp+tensor",
    hardware="tpu-v5e",
    optimizer="adamw",
    workload=Workload(batch=64, sequence=4096),
)
TEXT = canonical_text(SAVED)
DATA = json.loads(TEXT)


def test_a_saved_plan_round_trips(tmp_path):
    save_plan(SAVED, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")
    assert canonical_text(loaded) == TEXT == (tmp_path / "plan.json").read_text("utf-8")
    assert loaded.bytes_per_device == SAVED.bytes_per_device
    assert loaded.findings == SAVED.findings
    assert {row.path: row.arrays for row in loaded.rows} == {
        row.path: row.arrays for row in SAVED.rows
    }
    assert loaded.mesh == (("fsdp", 4), ("tensor", 16))  # in its order


def test_every_field_of_a_plan_is_in_the_schema():
    """A new field of the record must be added to the schema of the file too."""
    assert parse_plan(TEXT, "plan.json").to_json()["rows"] == DATA["rows"]
    assert SAVED.findings, "a plan with findings, so that their schema is tested"
    assert SAVED.items
    assert SAVED.rules


RULES = {
    "rules": [("embed", "tensor"), ("up|gate", "..., tensor"), ("nothing", "")],
    "specs": {"lm_head.weight": "tensor, (fsdp,)"},
    "logical": [("heads", ("tensor", "fsdp")), ("embed", None)],
}


def test_user_rules_are_saved_in_their_order_of_precedence():
    original = plan("llama3-8b", "fsdp=4,tensor=2", rules=RULES)
    loaded = parse_plan(canonical_text(original), "plan.json")
    assert json.loads(canonical_text(original))["rules"] == [
        {"path": "lm_head.weight", "spec": ["tensor", "fsdp"]},
        {"pattern": "embed", "spec": ["tensor"]},
        {"pattern": "up|gate", "spec": ["...", "tensor"]},
        {"pattern": "nothing", "spec": []},
        {"logical": "heads", "axes": ["tensor", "fsdp"]},
        {"logical": "embed", "axes": []},
    ]
    assert loaded.rules == original.rules
    # and they are rules loaded, which give the same plan
    rules = rules_of_plan(loaded)
    assert rules == rules_of_plan(original)
    assert plan("llama3-8b", "fsdp=4,tensor=2", rules=rules).rows == original.rows


def test_the_semantics_of_logical_rules_are_saved():
    rules = {"logical": [("embed", ("fsdp", "tensor"))], "logical_semantics": "nnx"}
    original = plan("llama3-8b", "fsdp=4,tensor=2", rules=rules)
    loaded = parse_plan(canonical_text(original), "plan.json")
    assert rules_of_plan(loaded).semantics == "nnx"


def test_counts_are_saved_as_numbers_and_switches_as_booleans():
    workload = Workload(batch=64, sequence=4096, microbatch=8, remat=4, flash=False)
    original = plan("llama3-8b", "fsdp=4", strategy="fsdp", optimizer="adam", workload=workload)
    choices = json.loads(canonical_text(original))["choices"]
    assert choices == {
        "activation_dtype": "bf16",
        "batch": 64,
        "flash": False,
        "microbatch": 8,
        "optimizer": "adam",
        "remat": 4,
        "sequence": 4096,
        "strategy": "fsdp",
    }
    options = "sequence 4,096; microbatch 8; remat 4; activation dtype bf16; flash no"
    assert options in plan_text(original, 200)


def test_a_golden_file_has_no_path_of_this_machine(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rules]]\npath = 'nothing'\nspec = ''\n")
    original = plan("llama3-8b", "fsdp=4", rules=str(rules))
    assert str(original.findings[0].where) == f"{rules}:1"
    assert str(tmp_path) not in canonical_text(original)
    assert '"file": "rules.toml"' in canonical_text(original)


def test_the_text_is_sorted_json_without_anything_specific_to_the_machine():
    paths = [row["path"] for row in DATA["rows"]]
    assert paths == sorted(paths)
    assert list(DATA["choices"]) == sorted(DATA["choices"])
    assert DATA["source"] == ""
    assert TEXT.endswith("}\n")
    assert str(Path(__file__).parents[2]) not in TEXT


def test_an_interruption_leaves_only_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "plan.json"
    file.write_text("old")

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_write.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_plan(SAVED, file)
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_writing_keeps_symlinks_and_permissions(tmp_path):
    file, link = tmp_path / "real.json", tmp_path / "link.json"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


# --- invalid files ---


def rejected(text, match):
    with pytest.raises(InvalidPlan, match=match) as raised:
        parse_plan(text, "old.json")
    assert raised.value.where.startswith("old.json")
    assert raised.value.fix
    return raised.value


def changed_text(*path, to):
    data = copy.deepcopy(DATA)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(data)


@pytest.mark.parametrize("n", [0, 1, 100, len(TEXT) // 2, len(TEXT) - 3])
def test_a_truncated_file_is_rejected(n):
    assert "line " in rejected(TEXT[:n], "truncated|not JSON").where


def test_a_newer_file_is_rejected():
    newer = changed_text("format_version", to=FORMAT_VERSION + 1)
    rejected(newer, "saved by a newer shardlab: its format version is 2, and this version reads up")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[]", "it has no format"),
        ("3", "it has no format"),
        ('{"format": "shardlab trace"}', "its format is 'shardlab trace', not 'shardlab plan'"),
        ('{"format": ["x"]}', r"its format is \['x'\]"),
        ('{"format": "shardlab plan"}', "format_version is None"),
        ('{"format": "shardlab plan", "format_version": true}', "format_version is True"),
        ('{"format": "shardlab plan", "format_version": 1}', "'model' is missing"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "nested too deeply|truncated"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_a_file_that_is_not_a_plan_is_rejected(text, match):
    rejected(text, match)


@pytest.mark.parametrize(
    ("path", "to", "place", "match"),
    [
        (("model",), 3, "at model", "found 3, expected text"),
        (("mesh", "fsdp"), 0, "at mesh.fsdp", "an integer of at least 1"),
        (("mesh", "fsdp"), True, "at mesh.fsdp", "found True, expected an integer"),
        (("mesh",), [], "at mesh", "an object"),
        (("n_parameters",), -1, "at n_parameters", "found -1"),
        (("n_parameters",), 1e9, "at n_parameters", "found 1000000000.0"),
        (("n_parameters",), 10**40, "at n_parameters", "an integer of at least 0"),
        (("room", "headroom"), 1, "at room.headroom", "a fraction from 0 to 1"),
        (("room", "more"), 1, "at room", "the key 'more', which no plan has"),
        (("rows", 0, "held"), [], r"at rows\[0\].held", "an empty list"),
        (("rows", 1, "held", 0, "kind"), "x", r"rows\[1\].held\[0\].kind", "one of parameters"),
        (("rows", 1, "held", 0, "spec"), [3], r"held\[0\].spec\[0\]", "a mesh axis name"),
        (("rows", 1, "held", 0, "n_copies"), 0, r"held\[0\].n_copies", "at least 1"),
        (("rows", 0, "axes"), ["a"] * 200, r"at rows\[0\].axes", "a list of 200"),
        (("rules", 0), ["a"], r"at rules\[0\]", "a rule with a pattern, a path or"),
        (("rules", 0), {"pattern": "a", "path": "b"}, r"at rules\[0\]", "a rule with a pattern"),
        (("rules", 0), {"pattern": "a", "spec": 3}, r"at rules\[0\].spec", "a list"),
        (("rules", 0), {"logical": "a", "axes": [None]}, r"rules\[0\].axes\[0\]", "text"),
        (("findings", 0, "severity"), "bad", r"at findings\[0\].severity", "one of error"),
        (("choices", "optimizer"), None, "at choices.optimizer", "found None, expected an integer"),
        (("choices", "batch"), -1, "at choices.batch", "an integer"),
        (("room", "headroom"), 10**400, "at room.headroom", "a fraction from 0 to 1"),
    ],
)
def test_the_place_of_an_invalid_value_is_named(path, to, place, match):
    error = rejected(changed_text(*path, to=to), match)
    assert re.search(place, error.where)


@pytest.mark.parametrize(
    ("path", "to", "match"),
    [
        (("rows", 0, "held", 0, "spec"), ["nope"], "names 'nope', which the mesh does not have"),
        (("rows", 0, "held", 0, "shard_shape"), [1], "different lengths"),
        (("bytes_per_device", "total"), 1, "bytes_per_device.total is 1, but its parts add up to"),
    ],
)
def test_a_file_that_contradicts_itself_is_rejected(path, to, match):
    rejected(changed_text(*path, to=to), match)


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"\x00" * 100])
def test_a_binary_file_is_rejected(tmp_path, content):
    (tmp_path / "old.json").write_bytes(content)
    with pytest.raises(InvalidPlan, match=r"not text|not JSON"):
        load_plan(tmp_path / "old.json")


def test_an_endless_file_and_a_folder_are_rejected(monkeypatch, tmp_path):
    monkeypatch.setattr(saved, "MAX_FILE_BYTES", 1000)
    (tmp_path / "large.json").write_bytes(b" " * 1001)
    with pytest.raises(InvalidPlan, match="more than 1,000 bytes"):
        load_plan(tmp_path / "large.json")
    for path in ("/dev/zero", tmp_path):
        with pytest.raises(InvalidPlan, match="it is a folder or a device"):
            load_plan(path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_file_with_any_value_replaced_is_read_or_rejected(data):
    """Any value anywhere gives a plan that can be printed, or a LabError."""
    changed = copy.deepcopy(DATA)
    inner, key = changed, None
    for _ in range(data.draw(st.integers(1, 6))):
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(inner[key], (dict, list)):
            break
        parent, inner = inner, inner[key]
    else:
        inner = parent
    values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    if key is not None and (isinstance(inner, dict) or isinstance(key, int)):
        try:
            inner[key] = data.draw(values | st.lists(values, max_size=2))
        except (IndexError, KeyError):
            return
    try:
        read = parse_plan(json.dumps(changed), "old.json")
    except LabError:
        return
    assert str(read)
    assert read.svg().endswith("</svg>")


@pytest.mark.parametrize("strategy", ["fsdp+expert", "fsdp+tensor", "fsdp+expert+pipeline"])
@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v3-main"])
def test_the_rules_file_of_a_strategy_gives_back_its_plan(name, strategy, tmp_path):
    """With stacked tensors too: the file says which are in one array."""
    mesh, rules_file = "fsdp=4,expert=2,tensor=2,stage=2", tmp_path / "rules.toml"
    original = plan(name, mesh, strategy=strategy)
    rules_file.write_text(rules_text(rules_of_plan(original)))
    by_rules = plan(name, mesh, rules=rules_file)

    def specs(some_plan):
        return [(row.path, row.parameter.shape, row.parameter.spec) for row in some_plan.rows]

    assert sorted(specs(by_rules)) == sorted(specs(original))
    assert by_rules.bytes_of("parameters") == original.bytes_of("parameters")


def test_stacking_of_rules_and_of_the_user_is_combined():
    original = plan("mixtral-8x7b", "fsdp=4", rules={"stack": "experts"}, stack="layers")
    assert (original.choices["stack"], rules_of_plan(original).stack) == ("all", "all")
    assert "stack" not in plan("llama3-8b", "fsdp=4", stack="experts").choices


def test_a_file_of_an_older_version_is_read():
    """Without the fields that newer versions add; rows have only the text of their rule."""
    rules = {
        "rules": [("embed", "tensor"), ("up|gate", "..., tensor")],
        "specs": {"lm_head.weight": "x"},
    }
    original = plan("llama3-8b", "fsdp=4,tensor=2", rules=rules)
    data = json.loads(canonical_text(original))
    assert {row.pop("rule_index", None) for row in data["rows"]} == {None, 0, 1, 2}
    data["choices"]["measures"] = "unknown"
    loaded = parse_plan(json.dumps(data), "old.json")
    assert {row.path: row.rule_index for row in loaded.rows} == {
        row.path: row.rule_index for row in original.rows
    }
    assert loaded.choices["architecture"] == "unknown"
    by_strategy = json.loads(TEXT)
    assert by_strategy.pop("derived_rules") is True
    assert parse_plan(json.dumps(by_strategy), "old.json").has_derived_rules


def test_a_rule_index_without_its_rule_is_rejected():
    rejected(changed_text("rows", 0, "rule_index", to=99), "there is no such rule")
