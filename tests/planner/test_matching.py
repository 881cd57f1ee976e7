"""Matching: exact for every pattern, with few searches, and bounded in time."""

from __future__ import annotations

import re
import threading

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardlab.errors import InvalidRules
from shardlab.planner.model import Model
from shardlab.planner.models.load import load_model
from shardlab.planner.rules import path_search as searching
from shardlab.planner.rules.matching import match_rules
from shardlab.planner.rules.path_search import match_paths, with_separator
from shardlab.planner.rules.pattern import equivalent_digits, parse_pattern
from shardlab.planner.rules.rules import parse_rules
from shardlab.planner.tensor_group import parse_tensor_group
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

BF16 = parse_dtype("bf16")
MESH = Mesh(fsdp=2, tensor=3)


def model_of(*paths, shape=(12, 6), **options):
    return Model(
        name="m", groups=tuple(parse_tensor_group(path, shape, BF16, **options) for path in paths)
    )


MODEL = model_of(
    "model.layers.{0..12}.mlp.w1.weight",
    "model.layers.{9..10}.experts.{0..21}.w2",
    "h/block_{98..101}/ff0/kernel",
    "norm.scale.{8..31}",
)
SMALL = [
    *("1", "0", "7", r"\d", r"\d+", "[0-9]", "[1-3]", "[^0-4]", r"[\d.]", "[a-m]", ".", ".*"),
    *(r"\w", r"\W", r"\b", r"\B", "^", "$", r"\.", "/", "w", "layers", "mlp", "experts", "e"),
    *(r"\x31", r"[+-5]", r"\D", "[.-9]", "_", "(?=1)", "(?!2)", "(?<=1)", "(?<!0)", r"\061"),
    *(r"(?:\.\d)+", "(?:1|2)*", "(?:[a-z]+_)*"),
]
GROUPS = ["(?:{})", "({})", "(?:{})?", "(?:{}){{1,2}}", "(?={})", "(?!{})", "(?:{}){{2}}"]


# A number of a path, where digits matter most.
NUMBERS = st.builds(
    "{}{}{}".format,
    st.sampled_from([r"layers\.", r"experts\.", "block_", r"\.", ""]),
    st.lists(
        st.sampled_from(
            ["1", "0", r"\d", "[1-3]", "[^0-4]", r"\x31", "[+-5]", "(?!2).", "[02468]"]
        ),
        min_size=1,
        max_size=3,
    ).map("".join),
    st.sampled_from([r"\.", "$", r"\b", "/", "", r"\.w"]),
)


@st.composite
def patterns(draw, depth=2):
    if depth == 2 and draw(st.booleans()):
        return draw(NUMBERS)
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        if depth and draw(st.integers(0, 3)) == 0:
            parts.append(draw(st.sampled_from(GROUPS)).format(draw(patterns(depth - 1))))
        else:
            part = draw(st.sampled_from(SMALL))
            if part[-1] not in "*+^$)" and part not in (r"\b", r"\B"):
                part += draw(st.sampled_from(["", "", "", "?", "*", "{1,2}", "+?"]))
            parts.append(part)
    combined = "".join(parts)
    if depth and draw(st.integers(0, 4)) == 0:
        combined += "|" + draw(patterns(depth - 1))
    if depth == 2:
        combined = (
            draw(st.sampled_from(["", "", "(?i)", r"(\d)\1", r"(?P<n>\d)(?P=n)?"])) + combined
        )
    return combined


def readable(pattern):
    """Whether it can be read, and `re`, which is asked what is right, takes no age to search it."""
    try:
        parse_pattern(pattern)
    except InvalidRules:
        return False
    return len(re.findall("[*+]", pattern)) * 2 ** pattern.count("){") <= 3


def first_rules(model, texts):
    """Path -> the first pattern found in it, by searching every one in every path."""
    forms = [parse_pattern(text).separator for text in texts]
    return {
        path: next(
            (
                position
                for position, text in enumerate(texts)
                if re.search(text, with_separator(path, forms[position])) is not None
            ),
            None,
        )
        for group in model.groups
        for path in group.paths()
    }


