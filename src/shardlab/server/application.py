"""Builds the web application from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware

from shardlab import __version__
from shardlab.server.api import gallery_routes, job_routes, recording_routes
from shardlab.server.database.engine import open_database
from shardlab.server.jobs.job_service import JobService
from shardlab.server.pages import health, home, lab
from shardlab.server.pages.error import add_error_pages
from shardlab.server.request_guard import RequestGuard
from shardlab.server.settings import ServerSettings
from shardlab.server.static_files import VersionedStaticFiles

_ROUTERS = (
    *(home.router, lab.router, health.router),
    *(job_routes.router, recording_routes.router, gallery_routes.router),
)
_MIN_COMPRESSED_BYTES = 1000


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
    )
    app.state.settings = settings
    app.state.database = open_database(settings.data_folder)
    app.state.jobs = JobService(app.state.database, settings)
    # Local mode needs no secret that survives a restart: its forms are reloaded with the page.
    secret = settings.secret.encode() or secrets.token_bytes(32)
    app.add_middleware(GZipMiddleware, minimum_size=_MIN_COMPRESSED_BYTES, compresslevel=5)
    app.add_middleware(RequestGuard, settings=settings, secret=secret)  # the outermost
    app.mount("/static", VersionedStaticFiles(), name="static")
    for router in _ROUTERS:
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
