"""The minimal failing case: drawn anew, never one of the hidden cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardlab.judge.case_request import CaseRequest
from shardlab.judge.case_result import CaseOutcome
from shardlab.judge.grading.structure import array_leaves

# A smaller case would show nothing new for these, or reach the time limit once more.
_NOT_MINIMIZED = ("CE", "IE", "TLE", "MLE", "OLE", "HANG")
_N_MESHES, _N_DRAWS = 3, 2
_MAX_COUNT = 32

RunCase = Callable[[CaseRequest], CaseOutcome]


def find_minimal_failure(
    outcomes: Sequence[CaseOutcome], seed: int, run_case: RunCase
) -> CaseOutcome | None:
    """Return a failing case that can be checked by hand, None if none was found.

    It fails with the code of the first failure, on the smallest mesh that does, with the smallest
    inputs and, if possible, with integers.
    """
    first = next((outcome for outcome in outcomes if not outcome.passed), None)
    if first is None or first.code in _NOT_MINIMIZED:
        return None
    part = first.request.case.part.number
    similar = [
        outcome.request
        for outcome in outcomes
        if outcome.code == first.code and outcome.request.case.part.number == part
    ]
    # Meshes on which it is known to fail, smallest first: no others need to be tried.
    similar.sort(key=lambda request: (request.mesh.n_devices, request.case.number))
    for request in _draw_smaller(similar[:_N_MESHES], seed):
        outcome = run_case(request)
        if outcome.code == first.code:
            return _simplify_inputs(outcome, run_case)
        if outcome.code in _NOT_MINIMIZED:
            return None
    return None


def _draw_smaller(requests: Sequence[CaseRequest], seed: int) -> Iterator[CaseRequest]:
    """Yield cases with the smallest inputs, drawn anew; the last one has the original size."""
    draws = [(request, 1, number) for request in requests for number in range(_N_DRAWS)]
    draws.append((requests[0], requests[0].case.scale, _N_DRAWS))
    for request, scale, number in draws:
        case = request.case
        # 1 + number: a seed sequence of its own, so no hidden case is drawn again.
        sequence = np.random.SeedSequence([seed, case.part.number, case.number, 1 + number])
        case_seed = int(sequence.generate_state(1, np.uint32)[0])
        smaller = replace(case, seed=case_seed, scale=scale)
        yield CaseRequest(smaller, request.reference, request.reference.inputs(smaller.draw))


def _simplify_inputs(outcome: CaseOutcome, run_case: RunCase) -> CaseOutcome:
    """Return the same failure with integers instead of fractions, if it still fails with them."""
    request = outcome.request
    integers = count_up_inputs(request.inputs)
    if _are_same_inputs(integers, request.inputs):
        return outcome
    simplified_request = replace(request, inputs=integers, has_counted_inputs=True)
    try:
        # 1, 2, 3, ... instead of fractions can overflow, for example in a deep stack of layers.
        with np.errstate(over="ignore", invalid="ignore"):
            if not _is_finite(simplified_request.expected.value):
                return outcome
        simplified = run_case(simplified_request)
    except Exception:  # a reference need not accept other numbers than it draws
        return outcome
    has_same_causes = _verdict_causes(simplified) == _verdict_causes(outcome)
    return simplified if simplified.code == outcome.code and has_same_causes else outcome


def _is_finite(expected: Any) -> bool:
    """Return whether a result has no infinity and no NaN, which nobody can check by hand."""
    return all(
        np.isfinite(array).all()
        for array in (np.asarray(leaf) for _, leaf in array_leaves(expected))
        if array.dtype.kind in "fc"
    )


def _verdict_causes(outcome: CaseOutcome) -> list[str]:
    return [verdict.cause for verdict in outcome.verdicts]


def count_up_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs whose fractions are replaced by 1, 2, 3, ..."""
    return {name: _count_up(value) for name, value in inputs.items()}


def _count_up(value: Any) -> Any:
    """Return arrays of fractions as 1, 2, 3, ...; everything else unchanged."""
    if isinstance(value, dict):
        return {key: _count_up(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_count_up(item) for item in value)
    # Integer inputs have a meaning (labels, indices), so only fractions are replaced.
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return value
    if np.array_equal(value, np.round(value)):
        return value
    count = np.arange(value.size) % _MAX_COUNT + 1
    return count.reshape(value.shape).astype(value.dtype)


def _are_same_inputs(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(_is_same_value(a[name], b[name]) for name in a)


def _is_same_value(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_is_same_value(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return all(_is_same_value(x, y) for x, y in zip(a, b, strict=True))
    return a is b
