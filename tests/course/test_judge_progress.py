"""Progress events of a judgement are JSON, and a cancelled judgement ends its processes."""

import json
import threading
import time

import pytest

from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.attempt import judge_submission, record_submission
from shardlab.course.cancellable_pool import CancellablePool
from shardlab.course.store import open_store
from shardlab.judge.progress import plan_cases
from shardlab.judge.worker_pool import open_worker_pool

SLUG = "shard-map-psum"


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


@pytest.fixture
def problem():
    return load_catalogue().load_problem(SLUG)


def collect_events(pool, problem, tmp_path, source, kind):
    store, events = open_store(tmp_path), []
    submission = record_submission(store, problem, source, kind=kind, seed=5)
    judgement = judge_submission(store, pool, problem, submission, report_progress=events.append)
    assert store.load_judgement(submission.number) == judgement
    return judgement, json.loads(json.dumps(events, allow_nan=False))


@pytest.mark.parametrize("kind", ["run", "submit"])
def test_an_accepted_submission_reports_every_planned_case(pool, problem, tmp_path, kind):
    source = problem.read_text("solution.py").encode()
    judgement, (first, *cases, last) = collect_events(pool, problem, tmp_path, source, kind)
    assert judgement.passed
    assert (first["event"], last["event"]) == ("started", "judged")
    assert [event["case"] for event in cases] == first["cases"]
    assert [event["case"]["name"] for event in cases] == [case.name for case in judgement.cases]
    assert [event["position"] for event in cases] == list(range(1, len(cases) + 1))
    n_cases = len(plan_cases(problem, kind=kind, seed=5))
    assert {event["n_cases"] for event in (first, *cases, last)} == {n_cases}
    assert cases[-1]["n_passed"] == last["n_passed"] == n_cases
    assert {event["code_so_far"] for event in cases} == {"AC"}
    assert last["passed"]
    assert any(event["case"]["is_simulated"] for event in cases) == (kind == "submit")


def test_the_first_failure_is_the_verdict_so_far(pool, problem, tmp_path):
    function = problem.parts[0].function
    # It raises on 8 devices, after it has passed on fewer.
    source = (
        problem.read_text("solution.py").encode()
        + (
            f"\n_right = {function}\n"
            f"def {function}(*args):\n"
            "    if len(args) == 2 and args[1].size == 8: raise ValueError('\\x1b[31mno data')\n"
            "    return _right(*args)\n"
        ).encode()
    )
    judgement, (_, *cases, last) = collect_events(pool, problem, tmp_path, source, "run")
    codes = [event["code_so_far"] for event in cases]
    assert codes[0] == "AC"
    assert codes[-1] == "RTE"
    failed = next(event for event in cases if not event["passed"])
    assert failed["verdict"]["code"] == "RTE"
    assert "\x1b" not in json.dumps(cases, ensure_ascii=False)
    assert last["verdict"]["title"] == judgement.verdict.title
    assert last["n_passed"] == sum(event["passed"] for event in cases)


def test_a_file_that_is_no_python_has_one_event_for_its_verdict(pool, problem, tmp_path):
    _, events = collect_events(pool, problem, tmp_path, b"x = (\xff", "submit")
    assert [event["event"] for event in events] == ["started", "judged"]
    assert events[-1]["verdict"]["code"] == "CE"
    assert events[-1]["n_judged"] == 1 < events[-1]["n_cases"]


class _Stopped(Exception):
    pass


ENDLESS = {
    "while tracing": "while True: pass",
    "while running": "return jax.lax.while_loop(lambda v: True, lambda v: v, args[0])",
    "while printing": "jax.debug.callback(lambda: [0 for _ in iter(int, 1)]); return right(*args)",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_cancelling_ends_the_processes_and_stores_no_verdict(pool, problem, tmp_path, name):
    function = problem.parts[0].function
    source = problem.read_text("solution.py") + (
        f"\nimport jax\nright = {function}\ndef {function}(*args):\n    {ENDLESS[name]}\n"
    )
    store = open_store(tmp_path)
    submission = record_submission(store, problem, source.encode(), kind="run")
    started = _StartedProcesses(pool)
    cancellable = CancellablePool(started, _Stopped)
    results = []

    def judge_in_thread():
        try:
            results.append(judge_submission(store, cancellable, problem, submission))
        except _Stopped as error:
            results.append(error)

    thread = threading.Thread(target=judge_in_thread)
    thread.start()
    n_processes = 3 if name == "while printing" else 2  # its own, after the other two
    while len(started.processes) < n_processes or not _are_busy(started.processes):
        time.sleep(0.05)
        assert thread.is_alive()
    cancellable.cancel()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(results[0], _Stopped)
    assert store.load_judgement(submission.number) is None  # it can be judged again
    assert not _are_busy(started.processes)


def _are_busy(processes):
    """Return whether one of the processes uses the processor."""
    before = [process.cpu_seconds for process in processes]
    time.sleep(0.3)
    return any(process.cpu_seconds > then for process, then in zip(processes, before, strict=True))


class _StartedProcesses:
    """The pool, with a list of the processes that it has started."""

    def __init__(self, pool):
        self.level, self.confinement = pool.level, pool.confinement
        self._pool, self.processes = pool, []

    def start_process(self, role, limits):
        self.processes.append(self._pool.start_process(role, limits))
        return self.processes[-1]
