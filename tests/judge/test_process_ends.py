"""Submissions without a result: not loaded, too slow, too large, crashed, killed from outside."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from judge.small_problems import IMPORTS, problem, shard_map_body, submission
from shardlab.errors import InvalidReference
from shardlab.judge import submission_budget
from shardlab.judge.cases import make_cases
from shardlab.judge.judge import judge
from shardlab.judge.judgement_size import MAX_JUDGEMENT_BYTES
from shardlab.judge.judgement_text import judgement_lines
from shardlab.judge.submission_budget import SubmissionBudget
from shardlab.judge.worker_pool import open_worker_pool
from shardlab.render.terminal import lines_text
from shardlab.sandbox.process import ProcessLimits

TOTAL = shard_map_body("lambda y: lax.psum(jnp.sum(y), a)")
# What a normal case needs is far below 10 s of processor time, on any machine. The wall clock must
# not end it before the processor time does, however busy the machine is.
CPU_LIMITS = {"cpu_seconds": 3.0, "wall_seconds": 600.0}
# The name of the last case with seed 3: its mesh axis is drawn.
RENAMED = f"part 1, {make_cases(problem('total').parts[0], 3, 2)[2].name}"
FOREVER = 600  # seconds; for a judge that would otherwise block forever


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


def judge_failing(pool, source, **options):
    judgement = judge(pool, problem("total", **options), source, kind="submit", seed=3)
    assert not judgement.passed
    return judgement, judgement.first_failure.verdicts[0]


@pytest.mark.parametrize(
    ("source", "what", "where"),
    [
        (b"x = 1\ny = (\n", "SyntaxError: '(' was never closed", "line 2: y = ("),
        (
            b"import jax\n\nimport nothing_here\n",
            "ModuleNotFoundError: No module",
            "line 3: import",
        ),
        (
            b"def totall(x, mesh):\n    return 1\n",
            "The submission has no function 'total'. Did you mean 'totall'?",
            "",
        ),
        (
            b"\ndef total(x):\n    return 1\n",
            "total(x) cannot be called as total(x, mesh)",
            "line 2: def total(x):",
        ),
        (b"\n\ntotal = 3\n", "not a function", "line 3: total = 3"),
        (b"# a\n\xff\xfe\n", "The file is not UTF-8: byte 0xff", "line 2"),
        (b"a = 1\nb = '\0'\n", "The file contains a NUL byte.", "line 2"),
        (b" \n", "The file is empty.", ""),
        (b"#" * 10_000_000, "The file has 10,000,000 bytes; the maximum is 262,144.", ""),
    ],
)
def test_a_submission_that_cannot_be_loaded_has_reason_and_line(pool, source, what, where):
    _, verdict = judge_failing(pool, source)
    assert verdict.code == "CE"
    assert what in verdict.what
    assert verdict.where.startswith(where)


def test_a_submission_that_cannot_be_loaded_ends_the_judging(pool):
    judgement, _ = judge_failing(pool, "x = (")
    assert len(judgement.cases) == 1
    assert judgement.not_judged == ("part 1, data=2", RENAMED)
    assert judgement.counterexample is None


def test_a_time_out_names_the_activity_and_the_line_and_ends_the_judging(pool):
    body = "\n    while mesh.size > 1: pass\n    return jnp.sum(x)"
    judgement, verdict = judge_failing(pool, submission("total", body), limits=CPU_LIMITS)
    assert verdict.code == "TLE"
    assert verdict.what == (
        "The time limit was reached (3 s of processor time) while tracing the submission."
    )
    assert verdict.where == "line 7: while mesh.size > 1: pass"
    assert judgement.not_judged == (RENAMED,)
    assert not any(case.output for case in judgement.cases)


def test_an_endless_program_is_a_time_out_of_the_run_and_ends_the_judging(pool):
    """A wrong value before it would be minimized, and programs after it are traced already."""
    body = """
    if mesh.size == 1:
        return jnp.sum(x) + 1
    return lax.while_loop(lambda s: s > 0, lambda s: s + 1, jnp.sum(x))
