"""One submission from end to end: two confined processes, a question for each case, a judgement.

The author makes the next program while the runner runs this one. Whatever ends well or badly, a
case is told in its place in the order: the same answer with the same seed gives the same judgement.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardlab.catalogue.problem import Part, Problem
from shardlab.catalogue.reference import load_reference
from shardlab.errors import InvalidReference
from shardlab.judge import failures as troubles
from shardlab.judge.case_request import Question
from shardlab.judge.case_result import Outcome, failed, made_of, needs_run, result
from shardlab.judge.cases import Case, make_cases
from shardlab.judge.counterexample import exhibit
from shardlab.judge.explain import explained
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.minimize import Ask, shrunk
from shardlab.judge.source import SubmissionSource, read_submission
from shardlab.judge.verdict import Verdict
from shardlab.judge.worker_client import Desk, Lost, NotLoaded
from shardlab.sandbox.frame import Frame
from shardlab.sandbox.process import Limits, SandboxPool

EXAMPLES_SEED = 0
_PATIENCE = 1.0  # seconds
Tell = Callable[[CaseResult], None]


def judge(
    house: SandboxPool,
    problem: Problem,
    source: str | bytes,
    *,
    kind: str,
    seed: int,
    tell: Tell = lambda result: None,
) -> Judgement:
    """Return the judgement of one answer; `tell` hears of every case as it ends.

    `kind` is run (the examples: small inputs, the same every time) or submit (all cases, drawn from
    `seed`). What `tell` hears of a case is what the case shows alone; in the judgement a cause is
    named that explains all cases of the part.
    """
    is_example = kind == "run"
    seed = EXAMPLES_SEED if is_example else seed
    cases = [case for part in problem.parts for case in _cases(part, seed, is_example)]
    return _judged(house, problem, source, kind, seed, cases, tell)


def replay_case(
    house: SandboxPool,
    problem: Problem,
    source: str | bytes,
    *,
    kind: str,
    seed: int,
    part: int,
    number: int,
) -> Judgement:
    """Return the judgement of one case alone, drawn as it was in a judgement with that seed."""
    is_example = kind == "run"
    seed = EXAMPLES_SEED if is_example else seed
    whole = _cases(problem.parts[part - 1], seed, is_example)
    cases = [case for case in whole if case.number == number]
    return _judged(house, problem, source, kind, seed, cases, lambda result: None)


def _cases(part: Part, seed: int, is_example: bool) -> Sequence[Case]:
    cases = make_cases(part, seed, 1 if is_example else 2)
    return [case for case in cases if not (is_example and case.is_simulated)]


def _judged(
    house: SandboxPool,
    problem: Problem,
    source: str | bytes,
    kind: str,
    seed: int,
    cases: Sequence[Case],
    tell: Tell,
) -> Judgement:
    is_example = kind == "run"
    questions = _questions(problem, cases)
    read = read_submission(source.encode() if isinstance(source, str) else source)
    outcomes, shown = [], None
    if isinstance(read, Verdict):
        outcomes = [failed(questions[0], read)]
    else:
        with _Line(house, problem, read) as line:
            for outcome in line.outcomes(questions):
                outcomes.append(outcome)
                tell(result(outcome, is_example))
            outcomes = explained(outcomes, problem)
            if line.can_go_on:
                shown = _shown(outcomes, seed, lambda question: line.alone(question, problem))
    left = cases[len(outcomes) :]
    return Judgement(
        problem=problem.slug,
        content_version=problem.content_version,
        level=house.level,
        seed=seed,
        kind=kind,
        cases=tuple(result(outcome, is_example) for outcome in outcomes),
        not_judged=tuple(f"part {case.part.number}, {case.name}" for case in left),
        counterexample=shown,
    )


def _shown(outcomes: Sequence[Outcome], seed: int, ask: Ask) -> CaseResult | None:
    """Return a small case that fails, laid open; None where there is none to be had."""
    small = shrunk(outcomes, seed, ask)
    if small is None:
        return None
    told = result(small, is_example=True)
    try:
        return replace(told, facts={**told.facts, **exhibit(small)})
    except Exception:  # a judgement that is made is not lost for its picture
        return told


def _questions(problem: Problem, cases: Sequence[Case]) -> list[Question]:
    references = {part.number: load_reference(problem, part) for part in problem.parts}
    return [
        Question(case, references[case.part.number], _inputs(references[case.part.number], case))
        for case in cases
    ]


def _inputs(reference: Any, case: Case) -> dict[str, Any]:
    try:
        inputs: dict[str, Any] = reference.inputs(case.draw)
    except Exception as error:
        raise InvalidReference(
            f"inputs raised {type(error).__name__}: {error}.",
            where=f"part {case.part.number}, {case.name}",
            fix="mend the problem's reference.py.",
        ) from error
    return inputs


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What the author has said to a question, or why it has not."""

    question: Question
    answer: Frame | None
    printed: str = ""
    verdict: Verdict | None = None
    is_last: bool = False


