"""Saved plans: the same to the byte, written whole or not at all, and no file can do harm."""

from __future__ import annotations

import copy
import json
import os
import re
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

MADE = plan(
    "llama3-8b",
    "fsdp=4,tensor=16",
    strategy="fsdp+tensor",
    hardware="tpu-v5e",
    optimizer="adamw",
    workload=Workload(batch=64, sequence=4096),
)
TEXT = canonical_text(MADE)
DATA = json.loads(TEXT)


def test_a_plan_comes_back_as_it_was_saved(tmp_path):
    save_plan(MADE, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert canonical_text(again) == TEXT == (tmp_path / "plan.json").read_text("utf-8")
    assert again.bytes_per_device == MADE.bytes_per_device
    assert again.findings == MADE.findings
    assert {row.path: row.held for row in again.rows} == {row.path: row.held for row in MADE.rows}
    assert again.mesh == (("fsdp", 4), ("tensor", 16))  # in its order


def test_every_field_of_a_plan_is_known_to_the_form():
    """A field that is new in the record must be let in by the form of the file too."""
    assert parse_plan(TEXT, "plan.json").to_json()["rows"] == DATA["rows"]
    assert MADE.findings, "a plan with findings, so that their form is proved"
    assert MADE.items
    assert MADE.rules


RULES = {
    "rules": [("embed", "tensor"), ("up|gate", "..., tensor"), ("nothing", "")],
    "specs": {"lm_head.weight": "tensor, (fsdp,)"},
    "logical": [("heads", ("tensor", "fsdp")), ("embed", None)],
}


def test_rules_that_were_given_are_saved_in_the_order_in_which_they_count():
    made = plan("llama3-8b", "fsdp=4,tensor=2", rules=RULES)
    again = parse_plan(canonical_text(made), "plan.json")
    assert json.loads(canonical_text(made))["rules"] == [
        {"path": "lm_head.weight", "spec": ["tensor", "fsdp"]},
        {"pattern": "embed", "spec": ["tensor"]},
        {"pattern": "up|gate", "spec": ["...", "tensor"]},
        {"pattern": "nothing", "spec": []},
        {"logical": "heads", "axes": ["tensor", "fsdp"]},
        {"logical": "embed", "axes": []},
    ]
    assert again.rules == made.rules
    # and they are rules again, which give the same plan
    rules = rules_of_plan(again)
    assert rules == rules_of_plan(made)
    assert plan("llama3-8b", "fsdp=4,tensor=2", rules=rules).rows == made.rows


def test_whose_reading_of_logical_rules_counts_is_saved():
    rules = {"logical": [("embed", ("fsdp", "tensor"))], "logical_semantics": "nnx"}
    made = plan("llama3-8b", "fsdp=4,tensor=2", rules=rules)
    again = parse_plan(canonical_text(made), "plan.json")
    assert rules_of_plan(again).semantics == "nnx"


def test_counts_are_numbers_and_yes_and_no_are_not_texts():
    workload = Workload(batch=64, sequence=4096, microbatch=8, remat=4, flash=False)
    made = plan("llama3-8b", "fsdp=4", strategy="fsdp", optimizer="adam", workload=workload)
    choices = json.loads(canonical_text(made))["choices"]
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
    said = "sequence 4,096; microbatch 8; remat 4; activation dtype bf16; flash no"
    assert said in plan_text(made, 200)


def test_a_golden_file_names_no_folder_of_this_machine(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rules]]\npath = 'nothing'\nspec = ''\n")
    made = plan("llama3-8b", "fsdp=4", rules=str(rules))
    assert str(made.findings[0].where) == f"{rules}:1"
    assert str(tmp_path) not in canonical_text(made)
    assert '"file": "rules.toml"' in canonical_text(made)


def test_the_text_is_lines_of_json_sorted_by_path_without_facts_of_the_machine():
    paths = [row["path"] for row in DATA["rows"]]
    assert paths == sorted(paths)
    assert list(DATA["choices"]) == sorted(DATA["choices"])
    assert DATA["source"] == ""
    assert TEXT.endswith("}\n")
    assert "/work" not in TEXT


