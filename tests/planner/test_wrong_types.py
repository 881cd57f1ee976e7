"""Arguments of any type give a result or a LabError, never another exception."""

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
        raise RuntimeError("no repr")


class Talkative:
    def __repr__(self) -> str:
        return "x" * 1_000_000


def _deep(depth: int = 5_000) -> Any:
    nested: Any = {}
    for _ in range(depth):
        nested = [nested, {"a": nested}][depth % 2]
    return nested


def _cyclic() -> list[Any]:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    return cyclic


WRONG: Mapping[str, Callable[[], Any]] = {
    "bytes": lambda: b"fsdp",
    "nan": lambda: float("nan"),
    "infinity": lambda: float("-inf"),
    "yes": lambda: True,
    "no": lambda: False,
    "numpy number": lambda: np.float32(0.5),
    "numpy yes": lambda: np.bool_(True),
    "numpy array": lambda: np.zeros(3),
    "generator": lambda: (number for number in [1]),
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
    "cyclic list": _cyclic,
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
ADVICE = {"model": "llama3-8b", "hardware": "tpu-v5p", "devices": 4, "batch": 4, "sequence": 64}


def _call_plan(name: str, value: Any) -> None:
    arguments = {**PLAN, "hardware": "tpu-v5p", name: value}
    plan(arguments.pop("model"), arguments.pop("mesh"), **arguments)


def _call_workload(name: str, value: Any) -> None:
    _call_plan("workload", Workload(**{"batch": 4, "sequence": 64, name: value}))


def _call_advise(name: str, value: Any) -> None:
    advise(**{**ADVICE, name: value})


ARGUMENTS = {
    _call_plan: "model mesh rules strategy hardware optimizer policy workload headroom limits "
    "stack n_devices",
    _call_workload: "batch sequence remat microbatch dtype cache_dtype flash sequence_parallel",
    _call_advise: "hardware devices batch sequence optimizer remat zero microbatch context policy "
    "headroom compute_efficiency network_efficiency figures",
    lambda name, value: load_plan(value): "path",
}


@pytest.mark.parametrize(
    ("call", "name"),
    [(call, name) for call, names in ARGUMENTS.items() for name in names.split()],
)
def test_any_value_is_accepted_or_rejected_with_a_lab_error(
    call: Callable[[str, Any], None], name: str
) -> None:
    for kind, make in WRONG.items():
        message = _error_message(call, name, make())
        assert len(message) < 2_000, (kind, message[:200])
        printable = all(character.isprintable() for character in message.replace("\n", ""))
        assert printable, (kind, message)


def _error_message(call: Callable[[str, Any], None], name: str, value: Any) -> str:
    try:
        call(name, value)
    except LabError as error:
        return str(error)
    return ""
