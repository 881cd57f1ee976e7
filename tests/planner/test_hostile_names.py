"""Names from untrusted files: in no output do they move a cursor or become markup."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from shardlab import advise, plan
from shardlab.errors import InvalidType
from shardlab.findings.finding import Finding
from shardlab.planner.advice.advice_text import advice_html, advice_markdown
from shardlab.planner.memory_bars import bars_svg
from shardlab.planner.plan import Plan
from shardlab.planner.plan_text import plan_html, plan_markdown, plan_text
from shardlab.planner.snapshots.compare_plans import compare_plans
from shardlab.planner.snapshots.plan_comparison_text import (
    comparison_html,
    comparison_markdown,
    comparison_text,
)

EVIL = "<script>x</script>]]>&\"'|`*\x1b[31m\n\r\u202e\u2028\t"
PRINTED = "".join(each for each in EVIL if each.isprintable())


class Array:
    dtype = "float32"

    def __init__(self, *shape: int) -> None:
        self.shape = shape


TREE = {
    EVIL: {EVIL: Array(4096, 4096), "k": Array(4096, 4096)},
    "layers": [{EVIL: Array(8, 4)}] * 3,
}
MESH = {PRINTED: 2, "fsdp": 2}
ASKED = {
    "strategy": {"strategy": "fsdp", "optimizer": "adamw"},
    "rules": {"rules": [("k$", (PRINTED, "fsdp")), (re.escape(PRINTED) + "z", "fsdp")]},
    "axes": {"rules": [(".*", (EVIL,))]},
    "specs": {"rules": {"specs": {EVIL: ["fsdp"], f"layers/0/{EVIL}": (EVIL,)}}},
    "logical": {"rules": {"logical": [(EVIL, "fsdp"), ("embed", EVIL)]}},
}


@pytest.fixture(scope="module")
def hardware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("chips") / "chip.toml"
    message = json.dumps(EVIL)
    file.write_text(
        f'like = "h100"\nname = {message}\ntitle = {message}\n'
        f"hbm_bytes = {{ value = 8e10, source = {message} }}\n"
    )
    return file


@pytest.fixture(scope="module", params=ASKED)
def result(request: pytest.FixtureRequest, hardware: Path) -> Plan:
    return plan(TREE, MESH, hardware=hardware, **ASKED[request.param])


def is_harmless(text: str) -> bool:
    return re.sub(r"[\n\t]", "", text).isprintable()


@pytest.mark.parametrize("width", [20, 100, 500])
def test_the_text_has_no_terminal_escapes(result: Plan, width: int) -> None:
    assert is_harmless(plan_text(result, width, show_all=True, show_rules=True))


def test_pages_and_pictures_have_no_markup_of_a_name(result: Plan) -> None:
    page = plan_html(result, show_all=True)
    for text in (page, bars_svg(result), result.treemap()):
        assert "<script" not in text
        assert is_harmless(text)
    ET.fromstring(bars_svg(result))
    ET.fromstring(result.treemap())


def test_markdown_escapes_names(result: Plan) -> None:
    text = plan_markdown(result, show_all=True, show_rules=True)
    assert is_harmless(text)
    outside = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)  # of spans of code
    assert "<script" not in outside.replace("\\<", "")


def test_a_comparison_is_as_harmless(result: Plan) -> None:
    change = compare_plans(result, plan(TREE, {"fsdp": 4}, strategy="fsdp"))
    assert is_harmless(comparison_text(change, 100))
    assert is_harmless(comparison_markdown(change))
    assert "<script" not in comparison_html(change)


def test_advice_is_as_harmless(hardware: Path) -> None:
    advice = advise("llama3-8b", hardware, 4, batch=4, sequence=64)
    assert "<script" not in advice_html(advice, top=3)
    assert "\n<script" not in advice_markdown(advice, top=3)
    assert " <script" not in advice_markdown(advice, top=3)
    assert is_harmless(advice_markdown(advice, top=3))


def test_a_mesh_axis_has_a_name_that_can_be_printed() -> None:
    with pytest.raises(InvalidType, match=r"'a\\x1b\[31m' is not a mesh axis name"):
        plan("llama3-8b", {"a\x1b[31m": 2})


def test_a_finding_escapes_invisible_characters() -> None:
    actual = Finding(
        code="plan.x",
        severity="error",
        what="a\x1b[31m",
        where=None,
        fix="b\u202e",
        shows=("c\x07",),
    )
    assert (actual.what, actual.fix, actual.shows) == (r"a\x1b[31m", r"b\u202e", (r"c\x07",))
