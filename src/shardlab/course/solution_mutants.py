"""Mutants of `solution.py`: judged as submissions are, each until its first failing case.

They cover what the reference does not have: collectives, specs, mesh axes, float32. A mutant that
passes is judged again on inputs that the reference does not draw; one that is right there too is
equivalent.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.reference import Reference, load_reference
from shardlab.course.audit_exceptions import SOLUTION_PREFIX, AuditExceptions
from shardlab.course.free_inputs import draw_free_samples
from shardlab.course.hidden_samples import Sample, draw_samples
from shardlab.course.mutable_source import Edit, MutableSource
from shardlab.course.mutation_score import MutationScore, Survivor
from shardlab.judge.case_result import CaseOutcome
from shardlab.judge.judge import judge, judge_inputs
from shardlab.judge.judgement import CaseResult
from shardlab.sandbox.process import SandboxPool

_SOLUTION = "solution.py"
_N_FREE_SAMPLES = 16


class _FailedCase(Exception):
    """Ends the judging of a mutant: one failing case is enough."""


def score_solution(
    pool: SandboxPool, problem: Problem, *, seed: int, exceptions: AuditExceptions
) -> MutationScore:
    """Return how many mutants of the solution the judge rejects."""
    audit = _SolutionAudit(pool, problem, seed)
    n_killed = n_equivalent = 0
    survivors: list[Survivor] = []
    with np.errstate(all="ignore"):  # a reference computes with what its mutants return
        for outcome in audit.run():
            if isinstance(outcome, Survivor):
                survivors.append(outcome)
            else:
                n_killed += outcome == "killed"
                n_equivalent += outcome == "equivalent"
    return MutationScore.create(n_killed, n_equivalent, survivors, exceptions, is_solution=True)


class _SolutionAudit:
    def __init__(self, pool: SandboxPool, problem: Problem, seed: int) -> None:
        self._pool, self._problem, self._seed = pool, problem, seed
        self._text = problem.read_text(_SOLUTION)
        self._source = MutableSource(
            self._text, _SOLUTION, [part.function for part in problem.parts]
        )
        self._free: list[tuple[Sample, Reference]] | None = None
        self._names: Counter[str] = Counter()

    def run(self) -> Iterator[Survivor | str]:
        seen = {ast.unparse(ast.parse(self._text))}
        for edit in self._source.iterate_edits():
            if edit.when != "always":
                continue
            program = self._source.unparse_edit(edit)
            if program not in seen:
                seen.add(program)
                yield self._try_program(edit, program)

    def _try_program(self, edit: Edit, program: str) -> Survivor | str:
        if not self._passes(program):
            return "killed"
        if self._passes_free_inputs(program):
            return "equivalent"
        name = f"{SOLUTION_PREFIX}{edit.name}"
        self._names[name] += 1
        if self._names[name] > 1:
            name = f"{name} (#{self._names[name]})"
        return Survivor(
            name=name,
            part=0,
            seed=self._seed,
            file=_SOLUTION,
            line=edit.line,
            source=self._source.line_text(edit.line),
        )

    def _passes(self, program: str) -> bool:
        def stop_at_failure(result: CaseResult) -> None:
            if not result.passed:
                raise _FailedCase

        try:
            judgement = judge(
                self._pool,
                self._problem,
                program,
                kind="submit",
                seed=self._seed,
                on_case=stop_at_failure,
            )
        except _FailedCase:
            return False
        return judgement.passed

    def _passes_free_inputs(self, program: str) -> bool:
        if self._free is None:
            # Where the solution itself is not right, its mutants cannot be told from it.
            drawn = list(self._draw_free_inputs())
            outcomes = self._judge_inputs(self._text, drawn)
            self._free = [
                item for item, outcome in zip(drawn, outcomes, strict=False) if outcome.passed
            ]
        outcomes = self._judge_inputs(program, self._free)
        return len(outcomes) == len(self._free) and all(outcome.passed for outcome in outcomes)

    def _judge_inputs(
        self, program: str, drawn: Sequence[tuple[Sample, Reference]]
    ) -> list[CaseOutcome]:
        inputs = [(sample.case, reference, sample.inputs) for sample, reference in drawn]
        return list(judge_inputs(self._pool, self._problem, program, inputs))

    def _draw_free_inputs(self) -> Iterator[tuple[Sample, Reference]]:
        for part in self._problem.parts:
            reference = load_reference(self._problem, part)
            samples = [
                sample
                for sample in draw_samples(part, reference, self._seed)
                if not sample.case.is_simulated
            ]
            free: Any = draw_free_samples(
                samples, reference.expected, reference.accepts, count=_N_FREE_SAMPLES
            )
            yield from ((sample, reference) for sample in free)