"""
    ladder = ("data=1", "data=2", *(f"data={n}" for n in (3, 4, 5, 6, 7)))
    endless = problem("total", limits=CPU_LIMITS, meshes=ladder)
    judgements = []

    def judge_endless():
        source = submission("total", body)
        judgements.append(judge(pool, endless, source, kind="submit", seed=3))

    thread = threading.Thread(target=judge_endless, daemon=True)
    thread.start()
    thread.join(FOREVER)
    assert judgements, "the judge blocks forever"
    verdicts = [case.verdicts[0] for case in judgements[0].cases]
    assert [verdict.code for verdict in verdicts] == ["WA", "TLE"]
    assert "while running the program" in verdicts[1].what
    assert len(judgements[0].not_judged) == 5


def test_a_thread_that_cannot_be_started_is_no_fault_of_the_submission(pool, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    judgement, verdict = judge_failing(pool, submission("total", TOTAL))
    assert verdict.code == "IE"
    assert verdict.what == "The judge failed: can't start new thread."
    assert len(judgement.not_judged) == 2


def test_devices_that_block_in_a_collective_are_told_from_an_endless_loop(pool):
    """The check before the run would find it; this submission disables the check."""
    disable_check = (
        "import shardlab.judge.worker.tracing as tracing\n"
        "tracing.check_program = lambda *a, **k: []\n"
    )
    body = shard_map_body(
        "lambda y: lax.cond(lax.axis_index(a) == 0, lambda v: lax.psum(v, a), lambda v: v, "
        "jnp.sum(y))",
        options=", check_vma=False",
    )
    source = disable_check + submission("total", body)
    _, verdict = judge_failing(pool, source, limits=CPU_LIMITS, meshes=("data=2",))
    assert verdict.code == "HANG"
    assert verdict.what == "Devices block forever in a collective: some of them never reach it."


def test_memory_and_output_have_limits_of_their_own(pool):
    body = "\n    hoard = [bytearray(1 << 27) for _ in range(64)]\n    return jnp.sum(x)"
    _, verdict = judge_failing(pool, submission("total", body), meshes=("data=1",))
    assert verdict.code == "MLE"
    assert verdict.where.startswith("line 7: hoard = ") or "MemoryError" not in verdict.what
    body = "\n    print('x' * 1_000_000)\n    return jnp.sum(x)"
    _, verdict = judge_failing(pool, submission("total", body), meshes=("data=1",))
    assert verdict.code == "OLE"


def test_after_a_crash_the_other_cases_are_judged(pool):
    body = (
        """
    if mesh.shape.get("data") == 2:
        import ctypes
        ctypes.string_at(0)
"""
        + TOTAL
    )
    judgement, verdict = judge_failing(pool, submission("total", body))
    assert verdict.code == "RTE"
    assert verdict.what == "The process ended by itself while tracing the submission (SIGSEGV)."
    assert verdict.where == "line 9: ctypes.string_at(0)"
    assert [case.passed for case in judgement.cases] == [True, False, True]


def test_an_exit_is_no_result(pool):
    _, verdict = judge_failing(pool, submission("total", "\n    import os; os._exit(0)"))
    assert verdict.code == "RTE"
    assert "exit code 0" in verdict.what


def test_the_output_of_a_submission_is_stored_with_its_case(pool):
    source = f"{IMPORTS}print('loaded')\n\ndef total(x, mesh):\n    print(mesh.size)" + TOTAL
    judgement = judge(pool, problem("total"), source, kind="submit", seed=3)
    assert [case.output for case in judgement.cases] == ["loaded\n1\n", "2\n", "3\n"]


# ----------------------------------------------------------- processes that are killed from outside


def list_parents():
    """Return the parent of every process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return parents


def find_holders(pipe, pids):
    """Return those of some processes that have a pipe open."""
    holders = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                if os.readlink(fd) == pipe:
                    holders.add(pid)
    return holders


class KillingPool:
    """A pool in which the process of a role is killed right before one of its requests."""

    def __init__(self, pool, role, times, request_number=1, *, kills_supervisor=False):
        self._pool, self._role, self._times = pool, role, times
        self.request_number, self.kills_supervisor = request_number, kills_supervisor
        self.level, self.confinement = pool.level, pool.confinement
        self.interrupted_requests = []

    def start_process(self, role, limits):
        process = self._pool.start_process(role, limits)
        if role != self._role or not self._times:
            return process
        self._times -= 1
        return DoomedProcess(process, self)

    def find_sandboxed(self, pipe):
        """Return the process at the other end of a pipe and its supervisor.

        The fork server and the supervisor have the pipe open too until they have forked. So wait
        until there is exactly one holder, and it is not the fork server: then it is the process.
        """
        while True:
            parents = list_parents()
            holders = find_holders(pipe, set(parents) - {os.getpid()})
            # A process that was forked for this pipe has no children; the others had some.
            if len(holders) == 1 and not holders & set(parents.values()):
                (pid,) = holders
                return pid, parents[pid]
            time.sleep(0.01)


