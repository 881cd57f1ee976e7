"""Jobs: where one stands, its events as they happen, and cancelling it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shardlab.server.api.api_models import ERROR_RESPONSES, JobErrorView, JobId, JobView
from shardlab.server.current_person import CurrentPerson
from shardlab.server.event_streams import event_streams, refusal_lines
from shardlab.server.jobs.job_service import JobService
from shardlab.server.jobs.queue import Job, JobKind, JsonObject, QueueFull
from shardlab.server.person import Person

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], responses=ERROR_RESPONSES)

_HEARTBEAT_SECONDS = 10.0  # proxies close a connection that is silent for longer
_RECORDING_KINDS = ("record", "debug_case")


def job_service(request: Request) -> JobService:
    """Return the jobs of this application."""
    service: JobService = request.app.state.jobs
    return service


def submit_job(
    request: Request, person: Person, kind: JobKind, payload: JsonObject, *, key: str | None = None
) -> JobView:
    """Queue a job for a person. Raises 429 or 503 if the queue is full."""
    service = job_service(request)
    try:
        job = service.submit(person.id, kind, payload, key=key)
    except QueueFull as error:
        status = 429 if error.is_of_person else 503
        raise HTTPException(status, str(error), headers={"retry-after": "10"}) from error
    return job_view(job, service)


def job_view(job: Job, service: JobService) -> JobView:
    """Return a job as the API shows it."""
    is_recording = job.state == "done" and job.kind in _RECORDING_KINDS
    return JobView(
        id=job.id,
        kind=job.kind,
        state=job.state,
        position=job.position,
        is_starting=service.is_waiting_for_start(job),
        is_cancel_requested=job.is_cancel_requested,
        progress=job.progress,
        result=job.result,
        result_url=f"/api/v1/recordings/{job.id}" if is_recording else None,
        error=JobErrorView(**job.error.to_json()) if job.error else None,
        events_url=f"/api/v1/jobs/{job.id}/events",
    )


def _own_job(request: Request, person: Person, job_id: str) -> Job:
    job = job_service(request).queue.find(job_id)
    if job is None or job.person != person.id:  # the same answer: ids of others stay unknown
        raise HTTPException(404, "There is no such job.")
    return job


@router.get("/{job_id}")
def show_job(request: Request, person: CurrentPerson, job_id: JobId) -> JobView:
    """Return a job."""
    return job_view(_own_job(request, person, job_id), job_service(request))


@router.post("/{job_id}/cancel")
def cancel_job(request: Request, person: CurrentPerson, job_id: JobId) -> JobView:
    """Cancel a job. One that runs ends within moments; one that has ended stays as it is."""
    _own_job(request, person, job_id)
    service = job_service(request)
    job = service.cancel(job_id)
    if job is None:
        raise HTTPException(404, "There is no such job.")
    return job_view(job, service)


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "A job, whenever it changes."},
        204: {"description": "The job has ended, and the client has seen it."},
    },
)
async def stream_job(
    request: Request,
    person: CurrentPerson,
    job_id: JobId,
    last_event_id: Annotated[str, Header(max_length=100)] = "",
) -> Response:
    """Send the job as an event whenever it changes, until it ends."""
    job = await asyncio.to_thread(_own_job, request, person, job_id)
    service = job_service(request)
    if job.has_ended and last_event_id == _event_id(job_view(job, service), job):
        return Response(status_code=204)  # an EventSource does not connect again after this
    return StreamingResponse(
        _events(request, person, job_id, last_event_id),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


def _event_id(view: JobView, job: Job) -> str:
    """Return what changes with everything that an event shows."""
    return f"{job.version}-{view.position or 0}-{int(view.is_starting)}"


async def _events(
    request: Request, person: Person, job_id: str, last_id: str
) -> AsyncIterator[str]:
    service = job_service(request)
    with event_streams(request).open(person, request) as refusal:
        # Milliseconds until the client connects again.
        yield f"{refusal_lines(refusal)}\n" if refusal else "retry: 1000\n\n"
        loop = asyncio.get_running_loop()
        last_sent = loop.time()
        async for job in service.watch(job_id):
            view = job_view(job, service)
            event_id = _event_id(view, job)
            if event_id != last_id:
                # One line: JSON escapes every line break.
                yield f"id: {event_id}\nevent: job\ndata: {view.model_dump_json()}\n\n"
                last_id, last_sent = event_id, loop.time()
            elif loop.time() - last_sent > _HEARTBEAT_SECONDS:
                yield ": still here\n\n"
                last_sent = loop.time()
            if refusal:
                return