@settings(max_examples=120, deadline=None)
@given(st.lists(patterns().filter(readable), min_size=1, max_size=3))
@example([r"layers\.1\.", r"layers\.\d\d\."])
@example([r"(\d)\1", "w1"])
@example([r"layers\.[1-3]\.", "block_9[^0-8]"])
def test_every_path_gets_the_rule_that_a_search_of_all_paths_gives(texts):
    rules = parse_rules({"rules": [(text, "fsdp") for text in texts]})
    placed = list(match_rules(MODEL, rules, MESH))
    got = {path: sharded.rule_number for sharded in placed for path in sharded.group.paths()}
    assert got == first_rules(MODEL, texts)
    assert sum(sharded.group.n_tensors for sharded in placed) == MODEL.n_tensors


PATHS = [path for group in MODEL.groups for path in group.paths()]


@settings(max_examples=120, deadline=None)
@given(patterns().filter(readable))
def test_both_engines_find_the_same_paths(text):
    pattern = parse_pattern(text)
    if pattern.digit_sets is None:
        return  # back references: the two differ on purpose in what a failed group keeps
    for path in PATHS[::3]:
        assert bool(pattern.compiled_with_timeout.search(path)) == bool(
            pattern.compiled.search(path)
        ), path


@pytest.mark.parametrize("text", ["a{", "a{}", "{e<=1}a", "x}", r"w\{1", "a{,2}b"])
def test_braces_that_count_nothing_mean_themselves_in_both_engines(text):
    pattern = parse_pattern(text)
    for path in ("a{", "a{}", "{e<=1}a", "x}", "w{1", "aab", "b", "a"):
        assert bool(pattern.compiled_with_timeout.search(path)) == bool(re.search(text, path)), path


@pytest.mark.parametrize(
    ("texts", "alike"),
    [
        ([r"layers\.\d+\.mlp", "[a-z]+[0-9]{1,3}", "."], "0000000000"),
        (["w1", "w3"], "0103000000"),
        ([r"\.[0-4]\."], "0000055555"),
        ([r"\x37"], "0000000700"),
        ([r"(\d)\1"], "0123456789"),
        (["(?x) 1 # one"], "0123456789"),
        (["(?P<a1>x){2,31}"], "0000000000"),
        ([], "0000000000"),
    ],
)
def test_digits_are_alike_if_no_part_of_a_pattern_distinguishes_them(texts, alike):
    assert equivalent_digits(map(parse_pattern, texts)) == alike


def test_a_pattern_that_cannot_distinguish_digits_is_searched_once_for_each_length(monkeypatch):
    searched = []
    matches_path = searching._Search.matches_path
    monkeypatch.setattr(
        searching._Search,
        "matches_path",
        lambda self, path, budget: searched.append(path) or matches_path(self, path, budget),
    )
    model = model_of("layers.{0..60}.experts.{0..255}.up")
    (actual,) = match_paths(model, parse_rules({"rules": [(r"experts\.\d+\.up", "fsdp")]}))
    assert actual.group is model.groups[0]
    assert searched == [
        f"layers.{layer}.experts.{expert}.up" for layer in (0, 10) for expert in (0, 10, 100)
    ]


def test_a_rule_for_each_layer_of_a_large_model_takes_its_layer(monkeypatch):
    monkeypatch.setattr(searching, "BUDGET_SECONDS", 60)  # it takes 0.7; machines may be slow
    model = load_model("deepseek-v3")
    rules = parse_rules([(rf"layers\.{n}\.", "..., fsdp" if n % 2 else "") for n in range(62)])
    actual = match_paths(model, rules)
    assert sum(item.group.n_tensors for item in actual) == model.n_tensors
    for item in actual:
        layers = {path.split(".")[2] for path in item.group.paths() if ".layers." in path}
        assert layers == {str(number) for number in item.rules}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (r"layers\.3\..*q_proj", ("layers.", ".", "q_proj")),
        ("ab*c+d{2}e?", ("a",)),
        ("(ab|c)d", ()),
        ("(ab)d", ("d",)),
        ("a|b", ()),
        ("(?i)ab", ()),
        ("(?i:a)b", ("b",)),
        (r"a\b[b]c(?!d)e\df", ("a", "c", "e", "f")),
    ],
)
def test_every_matching_path_contains_the_required_texts(text, message):
    assert parse_pattern(text).required_texts == message


