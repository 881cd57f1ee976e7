"""Quotas of a person and limits of the disk: from one file, kept, and visible to the person."""

from __future__ import annotations

import pytest

from server.people.people_server import PeopleServer
from shardlab.errors import InvalidServerOption
from shardlab.server.operations.quotas import (
    DiskLimits,
    PersonQuotas,
    ServerLimits,
    parse_limits,
    read_limits,
)
from shardlab.server.operations.storage import StorageFigures

BODY = {"source": "def step(x):\n    return x\n", "mesh": "data=2"}


@pytest.fixture
def make_server(tmp_path):
    servers = []

    def make(**limits):
        servers.append(PeopleServer(tmp_path, limits=ServerLimits(**limits)))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def test_a_file_sets_limits_and_leaves_the_others(tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text(
        '[person]\nsubmissions_per_day = 5\nrecording_bytes = "2MB"\n'
        '[disk]\nmin_free_bytes = "5GB"\n[queue]\njobs = 9\n'
    )
    limits = read_limits(file)
    assert limits == ServerLimits(
        person=PersonQuotas(submissions_per_day=5, recording_bytes=2_000_000),
        disk=DiskLimits(min_free_bytes=5_000_000_000),
        jobs_in_queue=9,
    )
    assert (limits.queue.total, limits.queue.per_person) == (9, 16)
    assert ServerLimits.from_json(limits.to_json()) == limits


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"persons": {}}, "Did you mean 'person'"),
        ({"person": {"submissions_a_day": 3}}, "Did you mean 'submissions_per_day'"),
        ({"person": {"recordings": 0}}, "a whole number"),
        ({"person": {"submissions_per_day": -1}}, "a whole number"),
        ({"person": {"recording_bytes": "many"}}, "500MB"),
        ({"disk": 3}, "a table"),
    ],
)
def test_a_wrong_key_or_value_is_named(table, message):
    with pytest.raises(InvalidServerOption, match=message):
        parse_limits(table, "limits.toml")


def test_the_submissions_of_a_day_end_with_a_clear_message(make_server):
    server = make_server(person=PersonQuotas(submissions_per_day=2))
    ada = server.person("Ada")
    statuses = [ada.send_json("POST", "/api/v1/edits", BODY).status_code for _ in range(2)]
    assert statuses == [202, 202]
    response = ada.send_json("POST", "/api/v1/edits", BODY)
    assert response.status_code == 429
    message = response.json()["error"]["message"]
    assert message.startswith("You have made 2 runs and submissions in this day, the limit of")
    assert int(response.headers["retry-after"]) <= 86400
    bob = server.person("Bob")
    assert bob.send_json("POST", "/api/v1/edits", BODY).status_code == 202


def test_jobs_in_the_queue_are_limited_as_the_file_says(make_server):
    server = make_server(person=PersonQuotas(jobs_in_queue=1))
    ada = server.person("Ada")
    assert ada.send_json("POST", "/api/v1/edits", BODY).status_code == 202
    response = ada.send_json("POST", "/api/v1/edits", BODY)
    assert response.status_code == 429
    assert "already have 1 job" in response.json()["error"]["message"]


def test_a_person_sees_every_limit_and_what_is_used(make_server):
    server = make_server(person=PersonQuotas(submissions_per_day=3, recording_bytes=2_000_000))
    ada = server.person("Ada")
    for _ in range(3):
        ada.send_json("POST", "/api/v1/edits", BODY)
    usage = {row["name"]: row for row in ada.get("/api/v1/account/limits").json()}
    assert usage["submissions_per_day"] == {"name": "submissions_per_day", "used": 3, "limit": 3}
    assert (usage["jobs_in_queue"]["used"], usage["jobs_in_queue"]["limit"]) == (3, 16)
    assert "catalogues" not in usage
    page = ada.get("/account").text
    assert "3 of 3" in page
    assert "reached" in page
    assert "0 bytes of 2.0 MB" in page
    teacher = server.person("Teacher", "teacher")
    assert "Catalogues of yours" in teacher.get("/account").text


STORING = ["/api/v1/recordings", "/api/v1/recordings/files"]


@pytest.mark.parametrize("path", STORING)
def test_without_free_disk_nothing_large_is_stored_and_submissions_go_on(make_server, path):
    server = make_server(disk=DiskLimits(min_free_bytes=1 << 62))
    ada = server.person("Ada")
    response = ada.send_json("POST", path, BODY)
    assert response.status_code == 507
    assert "nearly full" in response.json()["error"]["message"]
    submitted = ada.send_json(
        "POST",
        "/api/v1/practice/problems/shard-map-psum/submissions",
        {"source": "def shard_map_psum(x):\n    return x\n"},
    )
    assert submitted.status_code == 202, submitted.text


def test_an_upload_is_refused_with_a_page_and_the_admin_sees_why(make_server):
    server = make_server(disk=DiskLimits(min_free_bytes=0, max_stored_bytes=1000))
    teacher = server.person("Teacher", "teacher")
    response = teacher.post("/catalogues", {"title": "x"})
    assert response.status_code == 507
    assert "of 1.0 kB" in response.text
    assert "Submissions go on" in server.person("Root", "admin").get("/admin").text


def test_stored_bytes_are_those_of_the_files(make_server, tmp_path):
    server = make_server()
    (tmp_path / "more").write_bytes(bytes(3_000_000))
    figures = server.app.state.storage.measure()
    assert isinstance(figures, StorageFigures)
    assert 3_000_000 < figures.stored_bytes < 8_000_000
