"""A judgement as Exercism's `results.json`, version 3, with our keys beside theirs.

https://exercism.org/docs/building/tooling/test-runners/interface
"""

from __future__ import annotations

from typing import Any

from shardlab._text.printable import printable_data
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict

VERSION = 3
_MOST_OUTPUT = 500
_CUT = "... (cut)"


def results_json(judgement: Judgement) -> dict[str, Any]:
    """Return the results as plain data.

    `status` is pass, fail, or error where no case could be judged at all: an answer that cannot be
    loaded, or a fault of the judge's own.
    """
    first = judgement.verdict
    status = "pass" if judgement.passed else "error" if first.code in ("CE", "IE") else "fail"
    told: dict[str, Any] = printable_data(_told(judgement, first, status))
    return told


def _told(judgement: Judgement, first: Verdict, status: str) -> dict[str, Any]:
    return {
        "version": VERSION,
        "status": status,
        "message": None if judgement.passed else str(first),
        "tests": [_test(case) for case in judgement.cases],
        # What follows is ours.
        "problem": judgement.problem,
        "content_version": judgement.content_version,
        "kind": judgement.kind,
        "level": judgement.level,
        "seed": judgement.seed,
        "verdict": first.to_json(),
        "counts": judgement.counts,
        "not_judged": list(judgement.not_judged),
        "counterexample": _test(judgement.counterexample) if judgement.counterexample else None,
        "notes": list(judgement.notes),
    }


def _test(case: CaseResult) -> dict[str, Any]:
    codes = {verdict.code for verdict in case.verdicts}
    status = "pass" if case.passed else "error" if codes & {"CE", "IE", "RTE"} else "fail"
    facts = dict(case.facts)
    return {
        "name": f"part {case.part}, {case.name}",
        "status": status,
        "message": None if case.passed else "\n".join(map(str, case.verdicts)),
        "output": _cut(case.output) if case.output else None,
        "test_code": _code(case),
        "task_id": case.part,
        "verdicts": [verdict.to_json() for verdict in case.verdicts],
        "mesh": case.mesh,
        "seed": case.seed,
        "number": case.number,
        "is_example": case.is_example,
        "is_simulated": case.is_simulated,
        "devices": facts.get("outputs", []),
        "inputs": facts.get("inputs", []),
        "collectives": facts.get("collectives", []),
        "peak_bytes": facts.get("peak_bytes"),
        "why": case.verdicts[0].cause or None,
    }


def _code(case: CaseResult) -> str:
    """Return the call of a case; a hidden one says its mesh and not its inputs."""
    call = str(case.facts.get("call", "")) or case.name
    given = [f"{each['name']} = {each['text']}" for each in case.facts.get("inputs", ())]
    return "\n".join([*given, f"{call}  # {case.mesh}" if case.mesh else call])


def _cut(output: str) -> str:
    """Return what was printed, at most 500 characters of it.

    >>> len(_cut("x" * 501)), _cut("short")
    (500, 'short')
    """
    if len(output) <= _MOST_OUTPUT:
        return output
    return output[: _MOST_OUTPUT - len(_CUT)] + _CUT