class DoomedProcess:
    def __init__(self, process, pool):
        self._process, self._pool, self._remaining = process, pool, pool.request_number

    def request(self, frame):
        self._remaining -= 1
        if self._remaining == 0:
            pipe = os.readlink(f"/proc/self/fd/{self._process._requests_fd}")
            pid, supervisor = self._pool.find_sandboxed(pipe)
            os.kill(supervisor if self._pool.kills_supervisor else pid, signal.SIGKILL)
            self._pool.interrupted_requests.append(frame.header["type"])
        return self._process.request(frame)

    def __getattr__(self, name):
        return getattr(self._process, name)


needs_root = pytest.mark.skipif(
    not Path("/proc/self/stat").exists() or os.geteuid() != 0,
    reason="finds another user's processes in /proc",
)


@needs_root
@pytest.mark.parametrize(
    ("role", "request_number", "kills_supervisor", "interrupted"),
    [
        ("tracer", 1, False, "load"),
        ("tracer", 3, False, "export"),
        ("tracer", 2, True, "export"),
        ("runner", 2, False, "run"),
    ],
)
def test_a_process_that_was_killed_is_replaced_and_gets_the_request_again(
    pool, role, request_number, kills_supervisor, interrupted
):
    killing = KillingPool(pool, role, 1, request_number, kills_supervisor=kills_supervisor)
    source = submission("total", TOTAL)
    judgement = judge(killing, problem("total"), source, kind="submit", seed=3)
    assert killing.interrupted_requests == [interrupted]
    assert judgement.passed, judgement.verdict
    undisturbed = judge(pool, problem("total"), source, kind="submit", seed=3)
    assert judgement.to_json() == undisturbed.to_json()


@needs_root
def test_a_process_that_is_killed_twice_is_the_judges_fault_and_not_counted(pool):
    killing = KillingPool(pool, "runner", times=2)
    source = submission("total", TOTAL)
    judgement = judge(killing, problem("total"), source, kind="submit", seed=3)
    assert killing.interrupted_requests == ["run", "run"]
    assert [v.code for case in judgement.cases for v in case.verdicts] == ["IE"]
    assert not judgement.passed
    assert not judgement.counts
    assert judgement.not_judged == ("part 1, data=2", RENAMED)


def test_an_interrupt_does_not_wait_for_the_submission_and_leaves_nothing_behind(pool):
    """The submission is in an endless loop when the listener raises."""

    class Interrupted(Exception):
        pass

    def on_case(case):
        raise Interrupted(case.name)

    # Other tests of this process may have daemon threads of their own, such as asyncio's waitpid.
    threads_before = set(threading.enumerate())
    body = "\n    while mesh.size > 1: pass\n" + TOTAL
    with pytest.raises(Interrupted, match="data=1"):
        judge(
            pool,
            problem("total", limits=CPU_LIMITS),
            submission("total", body),
            kind="submit",
            seed=3,
            on_case=on_case,
        )
    judgement = judge(pool, problem("total"), submission("total", TOTAL), kind="submit", seed=3)
    assert judgement.passed
    for thread in set(threading.enumerate()) - threads_before:
        thread.join(FOREVER)
        assert not thread.is_alive()


def test_the_judge_and_its_reports_never_load_jax():
    modules = ("judge", "judgement_text", "junit", "results_json", "worker_pool")
    lines = [f"import shardlab.judge.{name}" for name in modules]
    check = "import sys; assert not {'jax', 'jaxlib', 'flax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", "; ".join([*lines, check])], check=True)


# ------------------------------------------------------------------------ one budget per submission


class RecordingPool:
    """A pool that remembers the processes that it has started."""

    def __init__(self, pool):
        self._pool, self.level, self.confinement = pool, pool.level, pool.confinement
        self.processes = []

    def start_process(self, role, limits):
        self.processes.append(self._pool.start_process(role, limits))
        return self.processes[-1]


