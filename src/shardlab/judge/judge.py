"""One submission from end to end: two workers, a request for each case, a judgement.

The tracer works on the next case while the runner runs this one. Results are reported in the order
of the cases, so the same submission with the same seed has the same judgement.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from shardlab.catalogue.problem import Part, Problem
from shardlab.catalogue.reference import NO_REFERENCE, Reference
from shardlab.errors import InvalidReference, ReferenceFailed, short_repr
from shardlab.judge import failures
from shardlab.judge.case_request import CaseRequest
from shardlab.judge.case_result import (
    CaseOutcome,
    TracerResponse,
    create_case_result,
    evaluate_case,
    failed_outcome,
    needs_runner,
)
from shardlab.judge.cases import Case, make_cases
from shardlab.judge.confined_reference import open_references
from shardlab.judge.counterexample import counterexample_facts
from shardlab.judge.debug_runs import run_debug_prints, select_printing_cases
from shardlab.judge.explain import explain_outcomes, name_passed_parts
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.judgement_size import shorten_judgement
from shardlab.judge.minimize import find_minimal_failure
from shardlab.judge.protocol.requests import WorkerRequest
from shardlab.judge.protocol.responses import ExportResponse, SimulateResponse
from shardlab.judge.submission_budget import SubmissionBudget
from shardlab.judge.submission_source import SubmissionSource, read_submission
from shardlab.judge.verdict import Verdict
from shardlab.judge.worker_client import LoadFailed, RequestFailed, WorkerClient
from shardlab.sandbox.process import ProcessLimits, SandboxPool

# The examples are always the same, so that a lesson can show their values.
# Hidden cases are drawn at a larger scale: a solution for the examples' sizes fails there.
EXAMPLES_SEED = 0
_EXAMPLE_SCALE, _HIDDEN_SCALE = 1, 2
_INTERRUPT_SECONDS = 1.0
OnCase = Callable[[CaseResult], None]


def judge(
    pool: SandboxPool,
    problem: Problem,
    source: str | bytes,
    *,
    kind: str,
    seed: int,
    on_case: OnCase = lambda result: None,
) -> Judgement:
    """Return the judgement of one submission; `on_case` is called after every case.

    `kind` is run (the examples: small inputs, the same every time) or submit (all cases, drawn from
    `seed`). `on_case` gets what a case shows alone; the judgement names causes that explain all
    cases of a part.
    """
    is_example = kind == "run"
    seed = EXAMPLES_SEED if is_example else seed
    cases = [case for part in problem.parts for case in select_cases(part, seed, is_example)]
    return _judge_cases(pool, problem, source, kind, seed, cases, on_case)


def replay_case(
    pool: SandboxPool,
    problem: Problem,
    source: str | bytes,
    *,
    kind: str,
    seed: int,
    part: int,
    number: int,
) -> Judgement:
    """Return the judgement of one case alone, drawn as in a judgement with that seed."""
    is_example = kind == "run"
    seed = EXAMPLES_SEED if is_example else seed
    part_cases = select_cases(problem.parts[part - 1], seed, is_example)
    cases = [case for case in part_cases if case.number == number]
    return _judge_cases(pool, problem, source, kind, seed, cases, lambda result: None)


def judge_inputs(
    pool: SandboxPool,
    problem: Problem,
    source: str,
    drawn: Sequence[tuple[Case, Reference, Mapping[str, Any]]],
) -> Iterator[CaseOutcome]:
    """Yield the outcome of each case with the caller's inputs.

    Fewer if the submission ends its workers.
    """
    submission = read_submission(source.encode())
    requests = [CaseRequest(case, reference, inputs) for case, reference, inputs in drawn]
    if isinstance(submission, Verdict):
        yield from (failed_outcome(request, submission) for request in requests[:1])
        return
    with _SubmissionRun(pool, problem, submission) as run:
        yield from run.iterate_outcomes(requests)


def select_cases(part: Part, seed: int, is_example: bool) -> Sequence[Case]:
    """Return the cases of one part that a judgement of this kind has."""
    cases = make_cases(part, seed, _EXAMPLE_SCALE if is_example else _HIDDEN_SCALE)
    return [case for case in cases if not (is_example and case.is_simulated)]


def _judge_cases(
    pool: SandboxPool,
    problem: Problem,
    source: str | bytes,
    kind: str,
    seed: int,
    cases: Sequence[Case],
    on_case: OnCase,
) -> Judgement:
    # Before any process is started: bytes that are no text need none.
    submission = read_submission(source.encode() if isinstance(source, str) else source)
    if isinstance(submission, Verdict):
        outcomes = _decide_without_reference(cases, submission)
        return _create_judgement(pool, problem, kind, seed, cases, outcomes)
    try:
        with open_references(pool, problem) as references:
            requests = _draw_requests(references, cases)
            return _judge_requests(pool, problem, submission, kind, seed, cases, requests, on_case)
    except ReferenceFailed as error:
        outcomes = _decide_without_reference(cases, failures.reference_failure(error))
        for outcome in outcomes:
            on_case(create_case_result(outcome, kind == "run"))
        return _create_judgement(pool, problem, kind, seed, cases, outcomes)


def _decide_without_reference(cases: Sequence[Case], verdict: Verdict) -> list[CaseOutcome]:
    """Return the first case with a verdict that holds for all of them."""
    return [failed_outcome(CaseRequest(case, NO_REFERENCE, {}), verdict) for case in cases[:1]]


def _judge_requests(
    pool: SandboxPool,
    problem: Problem,
    submission: SubmissionSource,
    kind: str,
    seed: int,
    cases: Sequence[Case],
    requests: Sequence[CaseRequest],
    on_case: OnCase,
) -> Judgement:
    is_example = kind == "run"
    outcomes: list[CaseOutcome] = []
    minimal: CaseOutcome | None = None
    with _SubmissionRun(pool, problem, submission) as run:
        for outcome in run.iterate_outcomes(requests):
            outcomes.append(outcome)
            on_case(create_case_result(outcome, is_example))
        # Only now: a cause is named if it explains every mesh, so it needs all outcomes.
        outcomes = name_passed_parts(explain_outcomes(outcomes, problem))
        # The verdicts are decided: a reference that fails from here on costs the picture only.
        with contextlib.suppress(ReferenceFailed):
            if run.can_continue:
                minimal = find_minimal_failure(outcomes, seed, run.run_single)
        rejected_calls = run.rejected_calls
    with contextlib.suppress(ReferenceFailed):
        # Last, so that nothing in a print can change a verdict.
        outcomes, minimal = _add_debug_outputs(
            pool, problem, submission, outcomes, minimal, is_example
        )
    return _create_judgement(
        pool, problem, kind, seed, cases, outcomes, minimal, rejected_calls=rejected_calls
    )


def _create_judgement(
    pool: SandboxPool,
    problem: Problem,
    kind: str,
    seed: int,
    cases: Sequence[Case],
    outcomes: Sequence[CaseOutcome],
    minimal: CaseOutcome | None = None,
    *,
    rejected_calls: Mapping[str, int] = MappingProxyType({}),
) -> Judgement:
    is_example = kind == "run"
    not_judged = cases[len(outcomes) :]
    judgement = Judgement(
        problem=problem.slug,
        content_version=problem.content_version,
        level=pool.level,
        confinement=pool.confinement,
        seed=seed,
        kind=kind,
        cases=tuple(create_case_result(outcome, is_example) for outcome in outcomes),
        not_judged=tuple(f"part {case.part.number}, {case.name}" for case in not_judged),
        counterexample=None if minimal is None else _create_counterexample(minimal),
        rejected_calls=dict(rejected_calls),
    )
    return shorten_judgement(judgement)


def _create_counterexample(outcome: CaseOutcome) -> CaseResult:
    """Return the minimal failing case with all its values."""
    result = create_case_result(outcome, is_example=True)
    try:
        return replace(result, facts={**result.facts, **counterexample_facts(outcome)})
    except Exception:  # a judgement must not be lost because of its picture
        return result


def _add_debug_outputs(
    pool: SandboxPool,
    problem: Problem,
    source: SubmissionSource,
    outcomes: list[CaseOutcome],
    minimal: CaseOutcome | None,
    is_example: bool,
) -> tuple[list[CaseOutcome], CaseOutcome | None]:
    """Return the outcomes and the minimal failing case with what `jax.debug.print` prints."""
    positions = select_printing_cases(outcomes, is_example)
    limits = _problem_limits(problem)
    if minimal is not None and minimal.has_debug_calls:
        (output,) = run_debug_prints(pool, source, limits, [minimal.request], None)
        minimal = replace(minimal, debug_output=output)
    if positions:
        requests = [outcomes[position].request for position in positions]
        example_of = None if is_example else _example_twin
        outputs = run_debug_prints(pool, source, limits, requests, example_of)
        outcomes = list(outcomes)
        for position, output in zip(positions, outputs, strict=True):
            outcomes[position] = replace(outcomes[position], debug_output=output)
    return outcomes, minimal


def _draw_requests(references: Mapping[int, Reference], cases: Sequence[Case]) -> list[CaseRequest]:
    requests = []
    for case in cases:
        reference = references[case.part.number]
        request = CaseRequest(case, reference, _draw_inputs(reference, case))
        _check_request(request)
        requests.append(request)
    return requests


def _check_request(request: CaseRequest) -> None:
    """Raise `InvalidReference` for inputs that cannot be sent, or specs that do not fit them."""
    try:
        request.tracer_request()
    except ReferenceFailed:
        raise
    except Exception as error:
        raise InvalidReference(
            f"the inputs or their specs cannot be used: {error}.",
            where=f"part {request.case.part.number}, {request.case.name}",
            fix="inputs returns a dict of NumPy arrays and plain values, input_specs one of Specs.",
        ) from error


def _draw_inputs(reference: Reference, case: Case) -> dict[str, Any]:
    where = f"part {case.part.number}, {case.name}"
    try:
        inputs = reference.inputs(case.draw)
    except ReferenceFailed:
        raise
    except Exception as error:
        raise InvalidReference(
            f"inputs raised {type(error).__name__}: {error}.",
            where=where,
            fix="fix the problem's reference.py.",
        ) from error
    arguments = [name for name in case.part.arguments if name != "mesh"]
    if not isinstance(inputs, dict) or not {*arguments} <= {*inputs}:
        content = short_repr(inputs)
        if isinstance(inputs, dict):
            content = f"a dict of {', '.join(map(str, inputs)) or 'nothing'}"
        raise InvalidReference(
            f"inputs returned {content}.",
            where=where,
            fix=f"return a dict of the arguments: {', '.join(arguments) or 'an empty one'}.",
        )
    return inputs


def _example_twin(request: CaseRequest) -> CaseRequest:
    """Return the example of the same number; it never changes, so its values may be shown."""
    case, reference = request.case, request.reference
    examples = make_cases(case.part, EXAMPLES_SEED, _EXAMPLE_SCALE)
    example = next(item for item in examples if item.number == case.number)
    return CaseRequest(example, reference, _draw_inputs(reference, example))


@dataclass(frozen=True, kw_only=True)
class _TracedCase:
    """What the tracer has responded for a case, or the verdict if it has not."""

    request: CaseRequest
    response: TracerResponse | None
    printed: str = ""
    verdict: Verdict | None = None
    is_last: bool = False


class _SubmissionRun:
    """The two workers of one submission. The tracer has a thread, the runner the caller's."""

    def __init__(self, pool: SandboxPool, problem: Problem, source: SubmissionSource) -> None:
        limits = _problem_limits(problem)
        self._problem, self._source = problem, source
        self._budget = SubmissionBudget(limits)
        self._tracer = WorkerClient(pool, "tracer", self._budget, source)
        self._runner = WorkerClient(pool, "runner", self._budget)
        # Two cases ahead: enough to keep the runner busy, and little to discard at an early end.
        self._traced: queue.Queue[_TracedCase | BaseException] = queue.Queue(maxsize=2)
        self._thread: threading.Thread | None = None
        self._is_abandoned = threading.Event()  # nothing is taken out of the queue any more
        self._is_closed = threading.Event()

    def __enter__(self) -> _SubmissionRun:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *exception: object) -> None:
        self._is_abandoned.set()
        self._is_closed.set()
        if self._thread is not None:
            # An interrupt must not block on a submission in an endless loop; the thread closes
            # its worker itself then.
            self._thread.join(None if exception_type is None else _INTERRUPT_SECONDS)
        if self._thread is None or not self._thread.is_alive():
            self._tracer.close()
        self._runner.close()

    def iterate_outcomes(self, requests: Sequence[CaseRequest]) -> Iterator[CaseOutcome]:
        """Yield the outcome of each case, in order; fewer if the submission ends its workers."""
        # A daemon, because a submission in an endless loop must not keep the interpreter alive.
        thread = threading.Thread(target=self._trace_cases, args=(requests,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the user's limit of threads and processes
            yield failed_outcome(requests[0], failures.internal_error(str(error)))
            return
        self._thread = thread
        try:
            yield from self._run_traced_cases(requests)
        finally:
            self._is_abandoned.set()

    def _run_traced_cases(self, requests: Sequence[CaseRequest]) -> Iterator[CaseOutcome]:
        if any(request.kind == "export" for request in requests):
            # The runner compiles its first program while the tracer traces the first case.
            self._runner.prepare()
        for _ in requests:
            traced = self._traced.get()
            if isinstance(traced, BaseException):
                raise traced
            # The caller may stop here by an exception in `on_case`; `iterate_outcomes` cleans up.
            yield self._finish_case(traced)
            if traced.is_last or self._runner.has_given_up:
                return

    @property
    def rejected_calls(self) -> Mapping[str, int]:
        """Return the system calls that the sandbox has rejected so far."""
        return self._budget.rejected_calls

    @property
    def can_continue(self) -> bool:
        """Return whether further cases can be run: not after a submission ended its workers."""
        return not (self._tracer.has_given_up or self._runner.has_given_up)

    def run_single(self, request: CaseRequest) -> CaseOutcome:
        """Return the outcome of one more case, after all others."""
        # The thread still owns the tracer until it has put its last case into the queue.
        if self._thread is not None:
            self._thread.join()
        outcome = self._finish_case(self._trace_case(request))
        return explain_outcomes([outcome], self._problem)[0]

    def _finish_case(self, traced: _TracedCase) -> CaseOutcome:
        response = traced.response
        return replace(
            self._run_and_evaluate(traced),
            output=traced.printed,
            has_debug_calls=isinstance(response, (ExportResponse, SimulateResponse))
            and response.has_debug_calls,
        )

    def _run_and_evaluate(self, traced: _TracedCase) -> CaseOutcome:
        if traced.response is None:
            assert traced.verdict is not None
            return failed_outcome(traced.request, traced.verdict)
        run_response = None
        if needs_runner(traced.response):
            assert isinstance(traced.response, ExportResponse)
            request = traced.request.runner_request(traced.response.program)
            try:
                run_response = self._runner.request(request)
            except RequestFailed as failure:
                return failed_outcome(traced.request, failure.verdict)
        return evaluate_case(traced.request, traced.response, run_response, self._source)

    # In the tracer's thread.

    def _trace_cases(self, requests: Sequence[CaseRequest]) -> None:
        try:
            for request in requests:
                traced = self._trace_case(request)
                self._put_traced(traced)
                if traced.is_last or self._is_abandoned.is_set():
                    return
        except BaseException as error:  # a bug of the judge: raised in the caller's thread
            self._put_traced(error)
        finally:
            if self._is_closed.is_set():
                self._tracer.close()

    def _trace_case(self, request: CaseRequest) -> _TracedCase:
        verdict, is_last = None, False
        response: TracerResponse | None = None
        tracer_request: WorkerRequest[Any] = request.tracer_request()
        try:
            response = self._tracer.request(tracer_request)
        except LoadFailed as failure:
            verdict, is_last = failure.verdict, True
        except RequestFailed as failure:
            verdict, is_last = failure.verdict, self._tracer.has_given_up
        return _TracedCase(
            request=request,
            response=response,
            printed=self._tracer.printed,
            verdict=verdict,
            is_last=is_last,
        )

    def _put_traced(self, traced: _TracedCase | BaseException) -> None:
        while not self._is_abandoned.is_set():
            try:
                # With a timeout: once the run is abandoned nothing takes from the queue, and a put
                # without one would block forever.
                self._traced.put(traced, timeout=0.2)
                return
            except queue.Full:
                continue


def _problem_limits(problem: Problem) -> ProcessLimits:
    """Return the default limits, replaced by those that the problem sets."""
    limits: dict[str, Any] = dict(problem.limits)
    # TOML gives 1e9 as a float; the kernel's limits are integers.
    if "memory_bytes" in limits:
        limits["memory_bytes"] = int(limits["memory_bytes"])
    return ProcessLimits(**limits)
