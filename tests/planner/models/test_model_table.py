"""Model tables in TOML and JSON: valid values, and the location of each mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.errors import InvalidModel
from shardlab.planner.models.load import load_model
from shardlab.planner.models.table import (
    ARCHITECTURE,
    TABLE,
    TENSOR,
    model_from_table,
    parse_json,
    parse_table,
)
from shardlab.sharding.spec import Spec

PAGE = Path(__file__).parents[3] / "docs" / "plan-sources.md"
TINY = """
name = "tiny"
note = "Two layers."
n_tensors = 6
[architecture]
layers = 2
hidden = 16
heads = 4
kv_heads = 2
head_dim = 4
ffn = 64
vocab = 100
[tensors]
"layers.{0..1}.up.weight" = "bf16[64,16]"
"layers.{0..1}.down.weight" = "f32[16,64]"
"layers.7.up.weight" = { shape = [64, 16], dtype = "bf16", spec = "model,None" }
"embed.weight" = { array = "bf16[100,16]", axes = ["vocab", ""] }
"""


def refused(tensors, **options):
    with pytest.raises(InvalidModel) as raised:
        model_from_table({"name": "t", "tensors": tensors, **options}, "t.toml")
    assert raised.value.where.startswith("t.toml")
    assert raised.value.fix
    return raised.value


def test_a_table_is_a_model(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TINY, "utf-8")
    model = load_model(file)
    assert (model.name, model.n_tensors, model.notes) == ("tiny", 6, ("Two layers.",))
    assert model.source == str(file)
    assert model.architecture.kv_heads == 2
    up, down, second, embed = model.groups
    assert (up.name, up.shape, up.dtype.short, up.n_tensors) == (
        "layers.*.up.weight",
        (64, 16),
        "bf16",
        2,
    )
    assert down.dtype.short == "f32"
    assert (second.name, second.shape, second.spec) == (
        "layers.7.up.weight",
        (64, 16),
        Spec("model", None),
    )
    assert embed.axes == ("vocab", None)


def test_json_says_the_same(tmp_path):
    import tomllib

    (tmp_path / "tiny.json").write_text(json.dumps(tomllib.loads(TINY)), "utf-8")
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")
    group, two = load_model(tmp_path / "tiny.json"), load_model(tmp_path / "tiny.toml")
    assert (group.groups, group.architecture) == (two.groups, two.architecture)


@pytest.mark.parametrize(
    ("table", "message", "location"),
    [
        ([], "[] is not a table.", "t.toml"),
        (None, "None is not a table.", "t.toml"),
        ({}, "'name' is missing.", "t.toml"),
        ({"name": "t"}, "'tensors' is missing.", "t.toml"),
        ({"name": "", "tensors": {"a": "f32[1]"}}, "'name' is ''.", "t.toml, name"),
        ({"name": "a\x1b[31m", "tensors": {"a": "f32[1]"}}, "'name' is ", "t.toml, name"),
        ({"name": 3, "tensors": {"a": "f32[1]"}}, "'name' is 3.", "t.toml, name"),
        ({"name": "t", "tensors": {}}, "'tensors' is {}.", "t.toml, tensors"),
        ({"name": "t", "tensors": ["a"]}, "'tensors' is ['a'].", "t.toml, tensors"),
        ({"name": "t", "tensor": {}}, "Unknown key 'tensor'.", "t.toml"),
    ],
)
def test_a_mistake_at_the_top_is_named(table, message, location):
    with pytest.raises(InvalidModel) as raised:
        model_from_table(table, "t.toml")
    assert raised.value.what.startswith(message)
    assert raised.value.where == location


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "3 is not a table."),
        (None, "None is not a table."),
        ([2, 3], "[2, 3] is not a table."),
        ("", "'' is not a table."),
        ("f32[\ud800]", "'f32[\\ud800]' is not a table."),
        ({"array": "f32[2]", "spec": "a\x1b"}, "'spec' is 'a\\x1b'."),
        ({"array": "f32[2]", "axes": ["a\ud800"]}, "'axes' is ['a\\ud800']."),
        ("bf17[2,3]", "Unknown dtype 'bf17'."),
        ("bf16[2,-3]", "The size of dimension 1 is -3."),
        ("bf16[2,nan]", "A size was expected here."),
        ("bf16[2,3", "']' is missing at the end."),
        ("bf16[2.5]", "'x' or ',' was expected here."),
        ("f32[9223372036854775808]", "Tensor 'w' has 2**63 elements or more."),
        ("f32[4294967296,4294967296]", "Tensor 'w' has 2**63 elements or more."),
        (f"f32[{10**50}]", "The size of dimension 0 is "),
        (f"f32[{'9' * 5000}]", "The number has 5,000 digits."),
        ({}, "Tensor 'w' has no keys."),
        ({"dtype": "f32"}, "Tensor 'w' has dtype."),
        ({"array": "f32[2]", "shape": [2]}, "Tensor 'w' has array, shape."),
        ({"array": "f32[2]", "dtype": "f32"}, "Tensor 'w' has array, dtype."),
        ({"array": 3}, "'array' is 3."),
        ({"array": True}, "'array' is True."),
        ({"arry": "f32[2]"}, "Unknown key 'arry'."),
        ({"shape": 6}, "'shape' is 6."),
        ({"shape": "2x3"}, "'shape' is '2x3'."),
        ({"shape": [2, True]}, "'shape' is [2, True]."),
        ({"shape": [2.0]}, "The size of dimension 0 is 2.0, a float."),
        ({"shape": [float("nan")]}, "The size of dimension 0 is nan, a float."),
        ({"shape": [-2]}, "The size of dimension 0 is -2."),
        ({"shape": [None]}, "The size of dimension 0 is None, a NoneType."),
        ({"shape": [2**200]}, "The size of dimension 0 is an integer of 201 bits."),
        ({"shape": [2], "dtype": "f31"}, "Unknown dtype 'f31'."),
        ({"shape": [2], "dtype": 32}, "'dtype' is 32."),
        ({"array": "f32[2,3]", "axes": ["a"]}, "'axes' is ('a',), but the shape is (2, 3)."),
        (
            {"array": "f32[2]", "axes": ["a", "b"]},
            "'axes' is ('a', 'b'), but the shape is (2,).",
        ),
        ({"array": "f32[2]", "axes": "a"}, "'axes' is 'a'."),
        ({"array": "f32[2]", "axes": [1]}, "'axes' is [1]."),
        ({"array": "f32[2]", "spec": "a,b"}, "'spec' is P('a', 'b'), but the shape is (2,)."),
        ({"array": "f32[2]", "spec": "((a"}, "A mesh axis name or ')' was expected here."),
        ({"array": "f32[2]", "spec": [1]}, "'spec' is [1]."),
        ({"array": "f32[2]", "spec": 3}, "'spec' is 3."),
    ],
)
def test_an_invalid_tensor_is_rejected_with_its_path(entry, message):
    error = refused({"w": entry})
    assert error.what.startswith(message)
    assert "tensors.'w'" in error.where


def test_a_mistake_in_a_text_is_pointed_at():
    assert refused({"w": "bf16[2,nan]"}).where.splitlines() == [
        "t.toml, tensors.'w': the shape text",
        "         [2,nan]",
        "            ^^^",
    ]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "'' is not a path."),
        ("a\nb", "'a\\nb' is not a path."),
        ("w" * 1001, "'www"),
        ("l.{3..1}.w", "{3..1} is descending."),
        ("l.{1..7..0}.w", "{1..7..0} has a step of 0."),
        ("l.{1..7..02}.w", "{1..7..02} has leading zeros."),
        ("l.{00..31}.w", "{00..31} has leading zeros."),
        ("l.{0..07}.w", "{0..07} has leading zeros."),
        ("l.{0..}.w", "Path 'l.{0..}.w' has braces that are no range."),
        ("l.{0-31}.w", "Path 'l.{0-31}.w' has braces that are no range."),
        ("l.{a..b}.w", "Path 'l.{a..b}.w' has braces that are no range."),
        ("l.{0..31", "Path 'l.{0..31' has braces that are no range."),
        ("l.{-1..3}.w", "Path 'l.{-1..3}.w' has braces that are no range."),
        ("l.{0..9999999999}.w", "There are more than 1,000,000 tensors in 'l.{0..9999999999}.w'"),
        ("l.{1..99999999999999999999}.w", "There are more than 1,000,000 tensors"),
        ("l.{0..3}1.w", "{0..3} is next to another number."),
        ("l.{0..3}{0..3}.w", "{0..3} is next to another number."),
        ("l.{0..999999999}.w", "There are more than 1,000,000 tensors"),
        ("l.{0..999}.e.{0..999}.{0..1}", "There are more than 1,000,000 tensors"),
    ],
)
def test_an_invalid_path_is_rejected(path, message):
    error = refused({path: "f32[2]"})
    assert error.what.startswith(message)
    assert "tensors." in error.where


def test_a_large_range_is_rejected_before_it_is_enumerated():
    tensors = {f"{letter}.{{0..499999}}.w": "f32[2]" for letter in "abc"}
    assert "up to path 'c.{0..499999}.w'" in refused(tensors).what


@pytest.mark.parametrize(
    ("first", "two"),
    [
        ("l.{0..3}.w", "l.{3..5}.w"),
        ("l.{0..3}.w", "l.2.w"),
        ("l.{0..3}.e.{0..3}", "l.3.e.{3..9}"),
        ("block{0..3}", "block1"),
    ],
)
def test_paths_that_stand_for_the_same_tensor_are_rejected(first, two):
    error = refused({first: "f32[2]", two: "f32[3]"})
    assert error.what == f"Paths {first!r} and {two!r} stand for the same tensors."


@pytest.mark.parametrize(
    ("first", "two"),
    [
        ("l.{0..2}.w", "l.{3..5}.w"),
        ("l.{0..3}.w", "l.02.w"),
        ("l.{0..3}.e.{0..3}", "l.3.e.{4..9}"),
        ("l.{0..3}.w", "l.{0..3}.v"),
        ("l.1.w", "l.01.w"),
        ("l.{0..3}.w", "l.{0..3}.w.{0..3}"),
        ("l.1", "l.99999999999999999999999999"),
    ],
)
def test_paths_that_differ_may_stand_together(first, two):
    model = model_from_table({"name": "t", "tensors": {first: "f32[2]", two: "f32[2]"}}, "t.toml")
    paths = [path for group in model.groups for path in group.paths()]
    assert len(set(paths)) == len(paths) == model.n_tensors


RANGES = st.tuples(st.integers(0, 6), st.integers(0, 3)).map(
    lambda pair: f"{{{pair[0]}..{sum(pair)}}}"
)
PATHS = st.tuples(
    st.sampled_from(["l.", "m"]), st.one_of(RANGES, st.integers(0, 9).map(str)), RANGES
).map(lambda parts: f"{parts[0]}{parts[1]}.e.{parts[2]}")


@settings(deadline=None, max_examples=150)
@given(st.lists(PATHS, unique=True, min_size=1, max_size=80))
def test_a_table_is_rejected_exactly_if_two_paths_share_a_tensor(paths):
    def written_out(path):
        actual = re.fullmatch(r"(.*?)\{(\d+)\.\.(\d+)\}(.*)", path)
        if actual is None:
            return [path]
        head, first, last, tail = actual.groups()
        numbers = range(int(first), int(last) + 1)
        return [every for n in numbers for every in written_out(f"{head}{n}{tail}")]

    every = [path for given_path in paths for path in written_out(given_path)]
    table = {"name": "t", "tensors": dict.fromkeys(paths, "f32[2]")}
    if len(set(every)) < len(every):
        assert "stand for the same tensors" in refused(table["tensors"]).what
    else:
        actual = model_from_table(table, "t.toml")
        assert sorted(p for f in actual.groups for p in f.paths()) == sorted(every)


ARCHITECTURE_KEYS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
ARCH = dict(zip(ARCHITECTURE_KEYS, (2, 16, 4, 2, 4, 64, 100), strict=True))


@pytest.mark.parametrize(
    ("changed", "message", "fix"),
    [
        ({"layers": True}, "'layers' is True.", "a whole number from 1 on."),
        ({"layers": -2}, "'layers' is -2.", "a whole number from 1 on."),
        ({"kv_heads": 0}, "'kv_heads' is 0.", "a whole number from 1 on."),
        ({"experts": -1}, "'experts' is -1.", "a whole number."),
        ({"layers": 2.0}, "'layers' is 2.0.", "a whole number from 1 on."),
        ({"layers": "2"}, "'layers' is '2'.", "a whole number from 1 on."),
        ({"layers": 10**5000}, "'layers' is a number of 16,610 bits.", "a whole number from 1 on."),
        ({"tied_embeddings": 1}, "'tied_embeddings' is 1.", "true or false."),
    ],
)
def test_an_invalid_field_of_the_architecture_is_rejected_with_its_key(changed, message, fix):
    error = refused({"w": "f32[2]"}, architecture={**ARCH, **changed})
    assert (error.what, error.fix) == (message, fix)
    assert error.where.startswith("t.toml, architecture")


def test_an_unknown_field_of_the_architecture_suggests_the_nearest():
    error = refused({"w": "f32[2]"}, architecture={**ARCH, "layer": 2})
    assert "'layer'" in error.what
    assert "'layers'" in str(error)
    assert error.where.startswith("t.toml, architecture")


def test_a_missing_field_of_the_architecture_is_named():
    error = refused({"w": "f32[2]"}, architecture={k: v for k, v in ARCH.items() if k != "vocab"})
    assert error.what == "'vocab' is missing."


@pytest.mark.parametrize("key", ["n_tensors", "n_bytes"])
def test_a_count_that_the_tensors_do_not_have_is_rejected(key):
    error = refused({"w": "f32[2]"}, **{key: 3})
    assert error.what.startswith(f"{key!r} is 3, but the tensors have ")
    assert error.where == f"t.toml, {key}"


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_table, "name = ", "The file is not valid TOML"),
        (parse_table, 'name = "a"\nname = "b"', "The file is not valid TOML"),
        (parse_table, "a = " + "[" * 100_000, "The file is not valid TOML"),
        (
            parse_table,
            "a = " + "9" * 5000,
            "The file is not valid TOML: a number has too many digits.",
        ),
        (parse_json, "", "The file is not valid JSON"),
        (parse_json, '{"name": "a", "name": "b"}', "the key 'name' appears twice"),
        (parse_json, "[" * 100_000, "The file is not valid JSON"),
        (parse_json, "9" * 5000, "The file is not valid JSON: a number has too many digits."),
        (parse_json, '{"model_type": "llama"}', "'num_attention_heads' is None"),
        (parse_json, '{"weight_map": {"a": "b"}}', "This is an index"),
        (parse_json, '{"name": "t", "tensors": {"w": {"shape": [NaN]}}}', "dimension 0 is nan"),
    ],
)
def test_a_text_that_is_no_table_is_rejected(parse, text, message):
    with pytest.raises(InvalidModel) as raised:
        parse(text, "t")
    assert message in raised.value.what


def test_a_file_that_is_not_text_is_rejected(tmp_path):
    (tmp_path / "t.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(InvalidModel, match="not UTF-8 text") as raised:
        load_model(tmp_path / "t.toml")
    assert raised.value.where == f"{tmp_path / 't.toml'}, byte 8"
    with (tmp_path / "huge.toml").open("wb") as opened:
        opened.truncate(1 << 40)
    with pytest.raises(InvalidModel, match=r"has 1,099,511,627,776 bytes"):
        load_model(tmp_path / "huge.toml")


def test_the_page_names_every_key_with_its_meaning():
    text = PAGE.read_text("utf-8")
    for table in (TABLE, TENSOR):
        for key, setting in table.items():
            assert f"| `{key}` | {setting.expected} | {setting.meaning} |" in text, key
    for key in ARCHITECTURE:
        assert f"`{key}`" in text


def test_a_range_may_have_a_step():
    tensors = {"layers.{0..6..2}.up": "f32[2]", "layers.{1..7..2}.up": "f32[3]"}
    model = model_from_table({"name": "t", "tensors": tensors}, "t.toml")
    assert list(model.groups[1].paths()) == [f"layers.{n}.up" for n in (1, 3, 5, 7)]
    assert model.n_parameters == 4 * 2 + 4 * 3


@pytest.mark.parametrize("other", ["{4..9..5}", "{1..3}", "9"])
def test_ranges_with_a_step_that_share_a_number_overlap(other):
    error = refused({"l.{1..9..2}.w": "f32[2]", f"l.{other}.w": "f32[2]"})
    assert "stand for the same tensors" in error.what
