"""A real server: its log, its metrics on loopback, and its end after SIGTERM."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import httpx
import pytest

from server.lab_server import PATIENCE_SECONDS, LabServer, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    # Long enough for every request below; the second SIGTERM ends it.
    with LabServer(
        tmp_path_factory.mktemp("data"), "--log-format", "json", "--drain-seconds", "600"
    ) as server:
        server.wait_until_ready()
        yield server


def test_the_log_of_a_job_has_the_id_of_its_request(server):
    headers = {"x-request-id": "from-a-test-0001"}
    body = {"source": "def broken(:\n    my private text\n", "mesh": "data=2"}
    response = server.client.post("/api/v1/recordings", json=body, headers=headers)
    job = server.wait_for_end(response.json()["id"])
    assert job["state"] == "done"  # a recording of a program that does not run


def test_the_metrics_are_for_programs_on_this_machine(server):
    port = server.url.rpartition(":")[2]
    assert "shardlab_workers_alive 1.0" in server.client.get("/metrics").text
    for name, value in (("x-forwarded-for", "192.0.2.7"), ("host", f"rebound.example:{port}")):
        response = server.client.get("/metrics", headers={name: value})
        assert response.status_code == 403, name


# The last test: it ends the server.
def test_a_server_that_drains_says_so_serves_on_and_ends_at_the_second_signal(server):
    assert server.client.get("/readyz").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: server.client.get("/readyz").status_code == 503)
    assert server.client.get("/readyz").json()["failed"] == ["not draining"]
    assert server.client.get("/").status_code == 200
    server.client.close()
    server.process.send_signal(signal.SIGTERM)
    _, errors = server.process.communicate(timeout=PATIENCE_SECONDS)
    assert server.process.returncode == -signal.SIGTERM
    lines = [json.loads(line) for line in errors.splitlines()]
    about_the_job = [line for line in lines if line.get("request_id") == "from-a-test-0001"]
    loggers = {line["logger"] for line in about_the_job}
    assert loggers == {"shardlab.server.requests", "shardlab.server.jobs"}
    (end,) = (line for line in about_the_job if line.get("state") == "done")
    assert (end["kind"], bool(end["job_id"]), end["seconds"] > 0) == ("record", True, True)
    assert "private text" not in errors


def test_the_drain_ends_by_itself(tmp_path):
    command = [sys.executable, "-m", "shardlab", "serve", "--no-open", "--port", "0"]
    command += ["--data", str(tmp_path), "--drain-seconds", "0.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split(" at ")[1].split()[0]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                assert httpx.get(f"{url}healthz", timeout=PATIENCE_SECONDS).status_code == 200
                break
            except httpx.TransportError:
                time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGTERM
