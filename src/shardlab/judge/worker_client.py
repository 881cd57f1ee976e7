"""The client of one kind of worker: sends typed requests, replaces processes that end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shardlab.errors import LabError
from shardlab.judge import failures
from shardlab.judge.protocol.reports import ExceptionReport
from shardlab.judge.protocol.requests import (
    NO_STACK_DUMPS,
    LoadRequest,
    StackDumps,
    WorkerRequest,
)
from shardlab.judge.submission_budget import SubmissionBudget
from shardlab.judge.submission_source import SubmissionSource
from shardlab.judge.verdict import Verdict
from shardlab.judge.worker_pool import Role
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sandbox.process import (
    ExitReason,
    ProcessEnded,
    ProcessLimits,
    SandboxedProcess,
    SandboxPool,
)

_STACK_DUMP_SHARE = 0.8  # of the time that remains

Response = TypeVar("Response")


class RequestFailed(Exception):
    """There is no response to a request; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.what)
        self.verdict = verdict


class LoadFailed(RequestFailed):
    """The submission cannot be executed, so no request will have a response."""


class WorkerClient:
    """Sends requests to workers of one role, one at a time."""

    def __init__(
        self,
        pool: SandboxPool,
        role: Role,
        budget: SubmissionBudget,
        source: SubmissionSource | None = None,
    ) -> None:
        self._pool, self._role, self._budget, self._source = pool, role, budget, source
        self._process: SandboxedProcess | None = None
        self._n_output = 0  # of the current process
        self.has_given_up = False
        self.printed = ""  # since the previous request

    def prepare(self) -> None:
        """Start a process now; what goes wrong is reported with the first request."""
        with contextlib.suppress(ProcessEnded, LoadFailed):
            self._ensure_process()

    def request(self, request: WorkerRequest[Response]) -> Response:
        """Return the response. Raises `RequestFailed`, or `LoadFailed`.

        If the process ended and something else can be the cause, a new process gets the same
        request, once.
        """
        try:
            return self._send_request(request)
        except ProcessEnded as ended:
            if not failures.is_worth_retrying(ended.reason) or not self._budget.take_retry():
                raise RequestFailed(self._end_verdict(ended, request.activity)) from None
            # Closed before the retry, so that a worker forked ahead takes its place at once.
            self.close()
        try:
            return self._send_request(request)
        except ProcessEnded as ended:
            raise RequestFailed(self._end_verdict(ended, request.activity)) from None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process, self._n_output = None, 0

    def _send_request(self, request: WorkerRequest[Response]) -> Response:
        process = self._ensure_process()
        response = self._exchange_messages(process, request)
        self._read_output(process)
        # The time was not up after all: a stack dump that came meanwhile is of no interest.
        self.printed, _ = failures.split_stack_dump(self.printed)
        return response

    def _exchange_messages(
        self, process: SandboxedProcess, request: WorkerRequest[Response]
    ) -> Response:
        """Send a request and check its response. Raises `ProcessEnded` for an invalid one."""
        exceeded = self._budget.find_exceeded()
        if exceeded:
            raise ProcessEnded(ExitReason(kind="time", detail=exceeded))
        frame = request.to_frame(self._plan_stack_dumps(process))
        try:
            with self._budget.pending_request():
                return request.parse_response(process.request(frame))
        except InvalidFrame as error:
            # A process that has sent one invalid response is not asked for another.
            raise ProcessEnded(ExitReason(kind="protocol", detail=str(error))) from error

    def _plan_stack_dumps(self, process: SandboxedProcess) -> StackDumps:
        """Return when the worker prints its current line: before one of its limits is reached.

        A runner executes no Python of the submission, so there is no line to print.
        """
        if self._source is None:
            return NO_STACK_DUMPS
        budget, limits = self._budget, self._budget.limits
        remaining = min(limits.wall_seconds - budget.busy_seconds, limits.idle_seconds)
        # A worker compares it with its own processor time, and the other worker uses some too.
        remaining_cpu = max(limits.cpu_seconds - budget.cpu_seconds, 0.0) * _STACK_DUMP_SHARE
        return StackDumps(
            wall_seconds=round(max(remaining, 1.0) * _STACK_DUMP_SHARE, 1),
            cpu_seconds=round(process.cpu_seconds + remaining_cpu, 1),
        )

    def _read_output(self, process: SandboxedProcess) -> None:
        output = process.output
        self.printed, self._n_output = output[self._n_output :], len(output)

    def _end_verdict(self, ended: ProcessEnded, activity: str) -> Verdict:
        """Return the verdict on a process that ended, and close it."""
        self.printed, stack_dump = "", ""
        if self._process is not None:
            self._read_output(self._process)
            self.printed, stack_dump = failures.split_stack_dump(self.printed)
        self.close()
        may_end_another = self._budget.count_ended_process()
        line = failures.stack_dump_line(stack_dump)
        where = self._source.quote_line(line) if self._source else ""
        verdict = replace(failures.exit_verdict(ended.reason, activity, stack_dump), where=where)
        # To run into the same limit a second time would show nothing new.
        is_final = verdict.code in ("TLE", "HANG", "IE")
        self.has_given_up = is_final or not may_end_another
        return verdict

    def _ensure_process(self) -> SandboxedProcess:
        """Return the process, started and with the submission loaded."""
        if self._process is not None:
            return self._process
        try:
            self._process = self._pool.start_process(self._role, self._budget.limits)
        except (OSError, LabError) as error:
            raise ProcessEnded(ExitReason(kind="internal", detail=str(error))) from error
        self._budget.add_process(self._process, executes_submission=self._source is not None)
        if self._source is not None:
            try:
                self._load_source(self._process, self._source)
            except ProcessEnded as ended:
                if failures.is_worth_retrying(ended.reason):
                    raise
                raise LoadFailed(self._end_verdict(ended, LoadRequest.activity)) from None
        return self._process

    def _load_source(self, process: SandboxedProcess, source: SubmissionSource) -> None:
        request = LoadRequest(source=source.text.encode())
        response = self._exchange_messages(process, request)
        if response.error is not None:
            raise LoadFailed(failures.load_failure_verdict(response.error, source))


def send_requests(
    pool: SandboxPool, role: Role, limits: ProcessLimits, requests: Sequence[WorkerRequest[Any]]
) -> list[Any]:
    """Return the responses of one new worker, in order.

    If the process ends, the responses from there on have an error that says so.
    """
    process = pool.start_process(role, limits)
    responses: list[Any] = []
    try:
        for request in requests:
            responses.append(request.parse_response(process.request(request.to_frame())))
    except (ProcessEnded, InvalidFrame) as error:
        report = ExceptionReport(message=f"the process ended: {error}")
        remaining = requests[len(responses) :]
        responses += [request.error_response(report) for request in remaining]
    finally:
        process.close()
    return responses
