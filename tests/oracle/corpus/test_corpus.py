"""Each wrong program gives its finding and no other, and each right one gives none."""

from __future__ import annotations

from collections import Counter

import jax
import pytest
from pairs import RIGHT, TABLES, WRONG

from shardlab import check
from shardlab.checks.check_codes import CODES


def parametrize(cases):
    return pytest.mark.parametrize("case", cases.values(), ids=list(cases))


def checked(case):
    run = not case.read_only
    return check(case.run, *case.args, meshes=case.meshes(), run=run, grads=case.grads)


def is_rejected(case):
    """Return whether JAX rejects the axis order, which 0.10 ignores and 0.12 checks."""
    rejects = hasattr(jax.config, "jax_raise_on_ppermute_sort_diff")
    return case.code == "hazard.ppermute_axis_order" and rejects


@parametrize(WRONG)
def test_a_wrong_program_gives_its_finding_and_no_other(case):
    report = checked(case)
    assert sorted(report.codes) == sorted(filter(None, (case.code, case.besides))), str(report)
    finding = next(item for item in report.findings if item.code == case.code)
    assert finding.severity == ("error" if is_rejected(case) else CODES[case.code].severity)
    if case.cause is not None:
        assert finding.cause == case.cause, str(report)
    if case.lines:
        assert finding.where.file.endswith(case.run.__code__.co_filename.split("/")[-1])
        assert finding.where.line in case.lines, str(report)


@parametrize(RIGHT)
def test_a_right_program_gives_no_finding(case):
    report = checked(case)
    assert not report.with_severity("error"), str(report)
    assert not report.with_severity("warning"), str(report)


@pytest.mark.parametrize("name", ["comment_with_a_reason", "comment_on_the_line_above"])
def test_what_is_suppressed_is_still_reported_with_its_reason(name):
    (suppressed,) = checked(RIGHT[name]).suppressed
    assert suppressed.finding.code in ("hazard.psum_of_replicated", "waste.psum_then_slice")
    assert suppressed.reason in ("a sign", "older hardware has no reduce-scatter")


def test_every_code_has_wrong_programs():
    counts = Counter(case.code for case in WRONG.values())
    assert set(counts) == set(CODES)
    assert min(counts.values()) >= 2
    assert len(WRONG) >= 60


def test_every_wrong_program_that_can_be_fixed_has_a_right_twin():
    for table in TABLES:
        wrong = [case for case in table.wrong_cases.values() if case.code in FIXABLE]
        assert len(table.right_cases) >= len(wrong)


# A program without communication is not wrong.
FIXABLE = set(CODES) - {"program.no_communication"}


def test_every_finding_that_has_a_line_has_it_marked():
    for case in WRONG.values():
        is_about_a_line = not case.code.startswith(("hazard.mesh", "program.", "ignore."))
        assert bool(case.lines) == is_about_a_line, case.name
