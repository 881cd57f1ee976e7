"""Patterns that take exponential time or memory: each is searched or rejected quickly.

What is measured is the thread's own time in the product's own budget; no test is timed.
"""

from __future__ import annotations

import threading

import pytest

from shardlab import LabError, plan
from shardlab.errors import InvalidModel, InvalidRules
from shardlab.planner.model import MAX_GROUPS, Model, check_model
from shardlab.planner.rules import rules as rules_module
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.dtype import parse_dtype

SLOW = [
    "(a+)+$",
    "(.*)*$x",
    "((.|.)*)*[^a-z0-9._]",
    "(.?){60}(.?){60}[A-Z]",
    r"(.*)\1\1\1Z",
    "(?=(.*)*Z)",
    "(?!(.*)*Z).",
    "(?<=a)(.*.*.*)*Z",
    "(.{1,99}){1,99}Z",
    "(.{9999}){9999}",
    ".{0,4294967294}",
    "a{99999999999999999999}",
    "(?:.{100}){100}" * 200,
    "a?" * 1000 + "a" * 1000,
    "(((a?)?)?)?" * 100,
    "(|a)*Z",
    "(?:(?:)*)*Z",
    "(" * 2000 + "a" + ")" * 2000,
    "a" * 1_000_000,
    "(?:layersmodel){e<=9}",
    "(?R)",
    r"\p{L}",
    "[[:alpha:]]",
    "[a--b]",
    "\ud800",
    "\x1b[31m",
]


def _said(pattern: str) -> str:
    try:
        plan("llama3-8b", "fsdp=2", rules=[(pattern, "fsdp"), (".*", "")])
    except LabError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("pattern", SLOW, ids=range(len(SLOW)))
def test_a_costly_pattern_is_searched_or_rejected(pattern: str, monkeypatch) -> None:
    monkeypatch.setattr("shardlab.planner.rules.path_search.BUDGET_SECONDS", 0.05)
    message = _said(pattern)
    assert all(item.isprintable() for item in message.replace("\n", ""))
    assert len(message) < 1_500


def test_a_search_is_stopped_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardlab.planner.rules.path_search.BUDGET_SECONDS", 0.05)
    said: list[str] = []
    threads = [
        threading.Thread(target=lambda: said.append(_said("((.|.)*)*[^a-z0-9._]")))
        for _ in range(2)
    ]
    for item in threads:
        item.start()
    for item in threads:
        item.join()
    assert len(said) == 2
    assert all("was stopped" in item for item in said)


@pytest.mark.parametrize("form", [list, lambda pairs: {"rules": pairs}])
def test_patterns_of_too_many_letters_are_rejected_before_they_are_read(form, monkeypatch) -> None:
    monkeypatch.setattr(rules_module, "parse_pattern", pytest.fail)
    pairs = [("(a|b)" * 800 + str(item), "fsdp,tensor") for item in range(30)]
    with pytest.raises(InvalidRules, match="The patterns have 120,050 characters"):
        rules_module.parse_rules(form(pairs))


def test_a_model_of_too_many_groups_is_rejected() -> None:
    kind = parse_dtype("bf16")
    groups = tuple(
        TensorGroup(path_parts=(f"layer{item}",), shape=(2,), dtype=kind)
        for item in range(MAX_GROUPS + 1)
    )
    with pytest.raises(InvalidModel, match=f"{MAX_GROUPS + 1:,} groups") as caught:
        plan(Model(name="many", groups=groups), "fsdp=2")
    assert "layer0" in caught.value.where
    assert check_model(Model(name="few", groups=groups[:9])).n_tensors == 9


def test_a_lone_surrogate_in_a_path_is_rejected() -> None:
    half = TensorGroup(path_parts=("layers.\ud800",), shape=(2,), dtype=parse_dtype("bf16"))
    with pytest.raises(InvalidModel, match="lone surrogate"):
        plan(Model(name="half", groups=(half,)), "fsdp=2")
