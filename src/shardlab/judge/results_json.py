"""A judgement as Exercism's `results.json`, version 3, with further keys of our own.

https://exercism.org/docs/building/tooling/test-runners/interface
"""

from __future__ import annotations

from typing import Any

from shardlab._text.printable import printable_data
from shardlab.judge.debug_output import debug_output_text
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict

VERSION = 3
_MAX_OUTPUT = 500
_TRUNCATED = "... (truncated)"


def results_json(judgement: Judgement) -> dict[str, Any]:
    """Return the results as plain data.

    `status` is pass, fail, or error if no case could be judged at all: the submission cannot be
    loaded, or the judge failed.
    """
    first = judgement.verdict
    # Exercism shows `message` for an error, and the tests otherwise.
    status = "pass" if judgement.passed else "error" if first.code in ("CE", "IE") else "fail"
    counterexample = judgement.counterexample
    results: dict[str, Any] = printable_data(
        {
            "version": VERSION,
            "status": status,
            "message": None if judgement.passed else str(first),
            "tests": [_test_entry(case) for case in judgement.cases],
            # Our own keys.
            "problem": judgement.problem,
            "content_version": judgement.content_version,
            "kind": judgement.kind,
            "level": judgement.level,
            "confinement": judgement.confinement,
            "rejected_calls": dict(judgement.rejected_calls),
            "seed": judgement.seed,
            "verdict": _verdict_entry(first),
            "counts": judgement.counts,
            "not_judged": list(judgement.not_judged),
            "counterexample": _test_entry(counterexample) if counterexample else None,
            "notes": list(judgement.notes),
        }
    )
    return results


def _verdict_entry(verdict: Verdict) -> dict[str, Any]:
    return {**verdict.to_json(), "label": verdict.label}


def _test_entry(case: CaseResult) -> dict[str, Any]:
    codes = {verdict.code for verdict in case.verdicts}
    status = "pass" if case.passed else "error" if codes & {"CE", "IE", "RTE"} else "fail"
    facts = dict(case.facts)
    return {
        "name": f"part {case.part}, {case.name}",
        "status": status,
        "message": None if case.passed else "\n".join(map(str, case.verdicts)),
        "output": _truncate_output(_printed_text(case)) or None,
        "debug_output": case.debug_output.to_json() if case.debug_output else None,
        "test_code": _call_text(case),
        "task_id": case.part,
        "verdicts": [_verdict_entry(verdict) for verdict in case.verdicts],
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


def _call_text(case: CaseResult) -> str:
    """Return the call of a case; a hidden case shows its mesh and not its inputs."""
    call = str(case.facts.get("call", "")) or case.name
    inputs = [f"{value['name']} = {value['text']}" for value in case.facts.get("inputs", ())]
    return "\n".join([*inputs, f"{call}  # {case.mesh}" if case.mesh else call])


def _printed_text(case: CaseResult) -> str:
    """Return what was printed while tracing, then what each device printed."""
    devices = debug_output_text(case.debug_output) if case.debug_output else ""
    return case.output + devices


def _truncate_output(output: str) -> str:
    """Return what was printed, at most 500 characters of it.

    >>> len(_truncate_output("x" * 501)), _truncate_output("short")
    (500, 'short')
    """
    if len(output) <= _MAX_OUTPUT:
        return output
    return output[: _MAX_OUTPUT - len(_TRUNCATED)] + _TRUNCATED
