"""The log lines of a job: when it starts and ends, and whatever is logged meanwhile."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardlab.server.jobs.queue import ClaimedJob, JobOutcome
from shardlab.server.operations.request_id import current_job_id, current_request_id

_LOG = logging.getLogger("shardlab.server.jobs")


@dataclass
class JobLog:
    """What the last line says; the worker sets it when the job has ended."""

    outcome: JobOutcome | None = None


@contextlib.contextmanager
def log_job(claim: ClaimedJob) -> Iterator[JobLog]:
    """Give every line that this thread logs the ids of the job and of its request."""
    request_token = current_request_id.set(claim.request_id)
    job_token = current_job_id.set(claim.id)
    job_log, start = JobLog(), time.perf_counter()
    fields: dict[str, Any] = {"kind": claim.kind, "attempt": claim.attempt, "person": claim.person}
    _LOG.info("%s starts", claim.kind, extra={"fields": fields})
    try:
        yield job_log
        outcome = job_log.outcome
        state = "returned to the queue" if outcome is None else outcome.state
        # The kind of an error is one of ours; its message can quote the program.
        error = outcome.error.kind if outcome is not None and outcome.error is not None else ""
        fields |= {"state": state, "seconds": round(time.perf_counter() - start, 3)}
        fields |= {"error": error} if error else {}
        _LOG.info("%s %s", claim.kind, state, extra={"fields": fields})
    finally:
        current_request_id.reset(request_token)
        current_job_id.reset(job_token)
