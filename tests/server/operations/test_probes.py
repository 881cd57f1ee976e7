"""Probes, metrics and request ids of an application without workers."""

from __future__ import annotations

import json
import logging
import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import IntegrityError

from server.people.people_server import PASSWORD, PeopleServer
from shardlab.server.access import ACCESS
from shardlab.server.database.engine import HEAD_REVISION
from shardlab.server.database.tables import JobRow
from shardlab.server.jobs.queue import JobError, JobOutcome
from shardlab.server.jobs.worker_supervisor import WorkerStatus
from shardlab.server.operations.log_format import JsonFormatter
from shardlab.server.operations.quotas import ServerLimits

TOKEN = "n3Vx8-KqLw2ZrT9yBmJ4hFsD6gPc7UeA"
HEADERS = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def server(tmp_path):
    server = PeopleServer(tmp_path, metrics_token=TOKEN, n_workers=1)
    yield server
    server.close()


def set_ready(server, state="ready"):
    """Say that the worker is ready, as its supervisor does when it hears of it."""
    (supervisor,) = server.app.state.jobs.supervisors
    supervisor.status = WorkerStatus(state=state, can_judge=True, level="A", n_starts=1)
    server.app.state.readiness._checked = float("-inf")  # what was checked a moment ago


def metrics(server):
    """Return each value by its name and labels."""
    response = server.browser().get("/metrics", headers=HEADERS)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def readiness(server):
    response = server.browser().get("/readyz")
    return response.status_code, response.json()["failed"]


# --------------------------------------------------------------------------------------- probes


def test_a_process_is_alive_whatever_else_is_broken(server):
    server.database.engine.dispose()
    (server.settings.data_folder / "server.db").unlink()
    response = server.browser().get("/healthz", headers={"host": "10.0.0.7:8765"})
    assert (response.status_code, response.json()["status"]) == (200, "alive")


def test_a_process_is_ready_when_a_worker_is(server):
    assert readiness(server) == (503, ["workers"])
    set_ready(server)
    assert readiness(server) == (200, [])
    set_ready(server, "failed")
    assert readiness(server) == (503, ["workers"])


def test_a_process_that_drains_is_not_ready(server):
    set_ready(server)
    server.app.state.readiness.is_draining = True
    assert readiness(server) == (503, ["not draining"])


def test_a_process_without_its_tables_is_not_ready(server):
    set_ready(server)
    with server.database.write() as session:
        session.execute(JobRow.__table__.delete())
        session.connection().exec_driver_sql("ALTER TABLE job RENAME TO lost")
    assert readiness(server) == (503, ["database", "schema", "queue", "workers"])


@pytest.mark.parametrize(("revision", "failed"), [("0001", ["schema"]), ("0999", [])])
def test_an_older_schema_is_not_ready_and_a_newer_one_is(server, revision, failed):
    # A newer one: the next release has added to it and starts beside this process.
    set_ready(server)
    assert HEAD_REVISION not in ("0001", "0999")
    with server.database.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE alembic_version SET version_num = ?", (revision,)
        )
    assert readiness(server)[1] == failed


def test_a_full_queue_is_not_ready(tmp_path):
    server = PeopleServer(tmp_path, limits=ServerLimits(jobs_in_queue=2), n_workers=1)
    set_ready(server)
    queue = server.app.state.jobs.queue
    queue.reserve(1, "record", {})
    assert readiness(server) == (200, [])
    queue.reserve(2, "record", {})
    set_ready(server)
    assert readiness(server) == (503, ["queue"])
    server.close()


def test_a_probe_names_no_person_and_no_path(server):
    text = server.browser().get("/readyz").text
    assert str(server.settings.data_folder) not in text


# -------------------------------------------------------------------------------------- metrics


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": "Bearer é"},
    ],
)
def test_with_a_token_file_nobody_reads_the_metrics_without_it(server, headers):
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    response = server.browser().get("/metrics", headers=sent)
    assert response.status_code == 401
    assert server.person("Root", "admin").get("/metrics").status_code == 401


def test_requests_are_counted_by_route_and_status(server):
    browser = server.browser()
    before = metrics(server)
    for number in range(3):
        browser.get(f"/practice/no-such-problem-{number}")
    browser.get("/nowhere")
    browser.client.request("BREW", "/")
    after = metrics(server)

    def grown(*labels):
        key = ("shardlab_http_requests_total", *sorted(labels))
        return after.get(key, 0) - before.get(key, 0)

    assert grown("GET", "/practice/{slug}", "404") == 3
    assert grown("GET", "none", "404") == 1
    assert grown("other", "none", "403") == 1  # no CSRF token
    routes = {key[1] for key in after if key[0] == "shardlab_http_request_seconds_count"}
    assert routes <= {key.split(" ")[1] for key in ACCESS} | {"none", "/static"}


def test_failed_sign_ins_and_rate_limits_are_counted_without_names(server):
    server.person("Ada")
    before = metrics(server)
    browser = server.browser()
    for _ in range(12):
        browser.sign_in("Ada", "not her password")
    after = metrics(server)
    failures = ("shardlab_sign_in_failures_total", "password")
    assert after[failures] - before[failures] == 12
    assert after["shardlab_rate_limited_requests_total", "sign-in pair"] == 2
    text = browser.get("/metrics", headers=HEADERS).text
    assert "Ada" not in text
    assert PASSWORD not in text


def test_jobs_are_counted_once_in_every_process_of_a_database(server, tmp_path):
    ada = server.person("Ada")
    other = PeopleServer(tmp_path, metrics_token=TOKEN)  # another web process
    for process in (server, other):
        metrics(process)
    queue = server.app.state.jobs.queue
    number = server.submit(ada, code="")
    queue.enqueue(ada.person.id, "judge", {"submission": number})
    queue.enqueue(ada.person.id, "record", {"source": "x"})
    queue.enqueue(ada.person.id, "edits", {"source": "x"})
    waiting = metrics(server)
    assert waiting["shardlab_jobs_waiting", "judge"] == 1
    outcomes = {
        "judge": JobOutcome(state="done", result={"counts": True}),
        "record": JobOutcome(state="failed", error=JobError(kind="syntax", message="m")),
        "edits": JobOutcome(state="failed", error=JobError(kind="sandbox", message="m")),
    }
    while claim := queue.claim("w"):
        queue.finish(claim, outcomes[claim.kind])
    for process in (server, other):
        for _ in range(2):  # a second scrape counts nothing twice
            values = metrics(process)
            assert values["shardlab_jobs_finished_total", "done", "judge"] == 1
            assert values["shardlab_jobs_finished_total", "program_error", "record"] == 1
            assert values["shardlab_jobs_finished_total", "edits", "sandbox_error"] == 1
            assert values["shardlab_judge_seconds_count", "shard-map-psum"] == 1
            assert values["shardlab_job_wait_seconds_count", "judge"] == 1
            assert values["shardlab_jobs_waiting", "judge"] == 0
    other.close()


def test_the_time_of_statements_is_measured(server):
    before = metrics(server)["shardlab_database_seconds_count", "select"]
    server.browser().get("/readyz")
    server.person("Ada").get("/account")
    assert metrics(server)["shardlab_database_seconds_count", "select"] > before


# -------------------------------------------------------------------------- request ids and logs


@pytest.mark.parametrize("header", ["4bf92f3577b34da6a3ce929d0e0e4736", "req-1.2_3-abc"])
def test_a_well_formed_id_of_a_proxy_is_kept(server, header):
    response = server.browser().get("/", headers={"x-request-id": header})
    assert response.headers["x-request-id"] == header


@pytest.mark.parametrize("header", ["", "short", "x" * 65, 'a"b{c}defghij', "-starts-badly"])
def test_another_id_is_replaced(server, header):
    response = server.browser().get("/nowhere", headers={"x-request-id": header})
    assert re.fullmatch("[0-9a-f]{16}", response.headers["x-request-id"])


def test_the_id_of_a_request_reaches_its_job_and_is_no_part_of_the_payload(server):
    ada = server.person("Ada")
    source = "def step(x):\n    return x\n"
    response = ada.send_json(
        "POST",
        "/api/v1/recordings",
        {"source": source, "mesh": "data=2"},
        headers={"x-request-id": "from-the-proxy-1"},
    )
    assert response.status_code == 202, response.text
    claim = server.app.state.jobs.queue.claim("w")
    assert claim.request_id == "from-the-proxy-1"
    assert claim.payload["source"] == source
    assert "request_id" not in claim.payload


class Lines(logging.Handler):
    """Formats what is logged as the server does."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.setFormatter(JsonFormatter())

    def emit(self, record):
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def log():
    handler, logger = Lines(), logging.getLogger("shardlab")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_request_has_one_line_without_its_secrets(server, log):
    ada = server.person("Ada")
    teacher = server.person("Teacher", "teacher")
    link = server.people.classes.join_token(server.make_class(teacher))
    log.clear()
    ada.get(f"/join/{link}?search=private", headers={"x-request-id": "one-request"})
    (line,) = (line for line in log if line["logger"] == "shardlab.server.requests")
    expected = {
        "level": "info",
        "request_id": "one-request",
        "method": "GET",
        "route": "/join/{token}",
        "status": 200,
        "person": ada.person.id,
    }
    assert expected.items() <= line.items()
    ada.post("/account/password", {"current_password": PASSWORD, "password": "a new otter moon"})
    text = json.dumps(log)
    for secret in (link, "private", PASSWORD, "a new otter moon", "Ada"):
        assert secret not in text


def test_an_error_of_ours_has_its_traceback_and_request_id_in_the_log(server, log):
    @server.app.get("/practice-error")
    def fail():
        raise RuntimeError("broken")

    ACCESS["GET /practice-error"] = ACCESS["GET /"]
    try:
        browser = server.browser(raises=False)
        response = browser.get("/practice-error", headers={"x-request-id": "the-failed-one"})
    finally:
        del ACCESS["GET /practice-error"]
    assert response.status_code == 500
    error = next(line for line in log if line["level"] == "error")
    assert (error["exception"], error["request_id"]) == ("RuntimeError", "the-failed-one")
    assert "broken" in error["traceback"]


def test_an_error_of_the_database_does_not_log_values(server):
    def add_twice():
        with server.database.write() as session:
            for _ in range(2):
                row = JobRow(id="same", person=1, kind="record", payload="my program")
                row.state, row.created = "queued", time.time()
                session.add(row)
                session.flush()

    with pytest.raises(IntegrityError, match="UNIQUE") as caught:
        add_twice()
    assert "my program" not in str(caught.value)
