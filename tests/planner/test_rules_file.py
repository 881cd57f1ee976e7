"""Rule files: errors name the line, and a written file reads back the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.errors import InvalidRules
from shardlab.planner.rules import rules_file
from shardlab.planner.rules.rules import LogicalRule, PathSpec, Rule, Rules, parse_rules
from shardlab.planner.rules.rules_file import parse_rules_text, rules_text
from shardlab.sharding.spec import Spec

FILE = """\
format_version = 1
logical = [
  ["embed", "fsdp"],
  ["mlp", ["tensor", "expert"]],
]

[[rules]]
path = 'mlp/.*kernel'
spec = "fsdp,tensor"

# what is left
[[rules]]
path = ".*"
spec = []
reason = "small"

[specs]
"lm_head.weight" = "..., tensor"
'a/b' = [["fsdp", "tensor"], "None"]
"""


def test_everything_that_a_file_says_is_read_with_its_line():
    rules = parse_rules_text(FILE, "r.toml")
    assert [(rule.pattern, rule.spec, rule.reason, rule.where) for rule in rules.rules] == [
        ("mlp/.*kernel", Spec("fsdp", "tensor"), "", "r.toml:7"),
        (".*", Spec(), "small", "r.toml:12"),
    ]
    assert [(rule.pattern, rule.spec_text, rule.where) for rule in rules.specs] == [
        ("lm_head.weight", "P(..., 'tensor')", "r.toml:18"),
        ("a/b", "P(('fsdp', 'tensor'), None)", "r.toml:19"),
    ]
    assert [(rule.name, rule.axes, str(rule.location)) for rule in rules.logical] == [
        ("embed", ("fsdp",), "r.toml:3"),
        ("mlp", ("tensor", "expert"), "r.toml:4"),
    ]


RULE = "[[rules]]\npath = 'a'\nspec = 'x'\n"
MISTAKES = [
    ("[[rules]\n", "r.toml:1", "not valid TOML"),
    (RULE + "x = = 1\n", "r.toml:4", "not valid TOML"),
    ("formt_version = 1\n", "r.toml:1", "Unknown key 'formt_version'"),
    ("\nformat_version = 2\n", "r.toml:2", "format_version 2; this shardlab reads 1"),
    ("format_version = true\n", "r.toml:1", "format_version True"),
    ("rules = 3\n", "r.toml:1", "'rules' is 3"),
    ("rules = [3]\n", "r.toml", "Rule 1 is 3"),
    (RULE + "[[rules]]\nspec = 'x'\n", "r.toml:4", "Rule 2 has no 'path'"),
    (RULE + "[[rules]]\npath = 'x'\n", "r.toml:4", "Rule 2 has no 'spec'"),
    (RULE + "[[rules]]\npath = 'x'\nspce = 'x'\n", "r.toml:6", "Unknown key 'spce'"),
    (RULE + "[[rules]]\npath = 7\nspec = 'x'\n", "r.toml:5", "pattern of a rule is 7"),
    (RULE + "reason = 3\n", "r.toml:4", "reason of rule 1 is 3"),
    (RULE + "[[rules]]\npath = 'x('\nspec = 'x'\n", "r.toml:5", "missing \\)"),
    (RULE + "[[rules]]\npath = 'x'\nspec = 'x,,'\n", "r.toml:6", "Invalid spec"),
    (RULE + "[[rules]]\npath = 'x'\nspec = 1.5\n", "r.toml:6", "1.5 is not a spec"),
    ("[specs]\n'ok' = 'x'\nlm_head.weight = 'x'\n", "r.toml:3", "not in quotes"),
    ("[specs]\n'a.b' = 'x,,'\n", "r.toml:2", "Invalid spec"),
    ("specs = 3\n", "r.toml:1", "'specs' is 3"),
    ("logical = 3\n", "r.toml:1", "'logical' is 3"),
    ("logical = [\n ['a', 'b'],\n ['c'],\n]\n", "r.toml:1", "not a pair"),
    ("logical = [\n ['a', 'b'],\n ['c', 3],\n]\n", "r.toml:3", "'c' are 3"),
    ("logical = [[3, 'a']]\n", "r.toml:1", "logical name of a rule is 3"),
    (RULE * 2001, "r.toml:1", "There are 2,001 rules"),
    ("logical_semantics = 'x'\n", "r.toml:1", "'logical_semantics' is 'x'"),
    ("\nstack = 'expert'\n", "r.toml:2", "Cannot stack 'expert'"),
    ("stack = true\n", "r.toml:1", "Cannot stack True"),
    ("x = " + "[" * 5000, "r.toml", "not valid TOML"),
]


@pytest.mark.parametrize(("text", "where", "message"), MISTAKES)
def test_a_mistake_is_reported_with_file_and_line(text, where, message):
    with pytest.raises(InvalidRules, match=message) as raised:
        parse_rules_text(text, "r.toml")
    assert raised.value.where.splitlines()[0] == where
    assert raised.value.fix


def test_the_nearest_key_is_suggested():
    with pytest.raises(InvalidRules) as raised:
        parse_rules_text("[[rules]]\npth = 'a'\nspec = 'x'\n", "r.toml")
    assert raised.value.fix == "Did you mean 'path'?"


def test_maxtext_s_own_file_gets_an_error_about_the_needed_part():
    with pytest.raises(InvalidRules, match="not valid TOML") as raised:
        parse_rules_text(
            "base_config: x\nlogical_axis_rules: [\n  ['embed', ['fsdp']],\n]\n", "base.yml"
        )
    assert raised.value.fix.endswith("logical_axis_rules unchanged: logical = [...].")


def test_a_line_is_left_out_rather_than_wrong():
    """A header inside text of several lines would count as a rule's."""
    text = "[[rules]]\npath = 'a'\nspec = 'x'\nreason = '''\n[[rules]]\n'''\n"
    (rule,) = parse_rules_text(text, "r.toml").rules
    assert rule.where == "r.toml"


