"""A small failing case with all its values: inputs, expected result, the shards of every device.

Plain data, because it is stored with the judgement; `counterexample_picture.py` draws it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardlab.checks.tolerance import is_close
from shardlab.errors import LabError
from shardlab.judge.case_result import CaseOutcome
from shardlab.judge.grading.evidence import (
    Array,
    array_text,
    number_text,
    pair_texts,
    precise_text,
    range_slices,
)
from shardlab.judge.grading.grade import absolute_tolerance, output_specs
from shardlab.judge.grading.sharding import device_ranges
from shardlab.judge.grading.structure import array_leaves
from shardlab.judge.protocol.run_result import Ranges, RunOutput, Shard
from shardlab.judge.protocol.values import Key
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

_MAX_DEVICES = 8
_MAX_OUTPUTS = 4
_MAX_TEXT = 400
# Elements of an input, and of a shard, that are still readable.
_MAX_INPUT_ELEMENTS, _MAX_SHARD_ELEMENTS = 36, 12
_MAX_DRAWN_ELEMENTS = 64


def counterexample_facts(outcome: CaseOutcome) -> dict[str, Any]:
    """Return the inputs, the expected values and the shards of a case that failed."""
    request = outcome.request
    facts: dict[str, Any] = {
        "call": request.case.part.call,
        "mesh": [] if request.case.mesh is None else [*map(list, request.case.mesh.shape.items())],
        # With part, number and seed: enough to draw the same inputs once more.
        "draw": {
            "scale": request.case.scale,
            "has_counted_inputs": request.has_counted_inputs,
        },
        "inputs": [
            {"name": name, "text": value_text(value)} for name, value in request.inputs.items()
        ],
    }
    try:
        expected = request.expected
    except ValueError as error:
        return {**facts, "expected": f"{type(error).__name__}: {error}"}
    if request.kind == "call":
        actual = {} if outcome.value is None else {"got": value_text(outcome.value)}
        return {**facts, "expected": value_text(expected.value), **actual}
    if outcome.run is None:
        return {**facts, "expected": value_text(expected.value)}
    return {**facts, "outputs": _describe_outputs(outcome)}


def value_text(value: Any) -> str:
    """Return an argument or a result in one line.

    >>> value_text(np.float32([1, 2])), value_text({"w": np.int32(3)}), value_text(((5,), "a"))
    ('float32[2] [1 2]', "{'w': int32[] 3}", "((5,), 'a')")
    """
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        shape = ",".join(map(str, array.shape))
        text = f"{array.dtype.name}[{shape}] {array_text(array, _MAX_INPUT_ELEMENTS)}"
        # Extremes often explain a failure, and may be among the elements that are not printed.
        if array.size > _MAX_INPUT_ELEMENTS and array.dtype.kind in "iuf":
            text += f" (min {number_text(array.min())}, max {number_text(array.max())})"
        return text
    if isinstance(value, Key):
        return f"jax.random.key({value.seed})"
    if isinstance(value, dict):
        return _truncate(f"{{{', '.join(f'{k!r}: {value_text(v)}' for k, v in value.items())}}}")
    if isinstance(value, (list, tuple)):
        items = ", ".join(map(value_text, value))
        comma = "," * (len(value) == 1)
        return _truncate(f"[{items}]" if isinstance(value, list) else f"({items}{comma})")
    return _truncate(str(value) if isinstance(value, Spec) else repr(value))


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 4]} ..."


def _describe_outputs(outcome: CaseOutcome) -> list[dict[str, Any]]:
    """Return the outputs that are wrong, or all if no value is."""
    assert outcome.run is not None
    expected = outcome.request.expected
    arrays = {path: np.asarray(value) for path, value in array_leaves(expected.value)}
    specs = dict(output_specs(expected.specs, arrays))
    outputs = [
        _describe_output(outcome, output, arrays.get(output.path), specs.get(output.path))
        for output in outcome.run.outputs
    ]
    # A right output next to a wrong one only hides the difference.
    wrong = [out for out in outputs if any(device["is_wrong"] for device in out["devices"])]
    return (wrong or outputs)[:_MAX_OUTPUTS]


def _describe_output(
    outcome: CaseOutcome, output: RunOutput, expected: Array | None, spec: Spec | None
) -> dict[str, Any]:
    mesh = outcome.request.case.mesh
    # With another shape there is no element to compare; the verdict is about the shape.
    comparable = expected if expected is not None and expected.shape == output.shape else None
    expected_ranges = _expected_ranges(output, spec, mesh)
    devices = [
        {
            **_describe_device(shard, mesh),
            "index": range_text(shard.ranges, output.shape),
            "holds": array_text(shard.values, _MAX_SHARD_ELEMENTS),
            **_compare_shard(shard, comparable, expected_ranges.get(shard.device), outcome),
            "elements": _list_elements(
                shard, comparable, expected_ranges.get(shard.device), outcome
            ),
        }
        for shard in _select_shards(output.shards)
    ]
    return {
        "name": f"result{output.path}",
        "array": f"{output.dtype}[{','.join(map(str, output.shape))}]",
        "expected": "" if expected is None else value_text(expected),
        "asked": str(spec) if spec is not None else "",
        "n_devices": len(output.shards),
        "devices": devices,
    }


def _select_shards(shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
    # The last one shows where a pattern over the devices ends.
    return shards if len(shards) <= _MAX_DEVICES else (*shards[: _MAX_DEVICES - 2], shards[-1])


def _describe_device(shard: Shard, mesh: Mesh | None) -> dict[str, Any]:
    coordinate = () if mesh is None else tuple(mesh.coordinate(shard.device))
    names = () if mesh is None else mesh.axis_names
    place = ",".join(f"{name}={step}" for name, step in zip(names, coordinate, strict=True))
    return {"device": shard.device, "place": place, "coordinate": list(coordinate)}


def _expected_ranges(output: RunOutput, spec: Spec | None, mesh: Mesh | None) -> dict[int, Ranges]:
    """Return which range each device should hold; if any sharding is right, the one it holds."""
    if spec is not None and mesh is not None:
        try:
            return device_ranges(output.shape, spec, mesh)
        # The expected spec does not fit this shape; then the shape is the verdict.
        except LabError:
            pass
    return {shard.device: shard.ranges for shard in output.shards}


def _compare_shard(
    shard: Shard, expected: Array | None, ranges: Ranges | None, outcome: CaseOutcome
) -> dict[str, Any]:
    if outcome.request.expected.properties is not None and expected is not None:
        return {"should": "", "is_wrong": None}  # other values would be right too
    if expected is None or ranges is None:
        return {"should": "", "is_wrong": True}
    expected_shard = expected[range_slices(ranges)]
    atol = absolute_tolerance(outcome.request.case, expected)
    is_right = ranges == shard.ranges and is_close(shard.values, expected_shard, atol)
    if is_right:
        return {"should": array_text(expected_shard, _MAX_SHARD_ELEMENTS), "is_wrong": False}
    shard_text, expected_text = pair_texts(shard.values, expected_shard, _MAX_SHARD_ELEMENTS, atol)
    return {"holds": shard_text, "should": expected_text, "is_wrong": True}


def _list_elements(
    shard: Shard, expected: Array | None, ranges: Ranges | None, outcome: CaseOutcome
) -> dict[str, Any] | None:
    """Return each element of a shard as text, for a picture; None if there are too many.

    `wrong` are the positions, in C order, of elements that differ from the expected ones. Expected
    elements are missing if another shape is expected, or if other values would be right too.
    """
    values = np.asarray(shard.values)
    if values.size > _MAX_DRAWN_ELEMENTS:
        return None
    elements: dict[str, Any] = {
        "shape": list(values.shape),
        "holds": [number_text(value) for value in values.flat],
        "expected": None,
        "wrong": [],
    }
    if expected is None or ranges is None or outcome.request.expected.properties is not None:
        return elements
    expected_values = np.asarray(expected[range_slices(ranges)])
    if expected_values.shape != values.shape:
        return elements
    atol = absolute_tolerance(outcome.request.case, expected)
    close = np.isclose(values, expected_values, rtol=0.0, atol=atol, equal_nan=True)
    elements["wrong"] = [int(position) for position in np.flatnonzero(~close)]
    elements["expected"] = [number_text(value) for value in expected_values.flat]
    for position in elements["wrong"]:
        # Rounded, both may look the same.
        if elements["holds"][position] == elements["expected"][position]:
            elements["holds"][position] = precise_text(values.flat[position])
            elements["expected"][position] = precise_text(expected_values.flat[position])
    return elements


def range_text(ranges: Ranges, shape: tuple[int, ...]) -> str:
    """Return the range of a shard as a NumPy index; nothing for a full array.

    >>> range_text(((0, 2), (0, 3)), (4, 3)), range_text(((0, 4),), (4,))
    ('[0:2, :]', '')
    """
    parts = [
        ":" if (start, stop) == (0, size) else f"{start}:{stop}"
        for (start, stop), size in zip(ranges, shape, strict=True)
    ]
    return "" if set(parts) <= {":"} else f"[{', '.join(parts)}]"
