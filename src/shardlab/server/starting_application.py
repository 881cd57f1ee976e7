"""The application of local mode: its first pages at once, everything else moments later.

Three quarters of the time until the first page would be spent on imports that it does not need:
FastAPI, SQLAlchemy, and the routes of everything else. So the home page and the editor are served
by a small Starlette application, while `create_app` loads the complete one in a thread. A request
for anything else waits until that is done; from then on this one only passes requests on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from shardlab.catalogue.tracks import load_catalogue
from shardlab.server.database.database_file import create_database_file
from shardlab.server.http_protocol import MIN_COMPRESSED_BYTES
from shardlab.server.local_secret import read_local_secret
from shardlab.server.local_token import identify_locally, read_local_token
from shardlab.server.pages.first_pages import FIRST_PAGES
from shardlab.server.request_guard import SAFE_METHODS, RequestGuard
from shardlab.server.settings import ServerSettings
from shardlab.server.static_files import VersionedStaticFiles

if TYPE_CHECKING:  # loaded by `_load`, in a thread
    from fastapi import FastAPI

    from shardlab.server.jobs.job_service import JobService

_NOT_STARTED = PlainTextResponse(
    "The server ends before it has started. Its terminal says why.", 503
)


def create_first_app(settings: ServerSettings) -> Starlette:
    """Return an application with the first pages and the static files.

    Raises `DatabaseUnusable` if the data folder cannot be written to.
    """
    create_database_file(settings.data_folder)
    app = Starlette(
        routes=[
            *(Route(path, show_page) for path, show_page in FIRST_PAGES.items()),
            Mount("/static", VersionedStaticFiles()),
        ],
        middleware=[
            Middleware(
                RequestGuard,
                settings=settings,
                secret=read_local_secret(settings.data_folder),
                identify=identify_locally(read_local_token(settings.data_folder)),
            ),
            Middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=5),
        ],
    )
    app.state.settings = settings
    app.state.catalogue = load_catalogue(settings.catalogue)
    return app


class StartingApplication:
    """ASGI application: the first pages until the complete application is loaded."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._first: ASGIApp = create_first_app(settings)
        self._complete: FastAPI | None = None
        self._is_settled = asyncio.Event()  # loaded, or failed
        self._is_ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] | None = None

    def begin_drain(self) -> None:
        """Say that this process should get no more requests; for a signal handler."""
        if self._complete is not None:
            self._complete.state.readiness.begin_drain()

    def end_waits(self) -> None:
        """End every response that waits, because the server ends; for a signal handler."""
        self._is_ending = True
        if self._complete is not None:
            jobs: JobService = self._complete.state.jobs
            jobs.end_watches()
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_settled.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run(receive, send)
            return
        if self._complete is None and not _is_of_first_pages(scope):
            await self._is_settled.wait()
            if self._complete is None:
                await _NOT_STARTED(scope, receive, send)
                return
        await (self._complete or self._first)(scope, receive, send)

    async def _run(self, receive: Receive, send: Send) -> None:
        """Answer the server's two messages: the application starts, and ends."""
        await receive()
        self._loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            loading = asyncio.create_task(self._load(stack))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await loading  # a thread cannot be interrupted
        await send({"type": "lifespan.shutdown.complete"})

    async def _load(self, stack: contextlib.AsyncExitStack) -> None:
        try:
            app = await asyncio.to_thread(_load_application, self._settings)
            if self._is_ending:  # no worker has to start
                app.state.database.close()
            else:
                await stack.enter_async_context(app.router.lifespan_context(app))
                self._complete = app
        except Exception as error:
            self.failure = error
            if self.on_failure is not None:
                self.on_failure()
        finally:
            self._is_settled.set()


def _load_application(settings: ServerSettings) -> FastAPI:
    # The collector would look again and again at the modules, classes and routes that all stay: a
    # twentieth of the time. `freeze` leaves them out for as long as the server runs.
    gc.disable()
    try:
        from shardlab.server.application import create_app

        return create_app(settings)
    finally:
        gc.freeze()
        gc.enable()


def _is_of_first_pages(scope: Scope) -> bool:
    if scope["method"] not in SAFE_METHODS:
        return False
    path: str = scope["path"]
    return path in FIRST_PAGES or path.startswith("/static/")