def test_many_specs_by_path_have_their_lines():
    text = "[specs]\n" + "".join(f"'layers.{n}.w' = 'x'\n" for n in range(20_000))
    specs = parse_rules_text(text, "r.toml").specs
    assert [specs[n].where for n in (0, 19_999)] == ["r.toml:2", "r.toml:20001"]


def test_a_file_that_is_too_large_or_not_text_is_rejected(tmp_path, monkeypatch):
    path = tmp_path / "r.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRules, match="cannot be read"):
        parse_rules(path)
    monkeypatch.setattr(rules_file, "MAX_BYTES", 1)
    with pytest.raises(InvalidRules, match="larger than"):
        parse_rules(str(path))


def bare(rules):
    """The rules without their places."""
    return (
        [(rule.pattern, rule.spec, rule.is_trailing, rule.reason) for rule in rules.rules],
        [(rule.pattern, rule.spec, rule.is_trailing) for rule in rules.specs],
        [(rule.name, rule.axes) for rule in rules.logical],
        rules.semantics if rules.logical else None,
        rules.stack,
    )


texts = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("'\"\\\n\x7f\x00[]#=. ")),
    max_size=12,
)
names = st.one_of(st.sampled_from(["fsdp", "tensor", "a b", "it's", 'x"y', "d.1", "e-2"]), texts)
names = names.filter(lambda name: name not in ("", "None", "..."))
entries = st.one_of(st.none(), names, st.lists(names, max_size=3).map(tuple))
specs = st.lists(entries, max_size=4).map(lambda each: Spec(*each))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            Rule,
            pattern=texts.map(re.escape),
            spec=specs,
            is_trailing=st.booleans(),
            reason=texts,
            location=st.none(),
        ),
        max_size=3,
    ),
    st.lists(
        st.builds(
            PathSpec,
            pattern=texts,
            spec=specs,
            is_trailing=st.booleans(),
            reason=st.just(""),
            location=st.none(),
        ),
        max_size=3,
        unique_by=lambda s: s.pattern,
    ),
    st.lists(
        st.builds(LogicalRule, texts, st.lists(names, max_size=3).map(tuple), st.none()), max_size=3
    ),
    st.sampled_from(["linen", "nnx"]),
    st.sampled_from([None, "experts", "layers", "all"]),
)
def test_what_is_written_reads_back_as_the_same(rules, by_path, logical, semantics, stack):
    written_rules = Rules(
        rules=tuple(rules),
        source="",
        specs=tuple(by_path),
        logical=tuple(logical),
        semantics=semantics,
        stack=stack,
    )
    assert bare(parse_rules_text(rules_text(written_rules))) == bare(written_rules)


def test_the_written_file_is_one_that_a_user_would_write():
    assert (
        rules_text(parse_rules_text(FILE))
        == """\
format_version = 1
logical = [
  ["embed", "fsdp"],
  ["mlp", ["tensor", "expert"]],
]

[[rules]]
path = "mlp/.*kernel"
spec = "fsdp, tensor"

[[rules]]
path = ".*"
spec = ""
reason = "small"

[specs]
"lm_head.weight" = "..., tensor"
"a/b" = "(fsdp, tensor), None"
"""
    )
