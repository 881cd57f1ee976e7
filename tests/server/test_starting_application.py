"""The start of `shardlab serve`: the first pages before everything else, and what can go wrong."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from server.asgi_client import TestClient
from server.lab_server import PATIENCE_SECONDS, LabServer
from shardlab.server.application import create_app
from shardlab.server.pages.first_pages import FIRST_PAGES
from shardlab.server.settings import ServerSettings
from shardlab.server.starting_application import create_first_app

PATHS = ("/", "/lab", "/lab?example=megatron_mlp&recording=x", "/static/site.css")


@pytest.mark.parametrize("path", PATHS)
def test_the_first_pages_are_those_of_the_complete_application(tmp_path, path):
    settings = ServerSettings(data_folder=tmp_path, n_workers=0)
    responses = [
        TestClient(app, base_url=settings.url).get(path)
        for app in (create_first_app(settings), create_app(settings))
    ]
    assert [response.status_code for response in responses] == [200, 200]
    first, complete = (without_random_parts(response.text) for response in responses)
    assert first == complete
    headers = [dict(response.headers) for response in responses]
    for ours in headers:
        assert "script-src 'self'" in ours.pop("content-security-policy")
        # Random names and their compressed length; a request is logged once its log is loaded.
        for name in ("set-cookie", "content-length", "x-request-id"):
            ours.pop(name, None)
    assert headers[0] == headers[1]


def without_random_parts(html):
    return re.sub(r'(nonce|csrf-token" content)="[^"]*"', r'\1=""', html)


def test_only_pages_without_a_person_are_served_before_the_access_table_is_loaded():
    from shardlab.server.access import ACCESS, EVERYONE

    assert {ACCESS[f"GET {path}"] for path in FIRST_PAGES} == {EVERYONE}


def test_a_request_during_the_start_waits_for_the_complete_application(tmp_path):
    with LabServer(tmp_path) as server:  # its first request is for the home page
        assert server.client.get("/practice").status_code == 200
        assert server.client.get("/").status_code == 200


def test_ctrl_c_during_the_start_ends_the_requests_that_wait(tmp_path):
    with LabServer(tmp_path) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(f"GET /practice HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
            server.process.send_signal(signal.SIGINT)
            _, errors = server.process.communicate(timeout=PATIENCE_SECONDS)
    assert "Traceback" not in errors
    assert server.process.returncode == 0


@pytest.mark.parametrize(
    ("damage", "reason"),
    [("no database", "file is not a database"), ("too new", "schema version 9999")],
)
def test_a_database_that_cannot_be_used_ends_the_server_with_the_reason(tmp_path, damage, reason):
    path = tmp_path / "server.db"
    if damage == "no database":
        path.write_bytes(b"garbage" * 1000)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
            connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    command = [sys.executable, "-m", "shardlab", "serve", "--no-open", "--port", "0"]
    run = subprocess.run(
        [*command, "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert run.returncode == 2
    assert "[server.database]" in run.stderr
    assert reason in run.stderr
    assert "Traceback" not in run.stderr