def test_all_processes_of_a_submission_share_one_limit_of_processor_time(pool):
    """Two processes end after 1.5 s each, and a third never does: 7 s if each had its own limit."""
    body = """
    import os, time
    while time.process_time() < 1.5 or mesh.size == 3: pass
    os._exit(3)
"""
    recording = RecordingPool(pool)
    limits = {"cpu_seconds": 4.0, "wall_seconds": 600.0}
    endless = problem("total", limits=limits)
    judgement = judge(recording, endless, submission("total", body), kind="submit", seed=3)
    assert [case.verdicts[0].code for case in judgement.cases] == ["RTE", "RTE", "TLE"]
    assert "(4 s of processor time)" in judgement.cases[2].verdicts[0].what
    assert sum(process.cpu_seconds for process in recording.processes) < 6.0


def test_a_submission_has_two_retries_for_all_its_requests(pool):
    budget = SubmissionBudget(ProcessLimits())
    assert [budget.take_retry() for _ in range(4)] == [True, True, False, False]
    assert [budget.count_ended_process() for _ in range(3)] == [True, True, False]


def test_the_wall_clock_of_two_workers_at_the_same_time_counts_once(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(submission_budget.time, "monotonic", lambda: now[0])
    budget = SubmissionBudget(ProcessLimits(wall_seconds=5.0))
    with budget.pending_request():
        now[0] += 2.0
        with budget.pending_request():
            now[0] += 2.0
    now[0] += 1000.0  # nothing is pending
    assert budget.busy_seconds == 4.0
    assert budget.find_exceeded() == ""
    with budget.pending_request():
        now[0] += 1.5
        assert budget.find_exceeded() == "5 s of wall-clock time"


def test_a_judgement_is_small_whatever_the_submission_prints_and_raises(pool):
    body = """
    import random
    noise = "".join(chr(random.randrange(0x4e00, 0x9fff)) for _ in range(15_000))
    print(noise[:1000])
    raise ValueError("\\n".join([noise * 6] * 5))
"""
    meshes = tuple(f"data={n}" for n in (1, 2, 3, 4, 5, 6, 7, 8))
    judgement, verdict = judge_failing(pool, submission("total", body), meshes=meshes)
    assert verdict.code == "RTE"
    assert len(judgement.cases) == len(meshes)
    assert len(json.dumps(judgement.to_json())) <= MAX_JUDGEMENT_BYTES
    assert judgement.notes == ("Long texts of this judgement were shortened.",)


def test_rejected_system_calls_are_in_the_judgement(pool):
    if pool.level == "C":
        pytest.skip("nothing is rejected at level C")
    body = """
    import socket
    try:
        socket.socket()
    except OSError:
        pass
""" + TOTAL.lstrip("\n")
    judgement = judge(
        pool, problem("total", meshes=("data=1",)), submission("total", body), kind="submit", seed=3
    )
    assert judgement.passed
    assert judgement.rejected_calls == {"socket": 1}
    text = lines_text(judgement_lines(judgement, 500, verbose=True))
    assert "1 system call rejected (socket)" in text


@pytest.mark.parametrize("inputs", ["[1, 2]", "None", "{'y': 1}"])
def test_a_reference_that_returns_no_arguments_is_reported(pool, tmp_path, inputs):
    shutil.copytree(problem("total").folder, tmp_path / "total")
    reference = tmp_path / "total" / "reference.py"
    reference.write_text(f"def inputs(draw): return {inputs}\ndef expected(mesh, x): return x\n")
    wrong = replace(problem("total"), folder=tmp_path / "total")
    with pytest.raises(InvalidReference, match="return a dict of the arguments: x"):
        judge(pool, wrong, submission("total", TOTAL), kind="submit", seed=3)


@pytest.mark.parametrize(
    ("inputs", "specs"),
    [
        ("{'x': object()}", "{}"),
        ("{'x': np.array(['text'])}", "{}"),
        ("{'x': np.ones(4, np.float32), 1: 2}", "{}"),
        ("{'x': np.ones(4, np.float32)}", "5"),
    ],
)
def test_inputs_that_cannot_be_sent_are_reported(pool, tmp_path, inputs, specs):
    shutil.copytree(problem("total").folder, tmp_path / "total")
    (tmp_path / "total" / "reference.py").write_text(
        f"import numpy as np\ndef inputs(draw): return {inputs}\n"
        f"def expected(mesh, x): return x\ndef input_specs(mesh): return {specs}\n"
    )
    wrong = replace(problem("total"), folder=tmp_path / "total")
    with pytest.raises(InvalidReference, match="the inputs or their specs cannot be used"):
        judge(pool, wrong, submission("total", TOTAL), kind="submit", seed=3)
