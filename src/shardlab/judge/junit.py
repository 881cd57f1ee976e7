"""A judgement as JUnit XML, for tools that collect test results."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from shardlab._text.printable import printable_lines
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import VERDICTS

# JUnit separates a test that could not be evaluated (error) from one that failed.
_ERROR_CODES = {"CE", "IE", "RTE", "TLE", "MLE", "OLE"}


def junit_xml(judgement: Judgement) -> str:
    """Return the cases of a judgement as one test suite."""
    cases = judgement.cases
    n_errors = sum(_is_error(case) for case in cases)
    n_failures = sum(not case.passed and not _is_error(case) for case in cases)
    n_tests = len(cases) + len(judgement.not_judged)
    counts = f'tests="{n_tests}" failures="{n_failures}" errors="{n_errors}"'
    counts += f' skipped="{len(judgement.not_judged)}"'
    suite = xml_attribute(f"shardlab.{judgement.problem}")
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuites {counts}>",
        f"<testsuite name={suite} {counts}>",
        "<properties>",
        *(
            f"<property name={xml_attribute(name)} value={xml_attribute(str(value))}/>"
            for name, value in (("level", judgement.level), ("seed", judgement.seed))
        ),
        "</properties>",
        *(line for case in cases for line in _case_lines(case, suite)),
        *(
            f"<testcase classname={suite} name={xml_attribute(name)}><skipped/></testcase>"
            for name in judgement.not_judged
        ),
        "</testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _is_error(case: CaseResult) -> bool:
    return not case.passed and case.verdicts[0].code in _ERROR_CODES


def _case_lines(case: CaseResult, suite: str) -> list[str]:
    name = xml_attribute(f"part {case.part}, {case.name}")
    lines = [f"<testcase classname={suite} name={name}>"]
    if not case.passed:
        first = case.verdicts[0]
        tag = "error" if _is_error(case) else "failure"
        content = xml_text("\n".join(map(str, case.verdicts)))
        message = xml_attribute(f"{VERDICTS[first.code]}: {first.what}")
        lines.append(f"<{tag} type={xml_attribute(first.code)} message={message}>{content}</{tag}>")
    if case.output:
        lines.append(f"<system-out>{xml_text(case.output)}</system-out>")
    return [*lines, "</testcase>"]


def xml_text(text: str) -> str:
    """Return text for XML; control characters become question marks.

    >>> xml_text("a < b\\x00\\x9b")
    'a &lt; b??'
    """
    return escape(printable_lines(text))


def xml_attribute(text: str) -> str:
    """Return text as an XML attribute with its quotes."""
    return quoteattr(printable_lines(text), {"\n": "&#10;"})
