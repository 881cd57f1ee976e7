"""Anything may be given for anything: the answer is an error in words, never a traceback."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardlab import LabError, Workload, advise, load_plan, plan


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("nothing is said of this")


class Talkative:
    def __repr__(self) -> str:
        return "x" * 1_000_000


def _deep(depth: int = 5_000) -> Any:
    found: Any = {}
    for _ in range(depth):
        found = [found, {"a": found}][depth % 2]
    return found


def _own() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


WRONG: Mapping[str, Callable[[], Any]] = {
    "bytes": lambda: b"fsdp",
    "nan": lambda: float("nan"),
    "infinity": lambda: float("-inf"),
    "yes": lambda: True,
    "no": lambda: False,
    "numpy number": lambda: np.float32(0.5),
    "numpy yes": lambda: np.bool_(True),
    "numpy array": lambda: np.zeros(3),
    "generator": lambda: (each for each in [1]),
    "long text": lambda: "x" * 1_000_000,
    "no text": lambda: "",
    "escape": lambda: "\x1b]0;evil\x07\x1b[31m",
    "half a character": lambda: "\ud800",
    "nul": lambda: "a\0b",
    "zero": lambda: 0,
    "negative": lambda: -1,
    "large": lambda: 10**30,
    "larger than Python prints": lambda: 10**5_000,
    "list": lambda: [None],
    "list of a number": lambda: [1],
    "table of a number": lambda: {1: 2},
    "set": lambda: {1},
    "its own part": _own,
    "deep": _deep,
    "deep list": lambda: _deep(5_001),
    "decimal": lambda: decimal.Decimal("NaN"),
    "function": lambda: lambda: 1,
    "class": lambda: int,
    "ellipsis": lambda: ...,
    "range": lambda: range(10**18),
    "mute": Mute,
    "talkative": Talkative,
    "device": lambda: Path("/dev/zero"),
    "folder": lambda: Path(),
}
PLAN = {"model": "llama3-8b", "mesh": "fsdp=2,tensor=2"}
ADVICE = {"model": "llama3-8b", "hardware": "tpu-v5p", "chips": 4, "batch": 4, "sequence": 64}


def _planned(name: str, value: Any) -> None:
    given = {**PLAN, "hardware": "tpu-v5p", name: value}
    plan(given.pop("model"), given.pop("mesh"), **given)


def _with_workload(name: str, value: Any) -> None:
    _planned("workload", Workload(**{"batch": 4, "sequence": 64, name: value}))


def _advised(name: str, value: Any) -> None:
    advise(**{**ADVICE, name: value})


WAYS = {
    _planned: "model mesh rules strategy hardware optimizer policy workload headroom limits stack "
    "n_devices",
    _with_workload: "batch sequence remat microbatch dtype cache_dtype flash sequence_parallel",
    _advised: "hardware chips batch sequence optimizer remat zero microbatch context policy "
    "headroom compute_efficiency network_efficiency figures",
    lambda name, value: load_plan(value): "path",
}


@pytest.mark.parametrize(
    ("ask", "name"), [(ask, name) for ask, names in WAYS.items() for name in names.split()]
)
def test_whatever_is_given_is_taken_or_refused_in_words(
    ask: Callable[[str, Any], None], name: str
) -> None:
    for kind, make in WRONG.items():
        said = _refusal(ask, name, make())
        assert len(said) < 2_000, (kind, said[:200])
        assert all(each.isprintable() for each in said.replace("\n", "")), (kind, said)


def _refusal(ask: Callable[[str, Any], None], name: str, value: Any) -> str:
    try:
        ask(name, value)
    except LabError as error:
        return str(error)
    return ""
