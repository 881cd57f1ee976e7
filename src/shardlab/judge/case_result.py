"""The outcome of one case: verdicts, and everything that texts and pictures are made from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shardlab.errors import ReferenceFailed
from shardlab.judge import failures
from shardlab.judge.case_request import CaseRequest
from shardlab.judge.debug_output import DebugOutput
from shardlab.judge.grading.grade import Grade, grade_run
from shardlab.judge.grading.plain_values import grade_value
from shardlab.judge.grading.requirements import group_by_operation
from shardlab.judge.judgement import CaseResult
from shardlab.judge.protocol.reports import ExceptionReport, FindingReport
from shardlab.judge.protocol.responses import (
    CallResponse,
    ExportResponse,
    RunResponse,
    SimulateResponse,
)
from shardlab.judge.protocol.run_result import RunResult
from shardlab.judge.submission_source import SubmissionSource
from shardlab.judge.verdict import Verdict, sort_by_severity

TracerResponse = ExportResponse | SimulateResponse | CallResponse

NO_GRADE = Grade()
_MAX_MESSAGE = 400


@dataclass(frozen=True, kw_only=True)
class CaseOutcome:
    """A case, the verdicts on it, and what was observed."""

    request: CaseRequest
    verdicts: tuple[Verdict, ...]
    grade: Grade = NO_GRADE
    run: RunResult | None = None
    value: Any = None  # of a part that is called with plain values
    output: str = ""
    has_debug_calls: bool = False
    debug_output: DebugOutput | None = None

    @property
    def passed(self) -> bool:
        return not self.verdicts

    @property
    def code(self) -> str:
        return sort_by_severity(self.verdicts)[0].code if self.verdicts else "AC"


def failed_outcome(request: CaseRequest, *verdicts: Verdict) -> CaseOutcome:
    return CaseOutcome(request=request, verdicts=verdicts)


def needs_runner(response: TracerResponse) -> bool:
    """Return whether the tracer has sent a program that is worth running."""
    if not isinstance(response, ExportResponse) or not response.program:
        return False
    # The checks have proven that it deadlocks or is rejected; a run would only take the time
    # limit to show the same.
    has_errors = any(finding.severity == "error" for finding in response.findings)
    return response.error is None and not has_errors


def evaluate_case(
    request: CaseRequest,
    tracer_response: TracerResponse,
    runner_response: RunResponse | None,
    source: SubmissionSource,
) -> CaseOutcome:
    """Return the outcome of a case from what the workers have responded."""
    try:
        return _evaluate_responses(request, tracer_response, runner_response, source)
    except ReferenceFailed as error:
        return failed_outcome(request, failures.reference_failure(error))
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        # A runner executes none of the submission's Python: if its response cannot be graded, that
        # is our fault. The tracer's response is the submission's own.
        if runner_response is not None:
            return failed_outcome(request, failures.internal_error(message))
        sentence = f"The result cannot be compared: {message[:_MAX_MESSAGE]}."
        return failed_outcome(request, Verdict(code="RTE", what=sentence))


def _evaluate_responses(
    request: CaseRequest,
    tracer_response: TracerResponse,
    runner_response: RunResponse | None,
    source: SubmissionSource,
) -> CaseOutcome:
    error, findings = tracer_response.error, _response_findings(tracer_response)
    # A reference raises ValueError for inputs on which the submission must raise, too.
    try:
        expected = request.expected
    except ValueError as expected_error:
        # A finding without an exception stopped the case before the submission could raise.
        verdicts = [] if error else failures.finding_verdicts(findings, error, source)
        verdicts = verdicts or failures.missing_exception_verdicts(expected_error, error, source)
        return failed_outcome(request, *verdicts)
    except ReferenceFailed:
        raise
    except Exception as reference_error:
        name = type(reference_error).__name__
        reason = f"the problem's own reference raised {name}: {reference_error}"
        return failed_outcome(request, failures.internal_error(reason))
    hazards = failures.finding_verdicts(findings, error, source)
    if isinstance(tracer_response, CallResponse):
        if error is not None:
            return failed_outcome(request, _exception_verdict(request, error, source))
        value = tracer_response.value()
        verdicts = grade_value(request.case, value, expected.value)
        return CaseOutcome(request=request, verdicts=tuple(verdicts), value=value)
    if isinstance(tracer_response, SimulateResponse):
        run, run_error = tracer_response.result, error
    # Exported but not run: the findings or the exception of the tracer say why.
    elif runner_response is None:
        run, run_error = None, error
    else:
        # From here on nothing counts that the tracer says, except for the facts added below.
        run, run_error, hazards = runner_response.result, runner_response.error, []
    if run is None or run_error is not None:
        report = run_error or ExceptionReport()
        return failed_outcome(request, *(hazards or [_exception_verdict(request, report, source)]))
    run = _add_trace_facts(run, tracer_response, request)
    grade = grade_run(request.case, run, expected)
    return CaseOutcome(
        request=request, verdicts=grade.verdicts or tuple(hazards), grade=grade, run=run
    )


def _response_findings(response: TracerResponse) -> tuple[FindingReport, ...]:
    return () if isinstance(response, CallResponse) else response.findings


def _add_trace_facts(
    run: RunResult, response: ExportResponse | SimulateResponse, request: CaseRequest
) -> RunResult:
    """Return the run with what only the trace knows."""
    run = replace(run, is_checked=not response.n_unchecked)
    if not isinstance(response, ExportResponse):
        return run
    if request.mesh.n_devices == 1:
        # JAX leaves no sign of a shard_map in a program for one device.
        run = replace(run, flow=response.flow)
    return replace(
        run,
        eager_bytes=response.eager_bytes,
        traced_outside_arrays=response.flow.outside_arrays,
    )


def _exception_verdict(
    request: CaseRequest, report: ExceptionReport, source: SubmissionSource
) -> Verdict:
    verdict = failures.exception_verdict(report, source)
    # A missing or wrong function raises in our code, so its traceback has no line to show.
    if verdict.code == "CE" and not verdict.where:
        line = source.find_definition(request.case.part.function)
        return replace(verdict, where=source.quote_line(line))
    mesh = request.case.mesh
    # mesh.shape['data'] on a mesh whose axes have other names: the usual reason of a KeyError.
    missing_key = report.message.strip("'") if report.exception_type == "KeyError" else ""
    if mesh and verdict.code == "RTE" and missing_key in ("data", "model"):
        names = ", ".join(map(repr, mesh.axis_names))
        return replace(verdict, fix=f"the mesh axes are {names} here: use mesh.axis_names.")
    return verdict


# ------------------------------------------------------------------------------------ as a record


def create_case_result(outcome: CaseOutcome, is_example: bool) -> CaseResult:
    """Return an outcome as it is stored and shown."""
    case = outcome.request.case
    return CaseResult(
        name=case.name,
        part=case.part.number,
        mesh=str(case.mesh) if case.mesh else "",
        seed=case.seed,
        verdicts=sort_by_severity(outcome.verdicts or (_accepted_verdict(outcome),)),
        is_example=is_example,
        is_simulated=case.is_simulated,
        output=outcome.output,
        debug_output=outcome.debug_output,
        facts=_run_facts(outcome),
        number=case.number,
    )


def _run_facts(outcome: CaseOutcome) -> dict[str, Any]:
    run = outcome.run
    if run is None:
        return {}
    collectives = [
        {
            "op": op,
            "count": sum(call.times for call in calls),
            "payload_bytes": sum(call.times * call.payload_bytes for call in calls),
            "wire_bytes": sum(call.times * call.wire_bytes for call in calls),
        }
        for op, calls in group_by_operation(run).items()
    ]
    return {"collectives": collectives, "peak_bytes": run.peak_bytes}


def _accepted_verdict(outcome: CaseOutcome) -> Verdict:
    case = outcome.request.case
    if case.part.kind == "value":
        return Verdict(code="AC", what="The value is right.")
    n = case.mesh.n_devices if case.mesh else 1
    devices = f"{n} simulated devices" if case.is_simulated else f"{n} devices"
    collectives = [
        f"{figures['count']} {figures['op']} of {figures['payload_bytes']:,} B"
        for figures in _run_facts(outcome).get("collectives", ())
    ]
    sentence = f"Right on {devices}" if n > 1 else "Right on one device"
    return Verdict(code="AC", what="; ".join([sentence, *collectives]) + ".")
