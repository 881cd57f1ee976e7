"""Answers that give no result: not loaded, too long, too much, crashed, killed by somebody else."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from judge.tiny import IMPORTS, answer, mapped, problem
from shardlab.judge.judge import judge
from shardlab.sandbox.pool import open_sandbox_pool

TOTAL = mapped("lambda y: lax.psum(jnp.sum(y), a)")


@pytest.fixture(scope="module")
def house():
    with open_sandbox_pool() as opened:
        yield opened


def first_of(house, source, **options):
    judgement = judge(house, problem("total", **options), source, kind="submit", seed=3)
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
        (b"def totall(x, mesh):\n    return 1\n", "There is no function total in the answer.", ""),
        (
            b"\ndef total(x):\n    return 1\n",
            "total(x) cannot be called as total(x, mesh)",
            "line 2: def total(x):",
        ),
        (b"\n\ntotal = 3\n", "not a function", "line 3: total = 3"),
        (b"# a\n\xff\xfe\n", "The file is not UTF-8: byte 0xff", "line 2"),
        (b"a = 1\nb = '\0'\n", "The file has a NUL byte in it.", "line 2"),
        (b" \n", "The file is empty.", ""),
        (b"#" * 10_000_000, "The file has 10,000,000 bytes; at most 262,144 are read.", ""),
    ],
)
def test_an_answer_that_cannot_be_loaded_says_why_and_where(house, source, what, where):
    _, verdict = first_of(house, source)
    assert verdict.code == "CE"
    assert what in verdict.what
    assert verdict.where.startswith(where)


def test_an_answer_that_cannot_be_loaded_ends_the_judging(house):
    judgement, _ = first_of(house, "x = (")
    assert len(judgement.cases) == 1
    assert judgement.not_judged == ("part 1, data=2", "part 1, rows=3, axes renamed")
    assert judgement.counterexample is None


def test_a_time_out_tells_what_was_going_on_and_stops(house):
    body = "\n    while mesh.size > 1: pass\n    return jnp.sum(x)"
    limits = {"wall_seconds": 3.0, "cpu_seconds": 3.0}
    judgement, verdict = first_of(house, answer("total", body), limits=limits)
    assert verdict.code == "TLE"
    assert verdict.what in [
        f"The time limit was reached (3 s {of}) while tracing the answer."
        for of in ("of processor time", "by the clock")
    ]
    assert verdict.where == "line 7: while mesh.size > 1: pass"
    assert judgement.not_judged == ("part 1, rows=3, axes renamed",)
    assert not any(case.output for case in judgement.cases)


def test_an_endless_program_is_a_time_out_of_the_run_and_ends_the_judging(house):
    """A wrong value before it would be shown small, and programs after it are made already."""
    body = """
    if mesh.size == 1:
        return jnp.sum(x) + 1
    return lax.while_loop(lambda s: s > 0, lambda s: s + 1, jnp.sum(x))
"""
    limits = {"wall_seconds": 3.0, "cpu_seconds": 3.0}
    ladder = ("data=1", "data=2", *(f"data={n}" for n in (3, 4, 5, 6, 7)))
    endless = problem("total", limits=limits, ladder=ladder)
    told = []

    def hear():
        told.append(judge(house, endless, answer("total", body), kind="submit", seed=3))

    thread = threading.Thread(target=hear, daemon=True)
    thread.start()
    thread.join(120)  # a judge that waits for itself does so for ever
    assert told, "the judge does not end"
    verdicts = [case.verdicts[0] for case in told[0].cases]
    assert [verdict.code for verdict in verdicts] == ["WA", "TLE"]
    assert "while running the program" in verdicts[1].what
    assert len(told[0].not_judged) == 5


def test_a_thread_that_cannot_be_started_is_no_fault_of_the_answer(house, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    judgement, verdict = first_of(house, answer("total", TOTAL))
    assert verdict.code == "IE"
    assert verdict.what == "The judge failed: can't start new thread."
    assert len(judgement.not_judged) == 2


def test_devices_that_wait_for_each_other_are_told_from_a_loop_without_end(house):
    """The check before the run would say so; this answer takes the check away."""
    silenced = "import shardlab.judge.worker.tracing as tracing\ntracing.check_program = lambda *a, **k: []\n"
    body = mapped(
        "lambda y: lax.cond(lax.axis_index(a) == 0, lambda v: lax.psum(v, a), lambda v: v, "
        "jnp.sum(y))",
        options=", check_vma=False",
    )
    limits = {"wall_seconds": 8.0, "cpu_seconds": 8.0}
    source = silenced + answer("total", body)
    _, verdict = first_of(house, source, limits=limits, ladder=("data=2",))
    assert verdict.code == "HANG"
    assert verdict.what == "Devices waited for each other in a collective and never met."


def test_memory_and_output_have_limits_of_their_own(house):
    body = "\n    hoard = [bytearray(1 << 27) for _ in range(64)]\n    return jnp.sum(x)"
    _, verdict = first_of(house, answer("total", body), ladder=("data=1",))
    assert verdict.code == "MLE"
    assert verdict.where.startswith("line 7: hoard = ") or "MemoryError" not in verdict.what
    body = "\n    print('x' * 1_000_000)\n    return jnp.sum(x)"
    _, verdict = first_of(house, answer("total", body), ladder=("data=1",))
    assert verdict.code == "OLE"


def test_a_crash_is_told_as_one_and_the_other_cases_are_judged(house):
    body = (
        """
    if mesh.shape.get("data") == 2:
        import ctypes
        ctypes.string_at(0)
