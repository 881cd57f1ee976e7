"""Submissions survive the death of the server and of its workers, and none is judged twice.

Each kill is a real SIGKILL at a moment that the test holds still: with a lock on a database, or by
waiting for the row that the moment writes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
import threading
from pathlib import Path

import httpx
import pytest

from server.lab_server import LabServer, wait_for

PROBLEMS = Path(__file__).parents[2] / "src" / "shardlab" / "catalogue" / "problems"
SOLUTION = (PROBLEMS / "c-collectives" / "shard-map-basics" / "solution.py").read_text()
# Takes a moment to parse, after the reservation and before it is stored.
LONG = f"{SOLUTION}\nNUMBERS = [{'1, ' * 60_000}]\n"
URL = "/api/v1/practice/problems/shard-map-basics/submissions"


class JudgedServer:
    """A server whose every judgement is counted, also one that replaces nothing."""

    def __init__(self, folder):
        self.folder = folder
        self.lab = LabServer(folder)
        self.lab.client.get("/practice")  # creates practice.db
        with self.practice() as database:
            database.execute("CREATE TABLE judge_run (submission INTEGER)")
            # Before the insert: it fires for a judgement that is then dropped as the second one.
            database.execute(
                "CREATE TRIGGER count_run BEFORE INSERT ON judgement"
                " BEGIN INSERT INTO judge_run VALUES (new.submission); END"
            )

    @contextlib.contextmanager
    def _open(self, name):
        with contextlib.closing(sqlite3.connect(self.folder / name, timeout=60)) as database:
            database.isolation_level = None
            yield database

    def practice(self):
        return self._open("practice.db")

    def jobs(self):
        return self._open("server.db")

    def count(self, query, *, of="server.db"):
        with self._open(of) as database:
            return database.execute(query).fetchone()[0]

    def n_submissions(self):
        return self.count("SELECT count(*) FROM submission", of="practice.db")

    def n_reserved(self):
        return self.count("SELECT count(*) FROM job WHERE state = 'reserved'")

    def submit(self, source=SOLUTION, kind="run"):
        return self.lab.client.post(URL, json={"source": source, "kind": kind})

    def submit_in_thread(self, source=SOLUTION):
        """Send a submission whose response the kill may prevent."""

        def send():
            with contextlib.suppress(httpx.HTTPError):
                self.submit(source)

        thread = threading.Thread(target=send)
        thread.start()
        return thread

    def kill_and_start_again(self):
        self.lab.kill()
        self.lab = LabServer(self.folder)

    def wait_until_all_are_judged(self):
        wait_for(
            lambda: (
                self.count(
                    "SELECT count(*) FROM job WHERE state IN ('reserved', 'queued', 'running')"
                )
                == 0
            )
        )

    def check_each_is_judged_once(self, n_submissions):
        assert self.n_submissions() == n_submissions
        with self.practice() as database:
            runs = database.execute(
                "SELECT submission, count(*) FROM judge_run GROUP BY submission"
            ).fetchall()
        assert [n_runs for _, n_runs in runs] == [1] * n_submissions
        assert self.count("SELECT count(*) FROM job WHERE state != 'done'") == 0
        passed = "SELECT count(*) FROM judgement WHERE passed"
        assert self.count(passed, of="practice.db") == n_submissions


@pytest.fixture
def server(tmp_path):
    server = JudgedServer(tmp_path)
    yield server
    server.lab.stop()


def submit_and_hold(server, database, is_held):
    """Submit until a submission is caught between its reservation and its job, and hold it there.

    The lock on `database` stops the server at its next write there; `is_held` is asked under the
    lock. A submission that was faster is an ordinary one, and the next is tried.
    """
    numbers = itertools.count()
    while True:
        n_before = server.n_submissions()
        thread = server.submit_in_thread(f"{LONG}# {next(numbers)}\n")
        while thread.is_alive():
            if server.n_reserved() == 1:
                database.execute("BEGIN IMMEDIATE")
                if server.n_reserved() == 1 and is_held(n_before):
                    return thread, n_before
                database.execute("ROLLBACK")
        wait_for(lambda: server.n_active() == 0)


def end_held_server(server, thread, database):
    server.lab.process.kill()
    server.lab.process.wait()
    database.execute("ROLLBACK")
    thread.join()


def test_a_submission_that_was_stored_but_not_queued_is_judged_after_the_next_start(server):
    with server.jobs() as jobs:
        thread, n_before = submit_and_hold(server, jobs, lambda n_before: True)
        wait_for(lambda: server.n_submissions() == n_before + 1)
        end_held_server(server, thread, jobs)
    assert server.count("SELECT count(*) FROM job WHERE state = 'queued'") == 0
    server.kill_and_start_again()
    server.wait_until_all_are_judged()
    server.check_each_is_judged_once(n_before + 1)


def test_a_server_that_ends_before_it_has_stored_a_submission_leaves_nothing(server):
    with server.practice() as practice:
        thread, n_before = submit_and_hold(
            server, practice, lambda n_before: server.n_submissions() == n_before
        )
        end_held_server(server, thread, practice)
    server.kill_and_start_again()
    assert server.n_reserved() == 0
    assert server.n_submissions() == n_before
    assert server.submit().status_code == 202
    server.wait_until_all_are_judged()
    server.check_each_is_judged_once(n_before + 1)


def test_kills_of_the_server_and_of_the_worker_lose_no_submission(server):
    progress = "SELECT count(*) FROM job WHERE state = 'running' AND progress IS NOT NULL"

    def submit(number):
        response = server.submit(f"{SOLUTION}\n# {number}\n", "submit")
        assert response.status_code == 202, response.text

    submit(1)
    server.kill_and_start_again()  # accepted, no worker was ready
    submit(2)
    wait_for(lambda: server.count(progress) > 0)
    server.kill_and_start_again()  # in the middle of a judgement
    submit(3)
    wait_for(lambda: server.count(progress) > 0)
    (worker,) = server.lab.worker_pids()
    os.kill(worker, signal.SIGKILL)  # the same for the worker alone
    submit(4)
    n_judged = server.count("SELECT count(*) FROM judgement", of="practice.db")
    wait_for(lambda: server.count("SELECT count(*) FROM judgement", of="practice.db") > n_judged)
    for worker in server.lab.worker_pids():
        os.kill(worker, signal.SIGKILL)  # a judgement is stored, and its job perhaps not ended
    server.wait_until_all_are_judged()
    server.check_each_is_judged_once(4)


def test_a_full_queue_stores_nothing_and_takes_the_same_text_later(server):
    sleeping = "import time\ntime.sleep(600)\n"
    numbers = [server.submit(f"{sleeping}# {n}\n").json()["number"] for n in range(16)]
    response = server.submit()
    assert response.status_code == 429
    assert "Not submitted." in response.json()["error"]["message"]
    assert server.n_submissions() == 16
    job = server.lab.client.get(f"/api/v1/practice/submissions/{numbers[-1]}").json()["job"]
    server.lab.client.post(f"/api/v1/jobs/{job['id']}/cancel")
    assert server.submit().status_code == 202


def test_the_same_text_while_it_is_judged_is_the_same_submission(server):
    sleeping = "import time\ntime.sleep(600)\n"
    first = server.submit(sleeping).json()["number"]
    with contextlib.ExitStack() as stack:
        results = []
        for _ in range(4):
            thread = threading.Thread(
                target=lambda: results.append(server.submit(sleeping).json()["number"])
            )
            thread.start()
            stack.callback(thread.join)
    assert results == [first] * 4
    assert server.submit(sleeping, "submit").json()["number"] != first  # another kind
    assert server.submit(f"{sleeping}#\n").json()["number"] != first
    assert server.n_submissions() == 3