def test_an_interruption_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "plan.json"
    file.write_text("old")

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(saved.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_plan(MADE, file)
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_writing_keeps_a_link_a_link_and_rights_as_they_were(tmp_path):
    file, link = tmp_path / "real.json", tmp_path / "link.json"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


# ------------------------------------------------------------------------------------- bad files


def refused(text, match):
    with pytest.raises(InvalidPlan, match=match) as raised:
        parse_plan(text, "old.json")
    assert raised.value.where.startswith("old.json")
    assert raised.value.fix
    return raised.value


def changed(*path, to):
    data = copy.deepcopy(DATA)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(data)


@pytest.mark.parametrize("n", [0, 1, 100, len(TEXT) // 2, len(TEXT) - 3])
def test_a_file_cut_short_is_told_so(n):
    assert "line " in refused(TEXT[:n], "cut short|not JSON").where


def test_a_newer_file_is_told_so():
    newer = changed("format_version", to=FORMAT_VERSION + 1)
    refused(newer, "saved by a newer shardlab: its format is 2, and this one reads up to 1")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[]", "does not say what format it has"),
        ("3", "does not say what format it has"),
        ('{"format": "shardlab trace"}', "its format is 'shardlab trace', not 'shardlab plan'"),
        ('{"format": ["x"]}', r"its format is \['x'\]"),
        ('{"format": "shardlab plan"}', "format_version is None"),
        ('{"format": "shardlab plan", "format_version": true}', "format_version is True"),
        ('{"format": "shardlab plan", "format_version": 1}', "'model' is missing"),
        ('{"a": 1, "a": 2}', "the name 'a' is given twice"),
        ('{"a": NaN}', "NaN is no number that JSON has"),
        ("[" * 100_000, "nested too deeply|cut short"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON that can be used"),
    ],
)
def test_what_is_no_plan_is_told_so(text, match):
    refused(text, match)


@pytest.mark.parametrize(
    ("path", "to", "place", "match"),
    [
        (("model",), 3, "at model", "3 stands where text was expected"),
        (("mesh", "fsdp"), 0, "at mesh.fsdp", "a whole number from 1 on"),
        (("mesh", "fsdp"), True, "at mesh.fsdp", "True stands where a whole number"),
        (("mesh",), [], "at mesh", "an object"),
        (("n_parameters",), -1, "at n_parameters", "-1 stands"),
        (("n_parameters",), 1e9, "at n_parameters", "1000000000.0 stands"),
        (("n_parameters",), 10**40, "at n_parameters", "a whole number from 0 on"),
        (("room", "headroom"), 1, "at room.headroom", "a share from 0 to 1"),
        (("room", "more"), 1, "at room", "a name 'more' that no plan has"),
        (("rows", 0, "held"), [], r"at rows\[0\].held", "an empty list"),
        (("rows", 1, "held", 0, "kind"), "x", r"rows\[1\].held\[0\].kind", "one of parameters"),
        (("rows", 1, "held", 0, "spec"), [3], r"held\[0\].spec\[0\]", "a mesh axis name"),
        (("rows", 1, "held", 0, "n_copies"), 0, r"held\[0\].n_copies", "from 1 on"),
        (("rows", 0, "axes"), ["a"] * 200, r"at rows\[0\].axes", "a list of 200"),
        (("rules", 0), ["a"], r"at rules\[0\]", "a rule with a pattern, a path or"),
        (("rules", 0), {"pattern": "a", "path": "b"}, r"at rules\[0\]", "a rule with a pattern"),
        (("rules", 0), {"pattern": "a", "spec": 3}, r"at rules\[0\].spec", "a list"),
        (("rules", 0), {"logical": "a", "axes": [None]}, r"rules\[0\].axes\[0\]", "text"),
        (("findings", 0, "severity"), "bad", r"at findings\[0\].severity", "one of error"),
        (("choices", "optimizer"), None, "at choices.optimizer", "None stands where a whole"),
        (("choices", "batch"), -1, "at choices.batch", "a whole number"),
        (("room", "headroom"), 10**400, "at room.headroom", "a share from 0 to 1"),
    ],
)
def test_a_damaged_place_is_named(path, to, place, match):
    error = refused(changed(*path, to=to), match)
    assert re.search(place, error.where)


@pytest.mark.parametrize(
    ("path", "to", "match"),
    [
        (("rows", 0, "held", 0, "spec"), ["nope"], "names 'nope', which the mesh does not have"),
        (("rows", 0, "held", 0, "shard_shape"), [1], "different lengths"),
        (("bytes_per_device", "total"), 1, "bytes_per_device.total is 1, but its parts add up to"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(path, to, match):
    refused(changed(*path, to=to), match)


@pytest.mark.parametrize("held", [b"\xff\xfe{}", b"\x00" * 100])
def test_a_file_that_is_no_text_is_refused(tmp_path, held):
    (tmp_path / "old.json").write_bytes(held)
    with pytest.raises(InvalidPlan, match=r"not text|not JSON"):
        load_plan(tmp_path / "old.json")


def test_a_file_without_end_is_refused_and_a_folder_too(monkeypatch, tmp_path):
    monkeypatch.setattr(saved, "MOST_BYTES", 1000)
    (tmp_path / "large.json").write_bytes(b" " * 1001)
    with pytest.raises(InvalidPlan, match="more than 1,000 bytes"):
        load_plan(tmp_path / "large.json")
    for place in ("/dev/zero", tmp_path):
        with pytest.raises(InvalidPlan, match="it is a folder or a device"):
            load_plan(place)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_file_with_any_one_value_replaced_is_read_or_refused(data):
    """Whatever stands at one place: a plan comes out that can be shown, or a LabError."""
    whole = copy.deepcopy(DATA)
    inner, key = whole, None
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
    strange = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    if key is not None and (isinstance(inner, dict) or isinstance(key, int)):
        try:
            inner[key] = data.draw(strange | st.lists(strange, max_size=2))
        except (IndexError, KeyError):
            return
    try:
        read = parse_plan(json.dumps(whole), "old.json")
    except LabError:
        return
    assert str(read)
    assert read.svg().endswith("</svg>")


@pytest.mark.parametrize("strategy", ["fsdp+expert", "fsdp+tensor", "fsdp+expert+pipeline"])
@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v3-main"])
def test_the_rules_file_of_a_strategy_gives_back_its_plan(name, strategy, tmp_path):
    """Stacked tensors too: the file says what it takes to be in one array."""
    mesh, place = "fsdp=4,expert=2,tensor=2,stage=2", tmp_path / "rules.toml"
    made = plan(name, mesh, strategy=strategy)
    place.write_text(rules_text(rules_of_plan(made)))
    again = plan(name, mesh, rules=place)

    def held(each):
        return [(row.path, row.parameter.shape, row.parameter.spec) for row in each.rows]

    assert sorted(held(again)) == sorted(held(made))
    assert again.bytes_of("parameters") == made.bytes_of("parameters")


def test_what_rules_and_a_person_stack_is_stacked_both():
    made = plan("mixtral-8x7b", "fsdp=4", rules={"stack": "experts"}, stack="layers")
    assert (made.choices["stack"], rules_of_plan(made).stack) == ("all", "all")
    assert "stack" not in plan("llama3-8b", "fsdp=4", stack="experts").choices
