"""Several web processes and workers on one database: real processes, killed and stopped."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections import Counter

import pytest
from sqlalchemy import text

from server.shared_server import (
    SOLUTION,
    WRONG,
    SharedServer,
    check_outcome,
    submit_all,
    wait_for,
)
from shardlab.server.jobs.worker_registry import WorkerRegistry

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # of processes that are killed


@pytest.fixture
def server(tmp_path, postgresql_url):
    server = SharedServer(tmp_path / "shared", postgresql_url, n_people=4)
    yield server
    server.stop()


def test_kills_stops_and_a_restart_of_the_database_lose_nothing(server, postgresql_cluster):
    server.start_web("web1")
    server.start_web("web2")
    server.wait_until_ready()
    server.start_worker("worker1")
    server.start_worker("worker2")
    server.wait_for_workers(2)
    started = time.time()
    sources = {
        person: [f"{SOLUTION if n == 0 else WRONG}# {person} {n}\n" for n in range(count)]
        for person, count in enumerate((8, 1, 1, 1))
    }
    numbers, threads = submit_all(server, sources)
    wait_for(lambda: server.scalar("SELECT count(*) FROM job WHERE state = 'running'") > 0)
    server.kill_worker("worker1")
    server.kill_web("web1")
    server.start_web("web1")
    postgresql_cluster.stop()
    postgresql_cluster.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: server.n_unfinished() == 0)
    outcome = check_outcome(server, numbers, started, Counter())
    assert outcome.n_accepted == 11
    assert (outcome.n_lost, outcome.n_without_verdict, outcome.n_twice) == (0, 0, 0)
    assert outcome.n_failed_jobs == 0
    assert server.scalar("SELECT count(*) FROM pgqueuer") == 0

    # The events of a job reach a page of the other web process.
    view = server.submit(1, f"{SOLUTION}# watched\n", web="web1")
    assert watch_job(server, 1, "web2", view["job"]["id"])["state"] == "done"

    # A killed worker is dead once its heartbeat is old; one that drains ends by itself.
    registry = WorkerRegistry(server.database)
    wait_for(lambda: sum(worker.is_alive for worker in registry.list_workers()) == 1)
    server.workers["worker2"].send_signal(signal.SIGTERM)
    assert server.workers["worker2"].wait(60) == 0
    assert {worker.state for worker in registry.list_workers()} == {"ready", "ended"}


def watch_job(server, person, web, job_id):
    """Return the last event of a job's stream."""
    _, port, host = server.webs[web]
    request = urllib.request.Request(
        f"http://{host.address}:{port}/api/v1/jobs/{job_id}/events",
        headers={"Authorization": f"Bearer {server.tokens[person]}"},
    )
    data = {}
    with urllib.request.urlopen(request, timeout=300) as response:
        for line in response:
            if line.startswith(b"data:"):
                data = json.loads(line[5:])
    return data


@pytest.mark.long
def test_a_stopped_worker_cannot_overwrite_what_another_has_judged(server):
    server.start_web("web1")
    server.wait_until_ready()
    server.start_worker("worker1", "--slots", "1")
    server.wait_for_workers(1)
    view = server.submit(0, f"{SOLUTION}# slow\n")
    wait_for(lambda: server.scalar("SELECT count(*) FROM job WHERE progress IS NOT NULL") == 1)
    server.workers["worker1"].send_signal(signal.SIGSTOP)
    server.start_worker("worker2")
    wait_for(lambda: server.n_unfinished() == 0)
    server.workers["worker1"].send_signal(signal.SIGCONT)
    late = f"{WRONG}# late\n"
    server.submit(1, late)
    wait_for(lambda: server.n_unfinished() == 0)
    assert server.scalar("SELECT attempt FROM job ORDER BY number LIMIT 1") == 2
    audit = text("SELECT count(*) FROM verdict_audit WHERE submission = :n")
    with server.database.read() as session:
        assert session.execute(audit, {"n": view["number"]}).scalar() == 1
