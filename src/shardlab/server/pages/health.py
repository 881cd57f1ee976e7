"""Whether the server works.

/health is for scripts and for the page that waits for the workers, /healthz and /readyz for a
supervisor and a load balancer, /metrics for Prometheus.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shardlab import __version__
from shardlab.server.jobs.job_service import JobService
from shardlab.server.operations.metrics import ServerMetrics
from shardlab.server.operations.queue_figures import list_workers, queue_by_kind
from shardlab.server.operations.readiness import Readiness, ReadinessCheck

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


@router.get("/healthz")
async def show_alive() -> JSONResponse:
    """Return 200 while this process answers at all: a supervisor restarts one that does not."""
    return JSONResponse({"status": "alive", "version": __version__})


@router.get("/readyz")
async def show_readiness(request: Request) -> JSONResponse:
    """Return 200 if this process should get requests, otherwise 503 and what is wrong."""
    readiness: Readiness = request.app.state.readiness
    checks = await readiness.check()
    is_ready = all(check.ok for check in checks)
    content = {
        "status": "ready" if is_ready else "not ready",
        "failed": [check.name for check in checks if not check.ok],
        "checks": {
            check.name: {"ok": check.ok, **({} if check.ok else {"message": check.message})}
            for check in checks
        },
    }
    return JSONResponse(content, 200 if is_ready else 503)


@router.get("/metrics")
async def show_metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    checks = await request.app.state.readiness.check()
    return await run_in_threadpool(_write_metrics, request, checks)


def _write_metrics(request: Request, checks: tuple[ReadinessCheck, ...]) -> Response:
    # Here: its client is loaded when somebody asks for the first time.
    from shardlab.server.operations.metrics_text import Snapshot, write_metrics

    state = request.app.state
    service: JobService = state.jobs
    metrics: ServerMetrics = state.metrics
    state.ledger.count_ended_jobs()
    snapshot = Snapshot(
        queue=queue_by_kind(state.database),
        workers=list_workers(service),
        checks=checks,
        storage=state.storage.measure(),
        n_streams=state.event_streams.n_open,
        n_worker_restarts=sum(max(0, status.n_starts - 1) for status in service.worker_status),
        refusals=None if state.settings.is_local else state.people.limits.refusals,
    )
    body, content_type = write_metrics(metrics, snapshot, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})
