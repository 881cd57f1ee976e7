"""Names the cause of wrong values from all cases of a part, and words it with each case's numbers.

On one mesh a factor of 2 can be many things; on nine meshes it is the size of an axis or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardlab.catalogue.problem import Problem
from shardlab.judge.case_result import CaseOutcome
from shardlab.judge.grading import differing_replicas, wrong_values
from shardlab.judge.grading.differing_replicas import DifferingReplicas
from shardlab.judge.grading.evidence import Evidence
from shardlab.judge.grading.wrong_values import Cause, OutputContext
from shardlab.judge.verdict import Verdict

_MAX_NAMES = 4


@dataclass(frozen=True)
class _PartCauses:
    """The causes of one part by the path of the output: of wrong values, of differing replicas."""

    values: Mapping[str, Cause]
    missing_reductions: Mapping[str, str]


def explain_outcomes(outcomes: Sequence[CaseOutcome], problem: Problem) -> list[CaseOutcome]:
    """Return outcomes whose verdicts on values name what explains the whole part."""
    by_part: dict[int, list[CaseOutcome]] = {}
    for outcome in outcomes:
        by_part.setdefault(outcome.request.case.part.number, []).append(outcome)
    causes = {number: _find_part_causes(part, problem) for number, part in by_part.items()}
    return [
        _reword_outcome(outcome, causes[outcome.request.case.part.number]) for outcome in outcomes
    ]


def name_passed_parts(outcomes: Sequence[CaseOutcome]) -> list[CaseOutcome]:
    """Return outcomes that say which parts passed, if a later one calls with other arguments.

    The parts of a problem may call one function with different arguments: `f(x)` on one device,
    then `f(x, mesh)`. What is right for the first is not a submission that cannot be loaded.
    """
    failed = [outcome.request.case.part.number for outcome in outcomes if not outcome.passed]
    first_failed = min(failed, default=0)
    n_parts_passed = first_failed - 1
    if n_parts_passed < 1:
        return list(outcomes)
    return [_name_passed_part(outcome, n_parts_passed) for outcome in outcomes]


def _name_passed_part(outcome: CaseOutcome, n_passed: int) -> CaseOutcome:
    if [verdict.details.get("family") for verdict in outcome.verdicts] != ["signature"]:
        return outcome
    (verdict,) = outcome.verdicts
    part = outcome.request.case.part
    passed = "part 1" if n_passed == 1 else f"parts 1 to {n_passed}"
    parameters = ", ".join("mesh=None" if name == "mesh" else name for name in part.arguments)
    reworded = replace(
        verdict,
        what=f"{passed.capitalize()} passed. Part {part.number} calls {part.call}: {verdict.what}",
        fix=f"write def {part.function}({parameters}), which both calls fit, and use the mesh "
        "that is passed.",
        details={**verdict.details, "label": f"{passed} passed, part {part.number} not yet"},
    )
    return replace(outcome, verdicts=(reworded,))


def _find_part_causes(outcomes: Sequence[CaseOutcome], problem: Problem) -> _PartCauses:
    evidence: dict[str, list[Evidence]] = {}
    differing: dict[str, list[DifferingReplicas]] = {}
    for outcome in outcomes:
        for item in outcome.grade.evidence:
            evidence.setdefault(item.output.path, []).append(item)
        for group in outcome.grade.differing.values():
            differing.setdefault(group.evidence.output.path, []).append(group)
    # Without the tag a factor of n is as likely a wrong reduction of the value itself.
    has_gradients = any(tag.startswith("grad") for tag in problem.tags)
    right_paths = {path for path, items in evidence.items() if all(i.agrees for i in items)}
    context = OutputContext(has_gradients=has_gradients, others_agree=bool(right_paths))
    return _PartCauses(
        values={
            path: wrong_values.find_cause(items, context)
            for path, items in evidence.items()
            # An output that is right everywhere needs no cause, and rules some out for the others.
            if path not in right_paths
        },
        missing_reductions={
            path: differing_replicas.find_missing_reduction(groups)
            for path, groups in differing.items()
        },
    )


def _reword_outcome(outcome: CaseOutcome, causes: _PartCauses) -> CaseOutcome:
    grade, run = outcome.grade, outcome.run
    verdicts = list(outcome.verdicts)
    # Without a shard_map there is no check, whatever the trace says about it.
    is_checked = run is not None and run.has_shard_map and run.is_checked
    for position, evidence in grade.wrong.items():
        cause = causes.values[evidence.output.path]
        verdicts[position] = wrong_values.value_verdict(evidence, cause, is_checked)
    for position, differing in grade.differing.items():
        missing = causes.missing_reductions[differing.evidence.output.path]
        verdicts[position] = differing_replicas.replica_verdict(differing, missing)
    return replace(outcome, verdicts=tuple(_merge_verdicts(verdicts, outcome)))


def _merge_verdicts(verdicts: Sequence[Verdict], outcome: CaseOutcome) -> list[Verdict]:
    """Return one verdict for all outputs that are wrong for the same reason; named causes first."""
    evidence = {**outcome.grade.wrong}
    evidence |= {position: group.evidence for position, group in outcome.grade.differing.items()}
    groups: dict[tuple[str, str], list[int]] = {}
    rest = []
    for position, verdict in enumerate(verdicts):
        if position in evidence:
            groups.setdefault((verdict.code, verdict.cause), []).append(position)
        else:
            rest.append(verdict)
    merged = []
    # Verdicts without a cause last: the named one usually explains them as well.
    for (_, _), (first, *others) in sorted(groups.items(), key=lambda item: item[0][1] == ""):
        names = [evidence[position].name for position in others]
        ellipsis = ["..."] if len(names) > _MAX_NAMES else []
        listed = ", ".join(names[:_MAX_NAMES] + ellipsis)
        note = (f"the same holds for {listed}",) if names else ()
        merged.append(replace(verdicts[first], shows=(*verdicts[first].shows, *note)))
    return [*merged, *rest]
