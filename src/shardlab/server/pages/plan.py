"""The planner: a form, and the plan of the URL's options, readable without scripts.

With scripts `web/src/planner` takes its place; it gets the first plan with the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from pydantic import ValidationError

from shardlab._text.units import bytes_text
from shardlab.errors import LabError, PlanTimeout
from shardlab.server.api.plan_models import PlanBody, PlannerChoices, PlanView
from shardlab.server.current_person import CurrentPerson
from shardlab.server.field_messages import field_message
from shardlab.server.html_cache import html_cache
from shardlab.server.page_rendering import render_page, render_part
from shardlab.server.person import Person
from shardlab.server.plan_requests import planner_choices
from shardlab.server.planning.plan_pool import plan_pool
from shardlab.server.planning.plan_process import compute_page
from shardlab.server.svg_image import svg_data_url

router = APIRouter(include_in_schema=False)

_MAX_LISTED_ROWS = 60
_TEXTS = ("model", "mesh", "strategy", "rules", "hardware", "optimizer", "remat", "policy")
_NUMBERS = ("batch", "sequence", "microbatch")
DEFAULTS = {
    "model": "llama3-8b",
    "mesh": "fsdp=8",
    "strategy": "fsdp",
    "hardware": "tpu-v5p",
    "optimizer": "adamw",
    "batch": "16",
    "sequence": "4096",
}


@dataclass(frozen=True, kw_only=True)
class PlanError:
    """Why there is no plan."""

    what: str
    where: str = ""
    fix: str = ""
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class PlanFrame:
    """The context of plan.html."""

    content: Markup
    title: str = "Planner"


@dataclass(frozen=True, kw_only=True)
class PlanPage:
    """The context of _plan.html: the fields of the form, and the plan or the error."""

    fields: dict[str, str]
    choices: PlannerChoices
    plan: PlanView | None = None
    bars: str = ""  # images as data URLs
    treemap: str = ""
    error: PlanError | None = None
    max_listed_rows: int = _MAX_LISTED_ROWS

    def text(self, field: str) -> str:
        return self.fields.get(field, "")

    def bytes_text(self, n_bytes: int) -> str:
        return bytes_text(n_bytes)

    @property
    def query(self) -> str:
        return urlencode(self.fields)

    @property
    def data(self) -> dict[str, Any]:
        """What the browser code begins with."""
        return {
            "choices": self.choices.model_dump(),
            "plan": None if self.plan is None else self.plan.model_dump(),
        }


@router.get("/plan")
def show_plan(request: Request, person: CurrentPerson) -> HTMLResponse:
    query = {name: value for name, value in request.query_params.items() if name in _FIELDS}
    fields = {name: value[:_MAX_FIELD] for name, value in query.items()} or dict(DEFAULTS)
    # Everything on the page follows from the fields: nothing depends on the person.
    key = ("plan", tuple(sorted(fields.items())))
    cache = html_cache(request)
    content = cache.find(key)
    if content is None:
        page = make_plan_page(fields, lambda body: _compute_plan(request, person, body))
        content = render_part("_plan.html", page)
        is_cacheable = sum(map(len, fields.values())) <= _MAX_KEY
        # A plan that took too long may be fast enough when the machine is less busy.
        if is_cacheable and (page.error is None or page.error.code != PlanTimeout.code):
            cache.store(key, content)
    return render_page(request, "plan.html", PlanFrame(content=content))


_FIELDS = frozenset((*_TEXTS, *_NUMBERS, "headroom"))
_MAX_FIELD = 8000  # characters; URLs are not longer
_MAX_KEY = 2000  # characters of the fields of a page that is cached


def _compute_plan(request: Request, person: Person, body: PlanBody) -> dict[str, Any]:
    if body == PlanBody.model_validate(DEFAULTS):  # a few milliseconds, once
        return compute_page(body.model_dump())
    return plan_pool(request).request(person.id, "plan_page", body.model_dump())


def make_plan_page(
    fields: dict[str, str], compute: Callable[[PlanBody], dict[str, Any]]
) -> PlanPage:
    """Return the page of some fields; an invalid one becomes the page's error."""
    choices = planner_choices()
    try:
        result = compute(_read_body(fields))
        return PlanPage(
            fields=fields,
            choices=choices,
            plan=PlanView(**result["plan"]),
            bars=svg_data_url(result["bars"]),
            treemap=svg_data_url(result["treemap"]),
        )
    except LabError as error:
        problem = PlanError(what=error.what, where=error.where, fix=error.fix, code=error.code)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        problem = PlanError(what=field_message(name, first), code="plan.invalid_field")
    return PlanPage(fields=fields, choices=choices, error=problem)


def _read_body(fields: dict[str, str]) -> PlanBody:
    """Return the body that the fields of a form describe: an empty field is not set."""
    values: dict[str, Any] = {name: fields[name] for name in _TEXTS if fields.get(name, "").strip()}
    for name in (*_NUMBERS, "headroom"):
        if text := fields.get(name, "").replace(",", "").replace("_", "").strip():
            values[name] = text
    values.setdefault("mesh", "")
    if "rules" in values:
        values.pop("strategy", None)
    return PlanBody.model_validate(values)
