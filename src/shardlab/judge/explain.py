"""Names the cause of each wrong value from all cases of its part, and says it in each case's words.

On one mesh alone a factor of 2 may be many things; on nine meshes it is the size of an axis or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardlab.catalogue.problem import Problem
from shardlab.judge.case_result import Outcome
from shardlab.judge.grading import replicas as copies
from shardlab.judge.grading import wrong_values
from shardlab.judge.grading.evidence import Evidence
from shardlab.judge.grading.replicas import Differing
from shardlab.judge.grading.wrong_values import Cause, Known
from shardlab.judge.verdict import Verdict

_MOST_NAMED = 4


@dataclass(frozen=True)
class _Causes:
    """Of one part, by path of the output: why values differ, and what copies lack."""

    values: Mapping[str, Cause]
    missing: Mapping[str, str]


def explained(outcomes: Sequence[Outcome], problem: Problem) -> list[Outcome]:
    """Return outcomes whose verdicts about values name what explains the whole part."""
    by_part: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        by_part.setdefault(outcome.question.case.part.number, []).append(outcome)
    known = {number: _causes(part, problem) for number, part in by_part.items()}
    return [_told(each, known[each.question.case.part.number]) for each in outcomes]


def _causes(outcomes: Sequence[Outcome], problem: Problem) -> _Causes:
    seen: dict[str, list[Evidence]] = {}
    lacking: dict[str, list[Differing]] = {}
    for outcome in outcomes:
        for each in outcome.grade.evidence:
            seen.setdefault(each.output.path, []).append(each)
        for differing in outcome.grade.differing.values():
            path = differing.evidence.output.path
            lacking.setdefault(path, []).append(differing)
    has_gradients = any(tag.startswith("grad") for tag in problem.tags)
    right = {path for path, each in seen.items() if all(one.agrees for one in each)}
    causes = {}
    for path, shown in seen.items():
        if path not in right:
            known = Known(has_gradients, others_agree=bool(right))
            causes[path] = wrong_values.cause_of(shown, known)
    missing = {path: copies.common_reduction(each) for path, each in lacking.items()}
    return _Causes(causes, missing)


def _told(outcome: Outcome, causes: _Causes) -> Outcome:
    graded = outcome.grade
    verdicts = list(outcome.verdicts)
    seen = outcome.seen
    is_checked = seen is not None and seen.has_shard_map and seen.is_checked
    for at, each in graded.wrong.items():
        cause = causes.values[each.output.path]
        verdicts[at] = wrong_values.verdict(each, cause, is_checked)
    for at, found in graded.differing.items():
        verdicts[at] = copies.verdict(found, causes.missing[found.evidence.output.path])
    return replace(outcome, verdicts=tuple(_merged(verdicts, outcome)))


def _merged(verdicts: Sequence[Verdict], outcome: Outcome) -> list[Verdict]:
    """Return one verdict for all outputs that are wrong for the same reason; named ones first."""
    about = {**outcome.grade.wrong}
    about |= {at: each.evidence for at, each in outcome.grade.differing.items()}
    groups: dict[tuple[str, str], list[int]] = {}
    rest = []
    for at, verdict in enumerate(verdicts):
        if at in about:
            groups.setdefault((verdict.code, verdict.cause), []).append(at)
        else:
            rest.append(verdict)
    merged = []
    for (_, _), (first, *others) in sorted(groups.items(), key=lambda item: item[0][1] == ""):
        names = [about[at].name for at in others]
        more = ["..."] if len(names) > _MOST_NAMED else []
        told = (f"the same holds for {', '.join(names[:_MOST_NAMED] + more)}",) if names else ()
        merged.append(replace(verdicts[first], shows=(*verdicts[first].shows, *told)))
    return [*merged, *rest]
