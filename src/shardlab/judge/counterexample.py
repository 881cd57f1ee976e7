"""A case laid open: its inputs, what is right, and what every device holds. For small cases only.

Plain data, since it is kept with the judgement; `render/exhibit.py` draws it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardlab.checks.tolerance import is_close
from shardlab.errors import LabError
from shardlab.judge.case_result import Outcome
from shardlab.judge.grading.evidence import Array, numbers, slices
from shardlab.judge.grading.grade import specs_of, tolerance
from shardlab.judge.grading.sharding import ranges_of
from shardlab.judge.grading.structure import leaves
from shardlab.judge.protocol.run_result import Output, Ranges, Shard
from shardlab.judge.protocol.values import Key
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

_MOST_DEVICES = 8
_MOST_OUTPUTS = 4
_MOST_LETTERS = 400
# Of an array that a person is to check by hand, and of what one device holds of it.
_MOST_INPUT, _MOST_HELD = 36, 12


def exhibit(outcome: Outcome) -> dict[str, Any]:
    """Return what a person wants to see of a case that failed."""
    question = outcome.question
    case = question.case
    shown: dict[str, Any] = {
        "call": case.part.call,
        "inputs": [
            {"name": name, "text": value_text(value)} for name, value in question.inputs.items()
        ],
    }
    try:
        right = question.right
    except ValueError as error:
        return {**shown, "expected": f"{type(error).__name__}: {error}"}
    if question.kind == "call":
        held = {} if outcome.value is None else {"got": value_text(outcome.value)}
        return {**shown, "expected": value_text(right.expected), **held}
    if outcome.seen is None:
        return {**shown, "expected": value_text(right.expected)}
    return {**shown, "outputs": _outputs(outcome)}


def value_text(value: Any) -> str:
    """Return an argument or a result in one line.

    >>> value_text(np.float32([1, 2])), value_text({"w": np.int32(3)}), value_text(((5,), "a"))
    ('float32[2] [1 2]', "{'w': int32[] 3}", "((5,), 'a')")
    """
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        shape = ",".join(map(str, array.shape))
        return f"{array.dtype.name}[{shape}] {numbers(array, _MOST_INPUT)}"
    if isinstance(value, Key):
        return f"jax.random.key({value.seed})"
    if isinstance(value, dict):
        return _cut(f"{{{', '.join(f'{k!r}: {value_text(v)}' for k, v in value.items())}}}")
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(value_text, value))
        comma = "," * (len(value) == 1)
        return _cut(f"[{inside}]" if isinstance(value, list) else f"({inside}{comma})")
    return _cut(str(value) if isinstance(value, Spec) else repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 4]} ..."


def _outputs(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the outputs that are wrong, or all where none is for its values."""
    assert outcome.seen is not None
    right = outcome.question.right
    wanted = {path: np.asarray(value) for path, value in leaves(right.expected)}
    asked = dict(specs_of(right.specs, wanted))
    told = [
        _output(outcome, output, wanted.get(output.path), asked.get(output.path))
        for output in outcome.seen.outputs
    ]
    wrong = [each for each in told if any(d["is_wrong"] for d in each["devices"])]
    return (wrong or told)[:_MOST_OUTPUTS]


def _output(
    outcome: Outcome, output: Output, expected: Array | None, asked: Spec | None
) -> dict[str, Any]:
    case = outcome.question.case
    fits = expected is not None and expected.shape == output.shape
    want = _wanted_ranges(output, asked, case.mesh)
    devices = [
        {
            **_place(shard, case.mesh),
            "index": index_text(shard.ranges, output.shape),
            "holds": numbers(shard.values, _MOST_HELD),
            **_should(shard, expected if fits else None, want.get(shard.device), outcome),
        }
        for shard in _few(output.shards)
    ]
    return {
        "name": f"result{output.path}",
        "array": f"{output.dtype}[{','.join(map(str, output.shape))}]",
        "expected": "" if expected is None else value_text(expected),
        "asked": str(asked) if asked is not None else "",
        "n_devices": len(output.shards),
        "devices": devices,
    }


def _few(shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
    return shards if len(shards) <= _MOST_DEVICES else (*shards[: _MOST_DEVICES - 2], shards[-1])


def _place(shard: Shard, mesh: Mesh | None) -> dict[str, Any]:
    place = ""
    if mesh is not None:
        steps = zip(mesh.axis_names, mesh.coordinate(shard.device), strict=True)
        place = ",".join(f"{name}={step}" for name, step in steps)
    return {"device": shard.device, "place": place}


def _wanted_ranges(output: Output, asked: Spec | None, mesh: Mesh | None) -> dict[int, Ranges]:
    """Return where pieces should lie; where no layout is asked for, where they do."""
    if asked is not None and mesh is not None:
        try:
            return ranges_of(output.shape, asked, mesh)
        except LabError:
            pass
    return {shard.device: shard.ranges for shard in output.shards}


def _should(
    shard: Shard, expected: Array | None, ranges: Ranges | None, outcome: Outcome
) -> dict[str, Any]:
    if outcome.question.right.properties is not None and expected is not None:
        return {"should": "", "is_wrong": None}  # other numbers would be right too
    if expected is None or ranges is None:
        return {"should": "", "is_wrong": True}
    piece = expected[slices(ranges)]
    atol = tolerance(outcome.question.case, expected)
    is_right = ranges == shard.ranges and is_close(shard.values, piece, atol)
    return {"should": numbers(piece, _MOST_HELD), "is_wrong": not is_right}


def index_text(ranges: Ranges, shape: tuple[int, ...]) -> str:
    """Return a piece's place as one writes it in NumPy; nothing for a whole array.

    >>> index_text(((0, 2), (0, 3)), (4, 3)), index_text(((0, 4),), (4,))
    ('[0:2, :]', '')
    """
    parts = [
        ":" if (start, stop) == (0, size) else f"{start}:{stop}"
        for (start, stop), size in zip(ranges, shape, strict=True)
    ]
    return "" if set(parts) <= {":"} else f"[{', '.join(parts)}]"
