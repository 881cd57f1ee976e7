"""Keeps a judgement small: a submission decides how much it prints, raises and returns.

A judgement is stored for good and shown in a terminal. One that is larger than the limit is
shortened step by step, until it fits: long texts first, then the number of verdicts and lines, in
the end the figures of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict

MAX_JUDGEMENT_BYTES = 256 << 10
_NOTE = "Long texts of this judgement were shortened."


@dataclass(frozen=True, kw_only=True)
class _Lengths:
    """The largest parts that one step leaves."""

    text: int
    n_verdicts: int
    n_lines: int
    output: int
    device_output: int  # characters by each device
    facts: int  # bytes as JSON; larger ones are dropped


_STEPS = (
    _Lengths(
        text=4000,
        n_verdicts=20,
        n_lines=40,
        output=16_000,
        device_output=2000,
        facts=64_000,
    ),
    _Lengths(text=1000, n_verdicts=5, n_lines=12, output=2000, device_output=500, facts=16_000),
    _Lengths(text=300, n_verdicts=2, n_lines=4, output=200, device_output=60, facts=1000),
)


def shorten_judgement(judgement: Judgement, max_bytes: int = MAX_JUDGEMENT_BYTES) -> Judgement:
    """Return a judgement of at most about `max_bytes`; the same one if it is small enough."""
    if _json_bytes(judgement.to_json()) <= max_bytes:
        return judgement
    notes = (*judgement.notes, _NOTE)
    for lengths in _STEPS:
        shortened = replace(
            judgement,
            cases=tuple(_shorten_case(case, lengths) for case in judgement.cases),
            counterexample=judgement.counterexample
            and _shorten_case(judgement.counterexample, lengths),
            notes=notes,
        )
        if _json_bytes(shortened.to_json()) <= max_bytes:
            break
    return shortened


def _json_bytes(data: Mapping[str, Any]) -> int:
    return len(json.dumps(data))


def _shorten_case(case: CaseResult, lengths: _Lengths) -> CaseResult:
    return replace(
        case,
        verdicts=tuple(_shorten_verdict(v, lengths) for v in case.verdicts[: lengths.n_verdicts]),
        output=_shorten_text(case.output, lengths.output),
        debug_output=case.debug_output and case.debug_output.truncate(lengths.device_output),
        facts=_keep_small(case.facts, lengths.facts),
    )


def _shorten_verdict(verdict: Verdict, lengths: _Lengths) -> Verdict:
    return replace(
        verdict,
        what=_shorten_text(verdict.what, lengths.text),
        where=_shorten_text(verdict.where, lengths.text),
        fix=_shorten_text(verdict.fix, lengths.text),
        shows=tuple(_shorten_text(line, lengths.text) for line in verdict.shows[: lengths.n_lines]),
        details=_keep_small(verdict.details, lengths.facts),
    )


def _keep_small(data: Mapping[str, Any], max_bytes: int) -> Mapping[str, Any]:
    return data if _json_bytes(data) <= max_bytes else {}


def _shorten_text(text: str, length: int) -> str:
    """Return a text of at most so many characters.

    >>> _shorten_text("0123456789" * 3, 20)
    '0123456789012345 ...'
    """
    return text if len(text) <= length else f"{text[: length - 4]} ..."
