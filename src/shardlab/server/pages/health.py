"""/health: whether the server works, for scripts and for the page that waits for the workers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse

from shardlab import __version__
from shardlab.server.jobs.job_service import JobService

router = APIRouter(include_in_schema=False)


@router.get("/health")
def show_health(request: Request) -> JSONResponse:
    """Return 200 while pages are served; `workers` says whether programs can run."""
    service: JobService = request.app.state.jobs
    workers: list[dict[str, Any]] = [
        {
            "state": status.state,
            "can_judge": status.can_judge,
            "level": status.level,
            "failure": status.failure,
        }
        for status in service.worker_status
    ]
    content = {
        "status": "starting" if service.is_starting else "ready",
        "version": __version__,
        "workers": workers,
        "queue_length": service.queue.queue_length(),
    }
    return JSONResponse(content)
