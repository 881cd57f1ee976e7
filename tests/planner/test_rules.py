"""Rules: all input forms, which rule applies, and errors."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardlab.errors import InvalidRules, LabError
from shardlab.planner.model import Model
from shardlab.planner.rules.matching import match_rules
from shardlab.planner.rules.rules import Rules, parse_rules
from shardlab.planner.tensor_group import parse_tensor_group
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

MESH = Mesh(fsdp=2, tensor=3)
BF16 = parse_dtype("bf16")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("fsdp,tensor", Spec("fsdp", "tensor")),
        ("P('fsdp', None)", Spec("fsdp", None)),
        (P(None, ("fsdp", "tensor")), Spec(None, ("fsdp", "tensor"))),
        (("fsdp", None), Spec("fsdp", None)),
        (["None", ["fsdp", "tensor"]], Spec(None, ("fsdp", "tensor"))),
        (None, Spec()),
        ("", Spec()),
        ((), Spec()),
    ],
)
def test_a_spec_is_text_entries_or_a_partition_spec(spec, expected):
    (rule,) = parse_rules([("mlp/.*", spec)]).rules
    assert (rule.spec, rule.is_trailing) == (expected, False)


@pytest.mark.parametrize(
    "spec",
    [
        "..., tensor",
        "...,tensor",
        "P(..., 'tensor')",
        "…, tensor",
        (..., "tensor"),
        ["...", "tensor"],
    ],
)
def test_dots_first_leave_the_leading_axes_replicated(spec):
    (rule,) = parse_rules([("a/b", spec)]).rules
    assert rule.is_trailing
    assert rule.spec_text == "P(..., 'tensor')"
    assert [rule.spec_for(rank) for rank in (1, 3)] == [Spec("tensor"), Spec(None, None, "tensor")]


def test_dots_alone_leave_every_axis_replicated():
    (rule,) = parse_rules([("a/b", "...")]).rules
    assert rule.spec_for(2) == Spec(None, None)


def test_forms_are_the_same_rules():
    pairs = [("mlp/.*", "fsdp"), (".*", "")]
    rules = parse_rules(pairs)
    assert rules == parse_rules(tuple(pairs)) == parse_rules({"rules": pairs}) == parse_rules(rules)
    assert parse_rules(None) == parse_rules([]) == parse_rules({}) == Rules()


def test_a_mapping_of_paths_gives_specs_by_path():
    (spec,) = parse_rules({"lm_head.weight": "tensor"}).specs
    assert (spec.pattern, spec.spec) == ("lm_head.weight", Spec("tensor"))


@pytest.mark.parametrize("axes", ["fsdp", ["fsdp"], ("fsdp",)])
def test_logical_rules_take_one_mesh_axis_or_several_or_none(axes):
    rules = parse_rules({"logical": [("embed", axes), ["norm", None], ("kv", [])]})
    assert [(rule.name, rule.axes) for rule in rules.logical] == [
        ("embed", ("fsdp",)),
        ("norm", ()),
        ("kv", ()),
    ]


def test_several_sources_count_in_their_order(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("[[rules]]\npath = 'b/c'\nspec = 'tensor'\n")
    rules = parse_rules(
        [{"rules": [("a", "fsdp")]}, path, ("d/e", ""), {"logical": [("x", "fsdp")]}]
    )
    assert [rule.pattern for rule in rules.rules] == ["a", "b/c", "d/e"]
    assert [rule.name for rule in rules.logical] == ["x"]
    assert rules.source == str(path)
    assert parse_rules([str(path), [("f/g", "")]]).rules[1].pattern == "f/g"


@pytest.mark.parametrize(
    ("pairs", "is_clear"),
    [
        ([("embed", "fsdp"), ("mlp", "tensor")], False),
        ([("embed", ("fsdp", "tensor")), ("norm", None)], False),
        ([("embed", []), ("mlp", "tensor")], False),
        ([("kernel", "fsdp,tensor")], True),
        ([("kernel", P("fsdp"))], True),
        ([("kernel", ("fsdp", None))], True),
        ([("embed", "fsdp"), (".*", "")], True),
        ([("layers/mlp", "fsdp")], True),
    ],
)
def test_pairs_that_may_be_patterns_or_logical_rules_are_not_guessed(pairs, is_clear):
    if is_clear:
        assert len(parse_rules(pairs).rules) == len(pairs)
    else:
        with pytest.raises(InvalidRules, match="may be patterns or logical rules") as raised:
            parse_rules(pairs)
        assert raised.value.fix.startswith('write {"rules": [...]} for patterns')


def specs_by_path(rules, **options):
    group = parse_tensor_group("layers.{0..3}.up_proj.weight", (12, 6), BF16, **options)
    return {
        path: (sharded.spec, sharded.rule)
        for sharded in match_rules(Model(name="m", groups=(group,)), parse_rules(rules), MESH)
        for path in sharded.group.paths()
    }


def test_the_order_is_specs_by_path_then_patterns_then_logical_then_the_models_own():
    rules = {
        "specs": {"layers/0/up_proj/weight": "tensor"},
        "rules": [(r"layers\.1\.", "fsdp"), (r"layers\.[01]\.", "None,fsdp")],
        "logical": [("mlp", ("fsdp", "tensor"))],
    }
    actual = specs_by_path(rules, spec=Spec(None, "tensor"))
    assert list(actual.values()) == [
        (Spec("tensor"), "spec for layers/0/up_proj/weight"),
        (Spec("fsdp"), r"rule 1: layers\.1\."),
        (Spec(("fsdp", "tensor"), None), "logical rules for mlp, embed"),
        (Spec(("fsdp", "tensor"), None), "logical rules for mlp, embed"),
    ]
    del rules["logical"]
    assert specs_by_path(rules, spec=Spec(None, "tensor"))["layers.3.up_proj.weight"] == (
        Spec(None, "tensor"),
        "the model's own spec",
    )
    assert specs_by_path(rules)["layers.3.up_proj.weight"] == (Spec(), "no rule")


@pytest.mark.parametrize(
    ("axes", "spec"),
    [
        (("fsdp", "tensor"), Spec("fsdp", "tensor")),
        ((None, "fsdp"), Spec(None, "fsdp")),
        (("fsdp", "embed"), Spec("fsdp", None)),
        (("embed", None), Spec()),
        ((None, None), Spec()),
    ],
)
def test_axis_names_that_are_mesh_axes_are_the_models_own_spec(axes, spec):
    """As `nnx.get_partition_spec` gives them where no logical rules hold."""
    assert {sharded for sharded, _ in specs_by_path([], axes=axes).values()} == {spec}


def test_paths_that_are_given_the_same_spec_are_one_part():
    actual = specs_by_path(
        {f"layers.{n}.up_proj.weight": "fsdp" if n else "tensor" for n in range(4)}
    )
    assert actual["layers.0.up_proj.weight"] == (Spec("tensor"), "spec for layers.0.up_proj.weight")
    assert actual["layers.3.up_proj.weight"][1] == "spec for layers.1.up_proj.weight and 2 more"


def test_a_star_in_a_path_stands_for_any_number_and_an_exact_path_goes_before():
    actual = specs_by_path({"layers.*.up_proj.weight": "fsdp", "layers.2.up_proj.weight": "tensor"})
    specs = [actual[f"layers.{n}.up_proj.weight"][0] for n in range(4)]
    assert specs == [Spec("fsdp"), Spec("fsdp"), Spec("tensor"), Spec("fsdp")]


@pytest.mark.parametrize(
    "spec", ["fsdp,tensor,None", "data", "fsdp,fsdp", "..., fsdp, tensor, None"]
)
def test_a_spec_that_does_not_fit_leaves_the_tensor_replicated(spec):
    actual = specs_by_path([(".*", spec)])
    assert set(actual.values()) == {(Spec(), "rule 1: .*, which does not fit")}


NOT_RULES = [
    (7, "7 is not a list of rules"),
    (b"rules", "is not a list of rules"),
    (True, "True is not a list of rules"),
    (float("nan"), "nan is not a list of rules"),
    ([7], "7 is not a rule"),
    ([("a", "b", "c")], "is not a rule"),
    ([(b"a/b", "fsdp")], "is not a rule"),
    ([("a/b", 3)], "Invalid spec: 3 is not a spec"),
    ([("a/b", True)], "Invalid spec: True is not a spec"),
    ([("a/b", b"x")], "Invalid spec"),
    ([("a/b", {"x": 1})], "Invalid spec"),
    ([("a/b", ("fsdp", 3))], "Invalid spec: The spec entry 3"),
    ([("a/b", "fsdp,,")], "Invalid spec: None or a mesh axis name"),
    ([("a/b", "fsdp, ...")], "Invalid spec"),
    ([("a/b", ("fsdp", ...))], "'...' stands for the leading dimensions"),
    ([("a/(b", "fsdp")], "missing \\), unterminated subpattern"),
    ([("[[a]/", "fsdp")], "ambiguous inside a character class"),
    ([("a/[[b", "fsdp")], "unterminated character set"),
    ([("((a{999}){999}){999}", "fsdp")], "counts in the pattern multiply"),
    ([("(" * 900 + ")" * 900 + "/", "fsdp")], "Invalid pattern"),
    ([("a{99999999999999999999}", "fsdp")], "Invalid pattern"),
    ([("/" * 5000, "fsdp")], "5,000 characters"),
    ([("a/\ud800", "fsdp")], "which is not valid text"),
    ({"logical": [("embed", 3)]}, "mesh axes for the logical name 'embed' are 3"),
    ({"logical": [(3, "fsdp")]}, "The logical name of a rule is 3"),
    ({"logical": {"embed": "fsdp"}}, "'logical' is"),
    ({"logical": [("a", "b")], "logical_semantics": "haiku"}, "'logical_semantics' is 'haiku'"),
    ({"rules": 3}, "'rules' is 3"),
    ({"rules": [("a",)]}, "'rules' is"),
    ({"specs": [("a", "b")]}, "'specs' is"),
    ({"rules": [], "lm_head": "fsdp"}, "mixes the section 'rules' with the key 'lm_head'"),
    ({3: "fsdp"}, "The path of a tensor is 3"),
    ([{"a.b": "x"}, {"a.b": "y"}], r"Path 'a.b' has two specs: P\('x'\) and P\('y'\)"),
    ([("a/b", "")] * 2001, "There are 2,001 rules"),
    ({"logical": [("a", "b")] * 2001}, "There are 2,001 rules"),
    ([[("a/b", "")] * 1500, [("a/c", "")] * 1500], "There are 3,000 rules"),
    ("no/such/rules.toml", "The rule file does not exist"),
    (Path("."), "The rule file cannot be read"),
    ("", "cannot be read"),
    ("\0", "cannot be read"),
]


@pytest.mark.parametrize(("rules", "message"), NOT_RULES)
def test_what_is_no_rule_is_reported_with_its_value(rules, message):
    with pytest.raises(InvalidRules, match=message) as raised:
        parse_rules(rules)
    assert raised.value.fix


def test_a_pattern_that_is_wrong_is_pointed_at():
    with pytest.raises(InvalidRules) as raised:
        parse_rules([("mlp/(gate|up/kernel", "fsdp")])
    assert raised.value.where.splitlines() == ["mlp/(gate|up/kernel", "             ^"]


def test_a_invalid_spec_shows_its_rule_and_the_location():
    with pytest.raises(InvalidRules) as raised:
        parse_rules([("mlp/.*", "fsdp,,tensor")])
    assert [line.strip() for line in raised.value.where.splitlines()] == [
        "pattern mlp/.*",
        "the spec text",
        "fsdp,,tensor",
        "^",
    ]


LEAVES = [None, 1, 2.5, float("nan"), True, b"x", "", "a", "fsdp,tensor", "...", ".*", "(", "[["]
LEAVES += [
    "None",
    "rules",
    "specs",
    ...,
    (),
    {},
    "\ud800",
    "\0",
    10**40,
    "a{5}",
    "layers.*.x",
    Spec("x"),
]
KEYS = ["rules", "specs", "logical", "logical_semantics", "a", "b.c", 3, None]


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.sampled_from(LEAVES),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.lists(st.tuples(st.sampled_from([".*", "up", "l/", "("]), inner), max_size=3),
            st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
        ),
        max_leaves=6,
    )
)
def test_any_object_is_rules_or_a_lab_error(thing):
    with contextlib.suppress(LabError):
        assert len(specs_by_path(thing)) == 4
