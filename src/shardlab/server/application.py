"""Builds the web application from its settings."""

from __future__ import annotations

import secrets

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from shardlab import __version__
from shardlab.server.page_rendering import STATIC_FOLDER
from shardlab.server.pages import home, layout
from shardlab.server.pages.error import add_error_pages
from shardlab.server.request_guard import RequestGuard
from shardlab.server.settings import ServerSettings


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the application. Workers start with it and end with it."""
    app = FastAPI(
        title="shardlab",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    # Local mode needs no secret that survives a restart: its forms are reloaded with the page.
    secret = settings.secret.encode() or secrets.token_bytes(32)
    app.add_middleware(RequestGuard, settings=settings, secret=secret)
    app.mount("/static", StaticFiles(directory=STATIC_FOLDER), name="static")
    app.include_router(home.router)
    app.include_router(layout.router)
    add_error_pages(app)
    return app