@pytest.mark.parametrize(
    ("pattern", "path", "is_found"),
    [
        ("mlp/up", "layers.0.mlp.up", True),
        (r"mlp\.up", "layers/0/mlp/up", True),
        ("mlp/up", "layers/0/mlp.up", False),  # a dot beside slashes is part of a name
        (r"mlp\.up", "layers/0/mlp.up", True),
        ("mlp.up", "layers/0/mlp/up", True),
        (r"a/b\.c", "a/b.c", True),
        (r"a/b\.c", "a.b.c", False),
        ("^up$", "up", True),
    ],
)
def test_a_rule_may_be_written_with_slashes_or_dots(pattern, path, is_found):
    (placed,) = match_rules(model_of(path), parse_rules({"rules": [(pattern, "fsdp")]}), MESH)
    assert (placed.rule_number == 0) == is_found


def test_a_group_is_split_where_a_rule_takes_a_part_of_it():
    rules = parse_rules([(r"layers\.(0|1)\.", "fsdp"), (".*", "")])
    first, rest = match_rules(model_of("layers.{0..5}.up"), rules, MESH)
    assert (list(first.group.paths()), first.spec) == (
        ["layers.0.up", "layers.1.up"],
        Spec("fsdp"),
    )
    assert (rest.group.n_tensors, rest.rule) == (4, "rule 2: .*")


# What no engine can search quickly, with a path on which it would go on and on.
ENDLESS = r"^(\w|[a-z])*(\w|[a-z])*!?\b[^\w]$"
LONG = "a" * 200


@pytest.mark.parametrize("pattern", ["(a+)+$", ".*.*.*.*.*x", ENDLESS, "(a|a)*b$", "(.*)*$"])
def test_a_search_ends_whatever_the_pattern(pattern, monkeypatch):
    monkeypatch.setattr(searching, "BUDGET_SECONDS", 0.2)
    assert ended(pattern) in (
        "all was searched",
        "Searching the patterns took more than 0.2 s and was stopped.",
    )


def ended(pattern):
    """How a search of the pattern in long paths ended."""
    try:
        match_paths(model_of(LONG, LONG + "!"), parse_rules({"rules": [(pattern, "fsdp")]}))
    except InvalidRules as error:
        return error.what
    return "all was searched"


def test_the_error_names_rule_file_line_and_path(monkeypatch, tmp_path):
    monkeypatch.setattr(searching, "BUDGET_SECONDS", 0.1)
    path = tmp_path / "rules.toml"
    path.write_text(
        f"[[rules]]\npath = 'norm'\nspec = ''\n[[rules]]\npath = '{ENDLESS}'\nspec = ''\n"
    )
    with pytest.raises(InvalidRules) as raised:
        match_paths(model_of("a.b", LONG), parse_rules(path))
    assert raised.value.where == f"{path}:4\n         pattern {ENDLESS}\n         path {LONG}"


def test_a_search_is_stopped_in_other_threads_too(monkeypatch):
    monkeypatch.setattr(searching, "BUDGET_SECONDS", 0.1)
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(ended(ENDLESS)))
    thread.start()
    thread.join()
    assert outcome == ["Searching the patterns took more than 0.1 s and was stopped."]


def test_common_patterns_do_without_the_second_engine():
    path = "model.layers.10.mlp.experts.100.gate_proj.weight"
    for text in (".*", "mlp/.*kernel", r"layers\.\d+\..*_proj\.weight$", "(q|k|v)_proj", "a.*b.*c"):
        assert parse_pattern(text).max_search_steps(len(path)) < searching._MAX_STEPS, text


def test_regex_reads_patterns_in_the_mode_that_is_like_re():
    assert parse_pattern("a").compiled_with_timeout.flags & regex.VERSION0
