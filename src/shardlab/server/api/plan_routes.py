"""The planner: a plan at once, advice as a job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException

from shardlab.server.api.api_models import ERROR_RESPONSES, JobView
from shardlab.server.api.job_routes import submit_job
from shardlab.server.api.plan_models import AdviceBody, PlanBody, PlannerChoices, PlanView
from shardlab.server.person import CurrentPerson
from shardlab.server.plan_requests import check_advice_body, make_plan, planner_choices, view_plan

router = APIRouter(prefix="/api/v1", tags=["planner"], responses=ERROR_RESPONSES)

# A plan of a preset takes 10 ms, one of 100,000 uploaded tensors with rules some seconds; searching
# rules has its own limit of 2 s. A thread cannot be ended, so few of them may plan at once.
_MAX_PLANS_AT_ONCE = 3
_WAIT_SECONDS = 5.0
_slots = threading.BoundedSemaphore(_MAX_PLANS_AT_ONCE)


@contextmanager
def planning_slot() -> Iterator[None]:
    """Wait until fewer than the most plans are computed. Raises 503 if that takes too long."""
    if not _slots.acquire(timeout=_WAIT_SECONDS):
        raise HTTPException(503, headers={"retry-after": "5"})
    try:
        yield
    finally:
        _slots.release()


@router.post("/plans")
def create_plan(person: CurrentPerson, body: PlanBody) -> PlanView:
    """Return what each device of a mesh stores of a model, and whether it fits."""
    with planning_slot():
        return view_plan(make_plan(body))


@router.post("/advice", status_code=202)
def create_advice(request: Request, person: CurrentPerson, body: AdviceBody) -> JobView:
    """Rank the meshes and strategies for a number of devices; the result is the job's."""
    with planning_slot():
        check_advice_body(body)
    return submit_job(request, person, "advice", body.model_dump())


@router.get("/planner")
def list_planner_choices(person: CurrentPerson) -> PlannerChoices:
    """Return the presets, chips, strategies and optimizers that the planner knows."""
    return planner_choices()
