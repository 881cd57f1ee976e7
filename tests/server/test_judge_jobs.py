"""Judging as a job: progress by case, one judgement however often the worker ends."""

from __future__ import annotations

import sqlite3

import pytest

from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.attempt import record_submission
from shardlab.course.cancellable_pool import CancellablePool
from shardlab.course.store import open_store
from shardlab.judge.worker_pool import open_worker_pool
from shardlab.server.confined.lab_pool import StagedPool, open_lab_pool
from shardlab.server.database.engine import open_database
from shardlab.server.jobs.job_kinds import JobContext, run_job
from shardlab.server.jobs.sql_queue import SqlJobQueue


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    pool = StagedPool(open_lab_pool([]))
    assert not pool.can_judge
    pool.add_judge(open_worker_pool())
    yield pool
    pool.close()


@pytest.fixture
def database(tmp_path):
    database = open_database(tmp_path)
    yield database
    database.close()


@pytest.fixture(scope="module")
def problem():
    """Return the first problem whose cases run on meshes."""
    problems = load_catalogue().problems.values()
    return next(problem for problem in problems if problem.parts[0].meshes)


class Bench:
    """A queue, a store and what a worker would report."""

    def __init__(self, folder, database, pool, problem):
        self.folder, self.database, self.pool, self.problem = folder, database, pool, problem
        self.store = open_store(folder)
        self.queue = SqlJobQueue(database)
        self.progress = []

    def submit(self, source, kind="run"):
        submission = record_submission(self.store, self.problem, source, kind=kind)
        payload = {"problem": self.problem.slug, "submission": submission.number}
        return self.queue.enqueue(0, "judge", payload), submission

    def run(self, claim, pool=None):
        context = JobContext(
            pool=pool or self.pool,
            report_progress=self.progress.append,
            database=self.database,
            data_folder=self.folder,
            is_local=True,
            catalogue=None,
        )
        return run_job(claim, context)


@pytest.fixture
def bench(tmp_path, database, pool, problem):
    return Bench(tmp_path, database, pool, problem)


def test_a_correct_submission_passes_and_reports_every_case(bench, problem):
    _, submission = bench.submit(problem.read_text("solution.py").encode())
    outcome = bench.run(bench.queue.claim("w"))
    assert outcome.state == "done"
    assert outcome.result["passed"]
    assert bench.store.load_judgement(submission.number).passed
    n_cases = bench.progress[0]["n_cases"]
    assert [event["event"] for event in bench.progress] == (
        ["started"] + ["case"] * n_cases + ["judged"]
    )
    assert len(bench.progress[-1]["cases"]) == n_cases == len(bench.progress[0]["planned"])


def test_a_job_whose_worker_ended_after_the_judgement_is_not_judged_again(bench, problem):
    job, _ = bench.submit(problem.read_text("solution.py").encode())
    bench.run(bench.queue.claim("first"))  # stored, and then the worker ended
    bench.queue.release("first", has_crashed=True)
    bench.progress.clear()
    claim = bench.queue.claim("second")
    outcome = bench.run(claim)
    assert bench.progress == []
    assert outcome.result["passed"]
    assert bench.queue.finish(claim, outcome)
    assert bench.queue.find(job.id).state == "done"
    with sqlite3.connect(bench.folder / "practice.db") as practice:
        assert practice.execute("SELECT count(*) FROM judgement").fetchone() == (1,)
    practice.close()


def test_a_cancelled_judgement_leaves_the_submission_to_be_judged_later(bench, problem):
    _, submission = bench.submit(problem.read_text("solution.py").encode())

    class Cancelled(Exception):
        pass

    pool = CancellablePool(bench.pool, Cancelled)
    pool.cancel()
    claim = bench.queue.claim("w")
    with pytest.raises(Cancelled):
        bench.run(claim, pool)
    assert not bench.store.get_submission(submission.number).is_finished
    bench.queue.release("w", has_crashed=False)
    assert bench.run(bench.queue.claim("w")).result["passed"]


def test_an_unknown_submission_fails_with_a_sentence(bench):
    bench.queue.enqueue(0, "judge", {"problem": "none", "submission": 99})
    outcome = bench.run(bench.queue.claim("w"))
    assert outcome.state == "failed"
    assert "99" in outcome.error.message
    assert outcome.error.fix


def test_an_example_of_a_judged_submission_opens_in_the_debugger(bench, problem):
    _, submission = bench.submit(problem.read_text("solution.py").encode())
    claim = bench.queue.claim("w")
    bench.queue.finish(claim, bench.run(claim))
    judgement = bench.store.load_judgement(submission.number)
    case = next(case.name for case in judgement.cases if "=" in case.name)
    payload = {"submission": submission.number, "case": case}
    bench.queue.enqueue(0, "debug_case", payload)
    outcome = bench.run(bench.queue.claim("w"))
    assert outcome.state == "done", outcome.error
    assert problem.title in outcome.recording.title
