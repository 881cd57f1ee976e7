"""A wrong answer: a typical mistake, whose first line says what the judge must find.

# WA factor_of_n: every device adds up all of x, and psum adds up the devices
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardlab.judge.judgement import Judgement
from shardlab.judge.verdict import CAUSES, VERDICTS

_HEADER = re.compile(r"# ([A-Z]+)(?: (\w+))?: (\S.*)")


@dataclass(frozen=True)
class Claim:
    """What the first line of a wrong answer says.

    >>> read_claim("# WA factor_of_n: psum of what is whole")
    Claim(code='WA', cause='factor_of_n', sentence='psum of what is whole')
    """

    code: str
    cause: str
    sentence: str


def read_claim(source: str) -> Claim | str:
    """Return what a wrong answer claims, or why it claims nothing."""
    first = source.partition("\n")[0]
    header = _HEADER.fullmatch(first)
    if header is None:
        return f"The first line is {first!r:.100}; it must be '# CODE: sentence' or with a cause."
    claim = Claim(header[1], header[2] or "", header[3])
    if claim.code not in VERDICTS or claim.code in ("AC", "IE"):
        known = ", ".join(code for code in VERDICTS if code not in ("AC", "IE"))
        return f"'{claim.code}' is no verdict of a wrong answer; there are {known}."
    if claim.cause and claim.cause not in CAUSES:
        return f"'{claim.cause}' is no named cause; there are {', '.join(CAUSES)}."
    return claim


def unproven(claim: Claim, judged: Judgement) -> str:
    """Return how a judgement differs from what a wrong answer claims; empty where it does not.

    Every case that fails must fail with the code claimed and no other; the first of them must
    have the cause, where one is named.
    """
    first = judged.first_failure
    if first is None:
        return f"It claims {claim.code} and passes."
    for case in judged.cases:
        others = {verdict.code for verdict in case.verdicts} - {claim.code, "AC"}
        if others:
            gives = ", ".join(sorted(others))
            return f"It claims {claim.code}, and {case.name} of part {case.part} gives {gives}."
    causes = {verdict.cause for verdict in first.verdicts if verdict.code == claim.code}
    if claim.cause and claim.cause not in causes:
        found = ", ".join(sorted(filter(None, causes))) or "none"
        return (
            f"It claims the cause {claim.cause}; {first.name} of part {first.part} shows {found}."
        )
    return ""
