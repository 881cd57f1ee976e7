"""The practice pages in one process: an application, and a browser without scripts."""

from __future__ import annotations

import warnings

import pytest
from plain_browser import PlainBrowser

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette announces another HTTP client for its tests
    from fastapi.testclient import TestClient

from shardlab.course.store import open_store
from shardlab.server.application import create_app
from shardlab.server.settings import ServerSettings


@pytest.fixture
def data_folder(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def app(data_folder):
    app = create_app(ServerSettings(data_folder=data_folder))
    yield app
    app.state.database.close()


@pytest.fixture
def browser(app):
    # Without the application's lifespan no worker starts: what is submitted waits in the queue.
    return PlainBrowser(TestClient(app, base_url="http://127.0.0.1:8765"))


@pytest.fixture
def store(data_folder):
    return open_store(data_folder)
