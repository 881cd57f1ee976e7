"""`shardlab serve` as a real process: jobs from the request to the recording, and every crash."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from server.lab_server import (
    ENDLESS,
    PATIENCE_SECONDS,
    PROGRAM,
    LabServer,
    descendants,
    is_running,
    wait_for,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LabServer(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def own_server(tmp_path):
    """A server of this test alone, which the test may end."""
    with LabServer(tmp_path) as server:
        yield server


# ----------------------------------------------------------------------------------- one job


def test_a_program_becomes_a_recording_and_the_events_say_so(server):
    job_id = server.submit()
    events = list(server.events(job_id))
    states = [job["state"] for _, job in events]
    assert states[-1] == "done"
    assert set(states) <= {"queued", "running", "done"}
    ids = [event_id for event_id, _ in events]
    assert len(set(ids)) == len(ids)
    recording = server.client.get(events[-1][1]["result_url"]).json()
    assert recording["format"] == "shardlab-recording"
    assert recording["sources"][0]["text"] == PROGRAM
    assert [step["op"] for step in recording["steps"] if step["collective"]]


def test_the_error_of_a_program_is_part_of_its_recording(server):
    job = server.wait_for_end(server.submit("x = 1\nraise ValueError('no')\n"))
    recording = server.client.get(job["result_url"]).json()
    assert recording["failure"]["line"] == 2
    assert recording["failure"]["message"] == "ValueError: no"


def test_a_program_that_ends_its_process_fails_with_a_sentence(server):
    job = server.wait_for_end(server.submit("import os\nos._exit(3)\n"))
    assert job["state"] == "failed"
    assert job["error"]["kind"] == "crash"
    assert job["error"]["message"] == "The process ended by itself (exit code 3)."
    assert job["result_url"] is None


def test_edits_of_a_program_are_a_job_with_a_small_result(server):
    response = server.client.post("/api/v1/edits", json={"source": PROGRAM, "mesh": "data=4"})
    job = server.wait_for_end(response.json()["id"])
    edits = job["result"]["edits"]
    assert [edit for edit in edits if edit["line"] == 7]
    broken = server.wait_for_end(server.submit(edit=edits[0]["id"]))
    recording = server.client.get(broken["result_url"]).json()
    assert recording["sources"][0]["text"] != PROGRAM


def test_an_unknown_edit_is_a_sentence(server):
    job = server.wait_for_end(server.submit(edit="no such edit"))
    assert job["state"] == "failed"
    assert "edit" in job["error"]["message"]


@pytest.mark.long  # the browser tests step through each of them, and tests/recording records them
def test_every_program_of_the_gallery_is_recorded_or_shows_its_hazard(server):
    gallery = server.client.get("/api/v1/gallery").json()
    assert {item["kind"] for item in gallery} == {"pattern", "hazard"}
    for item in gallery:
        options = {key: item[key] for key in ("source", "mesh", "target")}
        job = server.wait_for_end(server.submit(**options))
        assert job["state"] == "done", (item["slug"], job)
        recording = server.client.get(job["result_url"]).json()
        assert recording["steps"], item["slug"]
        if item["kind"] == "pattern":
            assert recording["failure"] is None, item["slug"]


# ---------------------------------------------------------------------------------- recordings


def test_a_recording_is_sent_compressed_and_not_sent_again_if_it_is_known(server):
    url = server.wait_for_end(server.submit())["result_url"]
    response = server.client.get(url)
    assert response.headers["content-encoding"] == "gzip"
    assert "private" in response.headers["cache-control"]
    again = server.client.get(url, headers={"if-none-match": response.headers["etag"]})
    assert again.status_code == 304
    plain = server.client.get(url, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == response.json()


def test_a_recording_is_exported_as_a_page_and_for_perfetto(server):
    url = server.wait_for_end(server.submit())["result_url"]
    page = server.client.get(f"{url}.html")
    assert page.headers["content-disposition"].startswith("attachment; filename=")
    assert "<html" in page.text.lower()
    trace = server.client.get(f"{url}/perfetto.json").json()
    assert trace["traceEvents"]


def test_a_saved_recording_is_opened_and_listed(server):
    url = server.wait_for_end(server.submit())["result_url"]
    saved = server.client.get(url, headers={"accept-encoding": "identity"})
    opened = server.client.post("/api/v1/recordings/files", content=saved.content)
    assert opened.status_code == 201
    assert server.client.get(opened.json()["url"]).json() == saved.json()
    listed = server.client.get("/api/v1/recordings").json()
    assert opened.json()["id"] in [recording["id"] for recording in listed]


# -------------------------------------------------------------------------------------- events


def test_a_client_that_connects_again_gets_what_it_has_not_seen(server):
    job_id = server.submit()
    *_, (last_id, _) = server.events(job_id)
    seen_before = list(server.events(job_id, **{"last-event-id": "1-1-0"}))
    assert [event_id for event_id, _ in seen_before] == [last_id]
    url = f"/api/v1/jobs/{job_id}/events"
    end = server.client.get(url, headers={"last-event-id": last_id})
    assert end.status_code == 204  # an EventSource stops here


def test_a_queued_job_says_where_it_stands(server):
    blocking = [server.submit(ENDLESS) for _ in range(2)]
    for job_id in blocking:
        server.wait_for_state(job_id, "running")
    waiting = [server.submit() for _ in range(3)]
    assert [server.job(job_id)["position"] for job_id in waiting] == [1, 2, 3]
    server.client.post(f"/api/v1/jobs/{waiting[0]}/cancel")
    assert [server.job(job_id)["position"] for job_id in waiting] == [None, 1, 2]
    for job_id in blocking:
        server.client.post(f"/api/v1/jobs/{job_id}/cancel")
    assert [server.wait_for_end(job_id)["state"] for job_id in blocking] == ["cancelled"] * 2
    states = [server.wait_for_end(job_id)["state"] for job_id in waiting]
    assert states == ["cancelled", "done", "done"]


def test_a_person_with_too_many_jobs_is_told_so(server):
    jobs, response = [], None
    for _ in range(40):
        response = server.client.post("/api/v1/recordings", json={"source": ENDLESS})
        if response.status_code != 202:
            break
        jobs.append(response.json()["id"])
    assert response.status_code == 429
    assert "already have 16 jobs" in response.json()["error"]["message"]
    assert response.headers["retry-after"]
    for job_id in reversed(jobs):
        server.client.post(f"/api/v1/jobs/{job_id}/cancel")
    assert {server.wait_for_end(job_id)["state"] for job_id in jobs} == {"cancelled"}


# --------------------------------------------------------------------- crashes at any moment


def test_a_cancelled_program_is_ended_with_its_process(own_server):
    own_server.wait_until_ready()
    idle = set(descendants(own_server.process.pid))
    job_id = own_server.submit(ENDLESS)
    own_server.wait_for_state(job_id, "running")
    own_server.client.post(f"/api/v1/jobs/{job_id}/cancel")
    assert own_server.wait_for_end(job_id)["state"] == "cancelled"
    # A process forked ahead may be there; the one that ran is not.
    wait_for(lambda: len(set(descendants(own_server.process.pid)) - idle) <= len(idle))
    assert own_server.wait_for_end(own_server.submit())["state"] == "done"


def test_a_killed_worker_is_replaced_and_its_job_is_done_once(own_server, tmp_path):
    own_server.wait_until_ready()
    job_id = own_server.submit("import time\ntime.sleep(2)\n" + PROGRAM)
    own_server.wait_for_state(job_id, "running")
    (worker,) = own_server.worker_pids()
    sandboxed = descendants(worker)
    os.kill(worker, signal.SIGKILL)
    assert own_server.wait_for_end(job_id)["state"] == "done"
    wait_for(lambda: not any(map(is_running, sandboxed)))
    assert own_server.worker_pids() != [worker]
    assert attempts(tmp_path) == {job_id: (2, "done", 1)}


def test_a_killed_server_loses_no_job_and_does_none_twice(tmp_path):
    with LabServer(tmp_path) as first:
        first.wait_until_ready()
        jobs = [first.submit("import time\ntime.sleep(1)\n" + PROGRAM) for _ in range(5)]
        first.wait_for_state(jobs[0], "running", "done")
        all_processes = descendants(first.process.pid)
        first.kill()
    wait_for(lambda: not any(map(is_running, all_processes)))
    with LabServer(tmp_path) as second:
        assert {second.wait_for_end(job_id)["state"] for job_id in jobs} == {"done"}
    assert {job_id: row[1:] for job_id, row in attempts(tmp_path).items()} == dict.fromkeys(
        jobs, ("done", 1)
    )


def attempts(folder):
    """Return attempts, state and number of recordings of each job."""
    with sqlite3.connect(folder / "server.db") as database:
        rows = database.execute(
            "SELECT job.id, attempt, state, count(recording.id) FROM job "
            "LEFT JOIN recording ON recording.id = job.id GROUP BY job.id"
        ).fetchall()
    database.close()
    return {row[0]: row[1:] for row in rows}


def test_two_servers_share_a_data_folder(tmp_path):
    with LabServer(tmp_path) as first, LabServer(tmp_path) as second:
        jobs = [first.submit(), second.submit()]
        assert first.wait_for_end(jobs[1])["state"] == "done"
        assert second.wait_for_end(jobs[0])["state"] == "done"


# -------------------------------------------------------------------------------- start and end


def test_ctrl_c_ends_everything_also_while_a_program_runs_and_is_watched(own_server, tmp_path):
    own_server.wait_until_ready()
    job_id = own_server.submit(ENDLESS)
    own_server.wait_for_state(job_id, "running")
    all_processes = descendants(own_server.process.pid)
    with own_server.client.stream("GET", f"/api/v1/jobs/{job_id}/events") as stream:
        assert next(stream.iter_lines()).startswith("retry")
        own_server.process.send_signal(signal.SIGINT)
        own_server.process.wait(PATIENCE_SECONDS)
    wait_for(lambda: not any(map(is_running, all_processes)))
    assert attempts(tmp_path)[job_id][1] == "queued"  # the next start goes on with it


def test_pages_are_served_while_the_workers_start(tmp_path):
    with LabServer(tmp_path) as server:
        job_id = server.submit()
        first = next(server.events(job_id))[1]
        assert first["state"] in ("queued", "running", "done")
        assert first["is_starting"] == (first["state"] == "queued")
        assert server.wait_for_end(job_id)["state"] == "done"


def test_a_second_server_on_the_same_port_says_how_to_go_on(server):
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "shardlab", "serve", "--no-open", "--port", port]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert run.returncode != 0
    assert f"Port {port} cannot be used" in run.stderr
    assert "--port 0" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_web_process_never_loads_jax(server):
    server.wait_for_end(server.submit())
    pages = ("/", "/lab", "/layout", "/plan", "/practice", "/practice/shard-map-psum", "/health")
    pages += ("/layout?mesh=data%3D8&array=f32%5B64%2C64%5D&spec=data&to=None%2Cdata",)
    pages += ("/plan?model=llama3-8b&mesh=data%3D8%2Cmodel%3D8&strategy=fsdp",)
    for path in (*pages, "/api/v1/gallery", "/api/v1/planner", "/api/v1/openapi.json"):
        assert server.client.get(path).status_code == 200, path
    assert server.client.get("/nowhere").status_code == 404
    url = server.wait_for_end(server.submit())["result_url"]
    for path in (url, f"{url}.html", f"{url}/perfetto.json"):
        assert server.client.get(path).status_code == 200
    with open(f"/proc/{server.process.pid}/maps") as maps:
        assert "jaxlib" not in maps.read()
    # The workers judge and confine; they have no use for it either.
    (worker,) = server.worker_pids()
    with open(f"/proc/{worker}/maps") as maps:
        assert "jaxlib" not in maps.read()
