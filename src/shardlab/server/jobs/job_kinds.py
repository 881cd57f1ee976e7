"""What a worker does for each kind of job."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardlab.errors import LabError
from shardlab.sandbox.process import SandboxPool
from shardlab.server.confined.confined_client import ConfinedFailure, run_confined
from shardlab.server.jobs.queue import (
    ClaimedJob,
    JobError,
    JobKind,
    JobOutcome,
    JsonObject,
    NewRecording,
)

_MAX_RESULT_CHARACTERS = 2_000_000  # of JSON in the row of a job


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """What a job may use."""

    pool: SandboxPool
    report_progress: Callable[[JsonObject], None]
    data_folder: Path
    catalogue: str | None


def run_job(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    """Return the outcome of a job. Raises only what is a fault of ours, or a cancellation."""
    try:
        return _KINDS[claim.kind](claim, context)
    except ConfinedFailure as failure:
        return JobOutcome(state="failed", error=failure.error)
    except LabError as error:
        message = f"{error.what} ({error.where})" if error.where else error.what
        job_error = JobError(kind=error.code, message=message, fix=error.fix or "")
        return JobOutcome(state="failed", error=job_error)


def _record(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    data = run_confined(context.pool, "record", claim.payload)
    return recording_outcome(claim, data, source=claim.payload["source"])


def recording_outcome(claim: ClaimedJob, data: object, *, source: str) -> JobOutcome:
    """Return the outcome of a job that made a recording, once it is a valid one."""
    from shardlab.recording.recording import Recording

    # What came out of the sandbox is not trusted: only what our own records read is stored.
    recording = Recording.from_json(data)  # type: ignore[arg-type]
    text = json.dumps(recording.to_json(), separators=(",", ":"), allow_nan=False)
    return JobOutcome(
        state="done",
        result={"recording": claim.id, "title": recording.title},
        recording=NewRecording(
            title=recording.title, source=source, body=gzip.compress(text.encode(), 6)
        ),
    )


def _run_confined_kind(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    """Run a kind whose result is small JSON, stored with the job."""
    data = run_confined(context.pool, claim.kind, claim.payload)
    if not isinstance(data, dict) or len(json.dumps(data)) > _MAX_RESULT_CHARACTERS:
        error = JobError(kind="output", message="The result is too large.")
        return JobOutcome(state="failed", error=error)
    return JobOutcome(state="done", result=data)


_KINDS: dict[JobKind, Callable[[ClaimedJob, JobContext], JobOutcome]] = {
    "record": _record,
    "edits": _run_confined_kind,
}