"""
        + TOTAL
    )
    judgement, verdict = first_of(house, answer("total", body))
    assert verdict.code == "RTE"
    assert verdict.what == "The process ended by itself while tracing the answer (SIGSEGV)."
    assert verdict.where == "line 9: ctypes.string_at(0)"
    assert [case.passed for case in judgement.cases] == [True, False, True]


def test_an_exit_is_no_result(house):
    _, verdict = first_of(house, answer("total", "\n    import os; os._exit(0)"))
    assert verdict.code == "RTE"
    assert "exit code 0" in verdict.what


def test_what_an_answer_prints_is_kept_with_its_case(house):
    source = f"{IMPORTS}print('loaded')\n\ndef total(x, mesh):\n    print(mesh.size)" + TOTAL
    judgement = judge(house, problem("total"), source, kind="submit", seed=3)
    assert [case.output for case in judgement.cases] == ["loaded\n1\n", "2\n", "3\n"]


# ------------------------------------------------------------- processes that somebody else ends


def parents():
    """Return the parent of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return found


def holders(pipe, known):
    """Return the processes that have a pipe open, but this one and the fork server."""
    for pid, parent in known.items():
        if os.getpid() in (pid, parent):
            continue
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                if os.readlink(fd) == pipe:
                    yield pid


class Killing:
    """A house in which guests of a role are killed just before they are asked."""

    def __init__(self, house, role, times, at=1, *, kills_supervisor=False):
        self._house, self._role, self._times, self.at = house, role, times, at
        self.kills_supervisor = kills_supervisor
        self.level = house.level
        self.killed = []

    def guest(self, role, limits):
        guest = self._house.guest(role, limits)
        if role != self._role or not self._times:
            return guest
        self._times -= 1
        return Doomed(guest, self)


class Doomed:
    def __init__(self, guest, killing):
        self._guest, self._killing, self._left = guest, killing, killing.at

    def ask(self, request):
        self._left -= 1
        if self._left == 0:
            os.kill(self._pid(), signal.SIGKILL)
            self._killing.killed.append(request.header["do"])
        return self._guest.ask(request)

    def _pid(self):
        """Return the process at the other end of the guest's pipe, or its supervisor."""
        pipe = os.readlink(f"/proc/self/fd/{self._guest._requests}")
        while not (found := sorted(holders(pipe, known := parents()))):
            time.sleep(0.01)  # it is being forked
        return known[found[-1]] if self._killing.kills_supervisor else found[-1]

    def __getattr__(self, name):
        return getattr(self._guest, name)


needs_root = pytest.mark.skipif(
    not Path("/proc/self/stat").exists() or os.geteuid() != 0,
    reason="finds another user's processes in /proc",
)


@needs_root
@pytest.mark.parametrize(
    ("role", "at", "kills_supervisor"),
    [("author", 1, False), ("author", 3, False), ("author", 2, True), ("runner", 2, False)],
)
def test_a_process_that_was_killed_is_replaced_and_asked_again(house, role, at, kills_supervisor):
    killing = Killing(house, role, times=1, at=at, kills_supervisor=kills_supervisor)
    judgement = judge(killing, problem("total"), answer("total", TOTAL), kind="submit", seed=3)
    doing = {("author", 1): "load", ("runner", 2): "run"}.get((role, at), "export")
    assert killing.killed == [doing]
    assert judgement.passed
    plain = judge(house, problem("total"), answer("total", TOTAL), kind="submit", seed=3)
    assert judgement.to_json() == plain.to_json()


@needs_root
def test_a_process_that_is_killed_twice_is_the_judges_fault_and_not_counted(house):
    killing = Killing(house, "runner", times=2, at=1)
    judgement = judge(killing, problem("total"), answer("total", TOTAL), kind="submit", seed=3)
    assert killing.killed == ["run", "run"]
    assert [v.code for case in judgement.cases for v in case.verdicts] == ["IE"]
    assert not judgement.passed
    assert not judgement.counts
    assert judgement.not_judged == ("part 1, data=2", "part 1, rows=3, axes renamed")


def test_whoever_interrupts_is_not_kept_waiting_and_leaves_nothing_behind(house):
    """The answer is in an endless loop when the listener has had enough."""

    class Enough(Exception):
        pass

    def tell(case):
        raise Enough(case.name)

    body = "\n    while mesh.size > 1: pass\n" + TOTAL
    limits = {"wall_seconds": 5.0, "cpu_seconds": 5.0}
    with pytest.raises(Enough, match="data=1"):
        judge(
            house,
            problem("total", limits=limits),
            answer("total", body),
            kind="submit",
            seed=3,
            tell=tell,
        )
    judgement = judge(house, problem("total"), answer("total", TOTAL), kind="submit", seed=3)
    assert judgement.passed
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.daemon:
            thread.join(20)
            assert not thread.is_alive()


def test_the_judge_and_its_reports_never_load_jax():
    modules = ("judge.judging", "render.judgement", "render.junit", "render.results")
    lines = [f"import shardlab.{name}" for name in modules]
    check = "import sys; assert not {'jax', 'jaxlib', 'flax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", "; ".join([*lines, check])], check=True)
