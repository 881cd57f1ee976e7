"""The minimal failing case: inputs that can be checked by hand."""

from dataclasses import replace

import numpy as np

from judge.small_problems import problem
from shardlab.catalogue.reference import load_reference
from shardlab.judge.case_request import CaseRequest
from shardlab.judge.case_result import failed_outcome
from shardlab.judge.cases import make_cases
from shardlab.judge.minimize import find_minimal_failure
from shardlab.judge.verdict import Verdict

WRONG = Verdict(code="WA", what="The result is wrong.")


def _minimal_failure(power):
    """Return the minimal failing case of x ** power, for a submission that is always wrong."""
    total = problem("total", meshes=("data=2",))
    (case,) = make_cases(total.parts[0], 1, 2)
    reference = replace(
        load_reference(total, total.parts[0]),
        inputs=lambda draw: {"x": np.full(4, 0.5, np.float32)},
        expected=lambda mesh, x: (x**power).sum(),
    )
    request = CaseRequest(case, reference, reference.inputs(case.draw))
    outcomes = [failed_outcome(request, WRONG)]
    return find_minimal_failure(outcomes, 1, lambda request: failed_outcome(request, WRONG))


def test_fractions_become_integers():
    assert _minimal_failure(3).request.inputs["x"].tolist() == [1, 2, 3, 4]


def test_fractions_stay_if_integers_overflow():
    outcome = _minimal_failure(100)  # 4 ** 100 is more than float32 can hold
    assert outcome.request.inputs["x"].tolist() == [0.5] * 4
    assert np.isfinite(outcome.request.expected.value)
