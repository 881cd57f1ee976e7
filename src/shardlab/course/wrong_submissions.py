"""Known-wrong submissions: typical mistakes, each with the verdict that the judge must give.

# WA factor_of_n: every device sums all of x, and psum adds the devices' sums
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardlab.judge.judgement import Judgement
from shardlab.judge.verdict import CAUSES, VERDICTS

_HEADER = re.compile(r"# ([A-Z]+)(?: (\w+))?: (\S.*)")
_NOT_A_MISTAKE = ("AC", "IE")  # accepted, and a failure of the judge itself


@dataclass(frozen=True)
class ExpectedVerdict:
    """The first line of a known-wrong submission.

    >>> parse_header("# WA factor_of_n: psum of a replicated value")
    ExpectedVerdict(code='WA', cause='factor_of_n', sentence='psum of a replicated value')
    """

    code: str
    cause: str
    sentence: str


def parse_header(source: str) -> ExpectedVerdict | str:
    """Return the expected verdict of a source, or a message about its first line."""
    first_line = source.partition("\n")[0]
    match = _HEADER.fullmatch(first_line)
    if match is None:
        form = "'# CODE: sentence' or '# CODE cause: sentence'"
        return f"The first line is {first_line!r:.100}; it must be {form}."
    expected = ExpectedVerdict(match[1], match[2] or "", match[3])
    if expected.code not in VERDICTS or expected.code in _NOT_A_MISTAKE:
        codes = ", ".join(code for code in VERDICTS if code not in _NOT_A_MISTAKE)
        return f"'{expected.code}' is not a verdict of a wrong submission; use one of {codes}."
    if expected.cause and expected.cause not in CAUSES:
        return f"Unknown cause '{expected.cause}'; use one of {', '.join(CAUSES)}."
    return expected


def compare_verdict(expected: ExpectedVerdict, judgement: Judgement) -> str:
    """Return how a judgement differs from the expected verdict; empty if it does not.

    Every case that fails must fail with the expected code and no other; the first of them must have
    the expected cause, if there is one.
    """
    failure = judgement.first_failure
    if failure is None:
        return f"It expects {expected.code} and passes."
    for case in judgement.cases:
        codes = {verdict.code for verdict in case.verdicts} - {expected.code, "AC"}
        if codes:
            verdicts = ", ".join(sorted(codes))
            case_name = f"{case.name} of part {case.part}"
            return f"It expects {expected.code}, and {case_name} gives {verdicts}."
    causes = {verdict.cause for verdict in failure.verdicts if verdict.code == expected.code}
    if expected.cause and expected.cause not in causes:
        names = ", ".join(sorted(filter(None, causes))) or "none"
        case_name = f"{failure.name} of part {failure.part}"
        return f"It expects the cause {expected.cause}; {case_name} gives {names}."
    return ""