class _Line:
    """The two processes of one submission, working at the same time."""

    def __init__(self, house: SandboxPool, problem: Problem, source: SubmissionSource) -> None:
        limits = _limits(problem)
        self._source = source
        self._author = Desk(house, "author", limits, source)
        self._runner = Desk(house, "runner", limits)
        self._told: queue.Queue[_Told | BaseException] = queue.Queue(maxsize=2)
        self._thread: threading.Thread | None = None
        self._is_heard = threading.Event()  # nobody takes any more out of the queue
        self._is_over = threading.Event()

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._is_heard.set()
        self._is_over.set()
        if self._thread is not None:
            # Whoever interrupts does not wait for an answer that may be at an endless loop.
            self._thread.join(None if kind is None else _PATIENCE)
        if self._thread is None or not self._thread.is_alive():
            self._author.close()
        self._runner.close()

    def outcomes(self, questions: Sequence[Question]) -> Iterator[Outcome]:
        """Yield what comes of each question."""
        thread = threading.Thread(target=self._write, args=(questions,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # as many threads or processes as this person may have
            yield failed(questions[0], troubles.fault(str(error)))
            return
        self._thread = thread
        try:
            yield from self._heard(questions)
        finally:
            self._is_heard.set()

    def _heard(self, questions: Sequence[Question]) -> Iterator[Outcome]:
        if any(question.kind == "export" for question in questions):
            self._runner.prepare()
        for _ in questions:
            told = self._told.get()
            if isinstance(told, BaseException):
                raise told
            outcome = self._outcome(told)
            yield outcome
            if told.is_last or self._runner.is_given_up:
                return

    @property
    def can_go_on(self) -> bool:
        """Say whether more may be asked: of an answer that ends its processes nothing is."""
        return not (self._author.is_given_up or self._runner.is_given_up)

    def alone(self, question: Question, problem: Problem) -> Outcome:
        """Return what comes of one more question, after all others."""
        if self._thread is not None:
            self._thread.join()
        return explained([self._outcome(self._asked(question))], problem)[0]

    def _outcome(self, told: _Told) -> Outcome:
        return replace(self._answered(told), output=told.printed)

    def _answered(self, told: _Told) -> Outcome:
        question = told.question
        if told.answer is None:
            assert told.verdict is not None
            return failed(question, told.verdict)
        ran = None
        if needs_run(question, told.answer):
            try:
                ran = self._runner.ask(question.for_runner(told.answer.buffers[0]))
            except Lost as lost:
                return failed(question, lost.verdict)
        return made_of(question, told.answer, ran, self._source)

    # The author's thread.

    def _write(self, questions: Sequence[Question]) -> None:
        try:
            for question in questions:
                told = self._asked(question)
                self._put(told)
                if told.is_last or self._is_heard.is_set():
                    return
        except BaseException as error:  # the judge's own: told where it can be raised
            self._put(error)
        finally:
            if self._is_over.is_set():
                self._author.close()

    def _asked(self, question: Question) -> _Told:
        try:
            answer = self._author.ask(question.for_author())
            return _Told(question=question, answer=answer, printed=self._author.printed)
        except NotLoaded as error:
            return _Told(
                question=question,
                answer=None,
                printed=self._author.printed,
                verdict=error.verdict,
                is_last=True,
            )
        except Lost as lost:
            is_last = self._author.is_given_up
            return _Told(
                question=question,
                answer=None,
                printed=self._author.printed,
                verdict=lost.verdict,
                is_last=is_last,
            )

    def _put(self, told: _Told | BaseException) -> None:
        while not self._is_heard.is_set():
            try:
                self._told.put(told, timeout=0.2)
                return
            except queue.Full:
                continue


def _limits(problem: Problem) -> Limits:
    """Return the usual limits with those of the problem in their place."""
    given: dict[str, Any] = dict(problem.limits)
    if "memory_bytes" in given:
        given["memory_bytes"] = int(given["memory_bytes"])
    return Limits(**given)
