"""The planner: a plan at once, advice as a job."""

from __future__ import annotations

from fastapi import APIRouter, Request

from shardlab.server.api.api_models import ERROR_RESPONSES, JobView
from shardlab.server.api.job_routes import submit_job
from shardlab.server.api.plan_models import AdviceBody, PlanBody, PlannerChoices, PlanView
from shardlab.server.current_person import CurrentPerson
from shardlab.server.plan_requests import planner_choices
from shardlab.server.planning.plan_pool import plan_pool

router = APIRouter(prefix="/api/v1", tags=["planner"], responses=ERROR_RESPONSES)


@router.post("/plans")
def create_plan(request: Request, person: CurrentPerson, body: PlanBody) -> PlanView:
    """Return what each device of a mesh stores of a model, and whether it fits."""
    return PlanView(**plan_pool(request).request(person.id, "plan", body.model_dump()))


@router.post("/advice", status_code=202)
def create_advice(request: Request, person: CurrentPerson, body: AdviceBody) -> JobView:
    """Rank the meshes and strategies for a number of devices; the result is the job's."""
    plan_pool(request).request(person.id, "check_advice", body.model_dump())
    return submit_job(request, person, "advice", body.model_dump())


@router.get("/planner")
def list_planner_choices(person: CurrentPerson) -> PlannerChoices:
    """Return the presets, chips, strategies and optimizers that the planner knows."""
    return planner_choices()
