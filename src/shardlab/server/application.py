"""Builds the web application from its settings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware.gzip import GZipMiddleware

from shardlab import __version__
from shardlab.course.database import hold_log_open
from shardlab.course.store import open_store
from shardlab.server.access import check_access
from shardlab.server.api import (
    gallery_routes,
    job_routes,
    layout_routes,
    plan_routes,
    practice_routes,
    recording_routes,
)
from shardlab.server.api.api_security import describe_security
from shardlab.server.database.engine import open_database
from shardlab.server.event_streams import EventStreams
from shardlab.server.http_protocol import MIN_COMPRESSED_BYTES
from shardlab.server.identity import identify_with
from shardlab.server.jobs.job_service import JobService
from shardlab.server.local_secret import read_local_secret
from shardlab.server.local_token import identify_locally, read_local_token
from shardlab.server.operations.request_log import RequestLog
from shardlab.server.operations.services import add_operations
from shardlab.server.pages import (
    health,
    layout,
    plan,
    practice_list,
    practice_problem,
    practice_submission,
)
from shardlab.server.pages.error import add_error_pages
from shardlab.server.pages.first_pages import FIRST_PAGES
from shardlab.server.planning.plan_pool import PlanPool
from shardlab.server.practice.judging import queue_reserved_submissions
from shardlab.server.practice.workbooks import add_practice
from shardlab.server.request_guard import RequestGuard
from shardlab.server.settings import ServerSettings
from shardlab.server.static_files import VersionedStaticFiles

_PRACTICE_ROUTERS = (
    # In this order: /practice/export.zip is not a problem.
    *(practice_list.router, practice_submission.router, practice_problem.router),
    practice_routes.router,
)
_ROUTERS = (
    *(layout.router, plan.router, health.router),
    *_PRACTICE_ROUTERS,
    *(job_routes.router, recording_routes.router, gallery_routes.router, plan_routes.router),
    layout_routes.router,
)


def _first_pages_router() -> APIRouter:
    """Return the pages that `starting_application` also serves before FastAPI is loaded."""
    router = APIRouter(include_in_schema=False)
    for path, show_page in FIRST_PAGES.items():
        router.add_api_route(path, show_page)
    return router


def _people_routers() -> tuple[APIRouter, ...]:
    """Return the routes of mode `accounts`; local mode does not spend the time to load them."""
    from shardlab.server.api import account as account_api
    from shardlab.server.api import admin as admin_api
    from shardlab.server.api import catalogues as catalogues_api
    from shardlab.server.api import classes as classes_api
    from shardlab.server.api import passkeys as passkeys_api
    from shardlab.server.catalogue_routes import catalogue_practice_router
    from shardlab.server.pages import account, admin, catalogues, classes, sign_in

    return (
        *(sign_in.router, account.router, classes.router, admin.router),
        *(account_api.router, passkeys_api.router, classes_api.router, admin_api.router),
        *(catalogues.router, catalogues_api.router, catalogue_practice_router(_PRACTICE_ROUTERS)),
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
    app.state.database = open_database(settings.data_folder, settings.database_url)
    app.state.jobs = JobService(app.state.database, settings)
    add_operations(app)
    app.state.plans = PlanPool()
    app.state.event_streams = EventStreams()
    add_practice(app)
    # Pages that are open during a restart must be able to send their forms after it.
    secret = settings.secret.encode() or read_local_secret(settings.data_folder)
    app.add_middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=5)
    if settings.is_local:
        identify = identify_locally(read_local_token(settings.data_folder))
    else:
        # Imported here: argon2 and everything about accounts.
        from shardlab.server.people.services import open_people

        app.state.people = open_people(settings, app.state.database)
        identify = identify_with(app.state.people, settings)
    app.add_middleware(  # the outermost but for the log
        RequestGuard, settings=settings, secret=secret, identify=identify
    )
    app.add_middleware(RequestLog, metrics=app.state.metrics)
    app.mount("/static", VersionedStaticFiles(), name="static")
    for router in (_first_pages_router(), *_ROUTERS):
        app.include_router(router)
    for router in () if settings.is_local else _people_routers():
        app.include_router(router)
    add_error_pages(app)
    describe_security(app)
    return app


@contextlib.asynccontextmanager
async def _run_workers(app: FastAPI) -> AsyncIterator[None]:
    jobs: JobService = app.state.jobs
    await asyncio.to_thread(queue_reserved_submissions, jobs, app.state.open_practice_store)
    jobs.start(asyncio.get_running_loop())
    settings: ServerSettings = app.state.settings
    store = open_store(settings.data_folder)
    try:
        with hold_log_open(store.path) if settings.is_local else contextlib.nullcontext():
            yield
    finally:
        app.state.plans.close()
        await asyncio.to_thread(jobs.stop)
        app.state.database.close()
