"""The smallest case that still fails: another draw, never a hidden case itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardlab.judge.case_request import Question
from shardlab.judge.case_result import Outcome

# Of these a smaller case would show nothing, or would take the time limit once more.
_NOT_SHOWN = ("CE", "IE", "TLE", "MLE", "OLE", "HANG")
_N_MESHES, _N_DRAWS = 3, 2
_MOST_COUNTED = 32

Ask = Callable[[Question], Outcome]


def shrunk(outcomes: Sequence[Outcome], seed: int, ask: Ask) -> Outcome | None:
    """Return a failing case that a person can check by hand; None where none was found.

    It fails as the first failure does, on the smallest mesh that does so, with the fewest and the
    plainest numbers.
    """
    first = next((each for each in outcomes if not each.passed), None)
    if first is None or first.code in _NOT_SHOWN:
        return None
    part = first.question.case.part.number
    alike = [
        each.question
        for each in outcomes
        if each.code == first.code and each.question.case.part.number == part
    ]
    alike.sort(key=lambda question: (question.mesh.n_devices, question.case.number))
    for question in _draws(alike[:_N_MESHES], seed):
        found = ask(question)
        if found.code == first.code:
            return _plainer(found, ask)
        if found.code in _NOT_SHOWN:
            return None
    return None


def _draws(questions: Sequence[Question], seed: int) -> Iterator[Question]:
    """Yield cases with the smallest inputs, drawn anew; last, one with inputs as large as were."""
    smallest = [(question, 1, at) for question in questions for at in range(_N_DRAWS)]
    for question, scale, at in [*smallest, (questions[0], questions[0].case.scale, _N_DRAWS)]:
        case = question.case
        drawn = np.random.SeedSequence([seed, case.part.number, case.number, 1 + at])
        small = replace(case, seed=int(drawn.generate_state(1, np.uint32)[0]), scale=scale)
        yield Question(small, question.reference, question.reference.inputs(small.draw))


def _plainer(found: Outcome, ask: Ask) -> Outcome:
    """Return the same failure with whole numbers in the place of others, where it still fails."""
    question = found.question
    plain = {name: _counted(value) for name, value in question.inputs.items()}
    if _is_same(plain, question.inputs):
        return found
    try:
        tried = ask(replace(question, inputs=plain))
    except Exception:  # a reference need not accept other numbers than it draws
        return found
    is_told = tried.code == found.code and _causes(tried) == _causes(found)
    return tried if is_told else found


def _causes(outcome: Outcome) -> list[str]:
    return [verdict.cause for verdict in outcome.verdicts]


def _counted(value: Any) -> Any:
    """Return fractions as 1, 2, 3, ...; whole numbers as they are."""
    if isinstance(value, dict):
        return {key: _counted(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_counted(each) for each in value)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return value
    if np.array_equal(value, np.round(value)):
        return value
    count = np.arange(value.size) % _MOST_COUNTED + 1
    return count.reshape(value.shape).astype(value.dtype)


def _is_same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[name] is b[name] or _equal(a[name], b[name]) for name in a)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return a is b
