"""Builds the web application from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware.gzip import GZipMiddleware

from shardlab import __version__
from shardlab.server.access import check_access
from shardlab.server.api import (
    gallery_routes,
    job_routes,
    plan_routes,
    practice_routes,
    recording_routes,
)
from shardlab.server.database.engine import open_database
from shardlab.server.identity import Identify, identify_local_person, identify_with
from shardlab.server.jobs.job_service import JobService
from shardlab.server.pages import (
    health,
    home,
    lab,
    layout,
    plan,
    practice_list,
    practice_problem,
    practice_submission,
)
from shardlab.server.pages.error import add_error_pages
from shardlab.server.people.services import open_people
from shardlab.server.practice.workbooks import add_practice
from shardlab.server.request_guard import RequestGuard
from shardlab.server.settings import ServerSettings
from shardlab.server.static_files import VersionedStaticFiles

_ROUTERS = (
    *(home.router, lab.router, layout.router, plan.router, health.router),
    # In this order: /practice/export.zip is not a problem.
    *(practice_list.router, practice_submission.router, practice_problem.router),
    *(job_routes.router, recording_routes.router, gallery_routes.router, plan_routes.router),
    practice_routes.router,
)
_MIN_COMPRESSED_BYTES = 1000


def _people_routers() -> tuple[APIRouter, ...]:
    """Return the routes of mode `accounts`; local mode does not spend the time to load them."""
    from shardlab.server.api import account as account_api
    from shardlab.server.api import admin as admin_api
    from shardlab.server.api import classes as classes_api
    from shardlab.server.pages import account, admin, classes, sign_in

    return (
        *(sign_in.router, account.router, classes.router, admin.router),
        *(account_api.router, classes_api.router, admin_api.router),
    )


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the application. Workers start with it and end with it.

    Raises `DatabaseUnusable`.
    """
    app = FastAPI(
        title="shardlab",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_run_workers,
        dependencies=[Depends(check_access)],  # of every route that is added below
    )
    app.state.settings = settings
    app.state.database = open_database(settings.data_folder)
    app.state.jobs = JobService(app.state.database, settings)
    add_practice(app)
    # Local mode needs no secret that survives a restart: its forms are reloaded with the page.
    secret = settings.secret.encode() or secrets.token_bytes(32)
    app.add_middleware(GZipMiddleware, minimum_size=_MIN_COMPRESSED_BYTES, compresslevel=5)
    identify: Identify = identify_local_person
    if not settings.is_local:
        app.state.people = open_people(settings, app.state.database)
        identify = identify_with(app.state.people, settings)
    app.add_middleware(  # the outermost
        RequestGuard, settings=settings, secret=secret, identify=identify
    )
    app.mount("/static", VersionedStaticFiles(), name="static")
    for router in _ROUTERS if settings.is_local else (*_ROUTERS, *_people_routers()):
        app.include_router(router)
    add_error_pages(app)
    return app


@contextlib.asynccontextmanager
async def _run_workers(app: FastAPI) -> AsyncIterator[None]:
    jobs: JobService = app.state.jobs
    jobs.start(asyncio.get_running_loop())
    try:
        yield
    finally:
        await asyncio.to_thread(jobs.stop)
        app.state.database.close()
