"""A judgement as JUnit XML, for whatever collects test results."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from shardlab._text.printable import printable_lines
from shardlab.judge.judgement import CaseResult, Judgement

_ERRORS = {"CE", "IE", "RTE", "TLE", "MLE", "OLE"}


def junit_xml(judgement: Judgement) -> str:
    """Return the cases of a judgement as one test suite."""
    cases = judgement.cases
    errors = [case for case in cases if _is_error(case)]
    failures = [case for case in cases if not case.passed and not _is_error(case)]
    n = len(cases) + len(judgement.not_judged)
    counts = f'tests="{n}" failures="{len(failures)}" errors="{len(errors)}"'
    counts += f' skipped="{len(judgement.not_judged)}"'
    suite = attribute(f"shardlab.{judgement.problem}")
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuites {counts}>",
        f"<testsuite name={suite} {counts}>",
        "<properties>",
        *(
            f"<property name={attribute(name)} value={attribute(str(value))}/>"
            for name, value in (("level", judgement.level), ("seed", judgement.seed))
        ),
        "</properties>",
        *(line for case in cases for line in _case(case, suite)),
        *(
            f"<testcase classname={suite} name={attribute(name)}><skipped/></testcase>"
            for name in judgement.not_judged
        ),
        "</testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _is_error(case: CaseResult) -> bool:
    return not case.passed and case.verdicts[0].code in _ERRORS


def _case(case: CaseResult, suite: str) -> list[str]:
    name = attribute(f"part {case.part}, {case.name}")
    lines = [f"<testcase classname={suite} name={name}>"]
    if not case.passed:
        first = case.verdicts[0]
        tag = "error" if _is_error(case) else "failure"
        told = "\n".join(map(str, case.verdicts))
        lines.append(
            f"<{tag} type={attribute(first.code)} message={attribute(first.what)}>"
            f"{text(told)}</{tag}>"
        )
    if case.output:
        lines.append(f"<system-out>{text(case.output)}</system-out>")
    return [*lines, "</testcase>"]


def text(words: str) -> str:
    """Return words as XML text; characters that move a cursor become question marks.

    >>> text("a < b\\x00\\x9b")
    'a &lt; b??'
    """
    return escape(printable_lines(words))


def attribute(words: str) -> str:
    """Return words as an XML attribute with its quotes."""
    return quoteattr(printable_lines(words), {"\n": "&#10;"})
