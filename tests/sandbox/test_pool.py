"""The pool and its processes: limits, exits, levels, and what is left when a process is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from attack_suite import call_next_number
from process_tree import (
    have_ended,
    list_descendants,
    list_open_files,
    list_parents,
    process_name,
    wait_until,
)

from judge.small_problems import problem, submission
from judge.test_process_ends import TOTAL
from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
from shardlab.errors import SandboxLevelUnavailable
from shardlab.judge.failures import is_judge_fault
from shardlab.judge.judge import judge
from shardlab.judge.protocol.reports import FunctionCall
from shardlab.judge.protocol.requests import CallRequest, LoadRequest
from shardlab.judge.protocol.responses import LoadResponse
from shardlab.judge.worker_pool import WORKERS, open_worker_pool
from shardlab.sandbox import piped_process, self_test, supervisor
from shardlab.sandbox.messages import SupervisorCommand, parse_exit_report
from shardlab.sandbox.pool import open_sandbox_pool
from shardlab.sandbox.process import ProcessEnded, ProcessLimits
from shardlab.sandbox.process_figures import (
    ProcessFigures,
    ProcessStat,
    open_process_figures,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HERE = str(Path(__file__).parent)


def open_tracer_pool(level=None, **options):
    """Return a pool that has tracers only: every fork server takes time to start."""
    config = replace(WORKERS, fork_servers=WORKERS.fork_servers[:1], ready_roles=("tracer",))
    return open_sandbox_pool(replace(config, **options), level, [BUILT_IN_CATALOGUE])


@pytest.fixture(scope="module")
def pool():
    with open_tracer_pool() as opened:
        yield opened


def load(process, source):
    request = LoadRequest(source=source.encode())
    return request.parse_response(process.request(request.to_frame()))


def exit_of(process, source):
    """Return how a process ended when it loaded a submission."""
    with process, pytest.raises(ProcessEnded) as caught:
        load(process, source)
    return caught.value.reason


def next_number(pool):
    """Return what a normal submission returns: 42."""
    with pool.start_process("tracer", ProcessLimits()) as process:
        return call_next_number(process)


# ---------------------------------------------------------------------------------------- limits


class FakeTime:
    """A clock that a test sets, in the place of the supervisor's `time` module."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    fake_time = FakeTime()
    monkeypatch.setattr(supervisor, "time", fake_time)
    return fake_time


class FakeWatch(supervisor.ProcessWatch):
    """A watch over a process whose processor time a test sets."""

    def __init__(self, limits):
        super().__init__(pid=1, limits=limits, figures=ProcessFigures(-1))
        self.client, self.supervisor = socket.socketpair()
        self.used_cpu_seconds = 0.0

    def _read_stat(self):
        return ProcessStat(flags=0, cpu_seconds=self.used_cpu_seconds, n_threads=1, memory_bytes=0)

    def send_command(self, command):
        self.client.send(command.value)
        assert self._read_commands(self.supervisor) is None

    def close(self):
        self.client.close()
        self.supervisor.close()


@pytest.fixture
def make_watch(clock):
    watches = []

    def make(**limits):
        watches.append(FakeWatch(ProcessLimits(**limits)))
        return watches[-1]

    yield make
    for watch in watches:
        watch.close()


STARTED, FINISHED = SupervisorCommand.REQUEST_STARTED, SupervisorCommand.REQUEST_FINISHED


def test_the_wall_clock_runs_during_requests_and_counts_all_of_them_together(make_watch, clock):
    watch = make_watch(wall_seconds=3.0, idle_seconds=1000.0)
    watch.send_command(STARTED)
    clock.now += 1.7
    watch.send_command(FINISHED)
    clock.now += 10_000.0  # between requests a process may wait as long as it likes
    assert watch._find_exceeded_limit() is None
    watch.send_command(STARTED)
    clock.now += 1.2
    assert watch._find_exceeded_limit() is None
    clock.now += 0.2
    assert watch._find_exceeded_limit() == "clock"
    reason = watch.exit_reason(signal.SIGKILL, "clock", is_confined=True)
    assert (reason.kind, reason.detail) == ("time", "3 s of wall-clock time")
    assert reason.seconds == pytest.approx(3.1)


def test_a_process_that_uses_no_processor_is_ended_long_before_the_wall_clock(make_watch, clock):
    watch = make_watch(wall_seconds=600.0, idle_seconds=5.0)
    clock.now += 100.0  # no request is pending
    watch.send_command(STARTED)
    clock.now += 4.0
    watch.used_cpu_seconds = 0.5
    assert watch._find_exceeded_limit() is None
    clock.now += 4.0
    assert watch._find_exceeded_limit() is None
    clock.now += 1.5
    assert watch._find_exceeded_limit() == "idle"
    reason = watch.exit_reason(signal.SIGKILL, "idle", is_confined=True)
    assert (reason.kind, reason.detail) == ("time", "5 s without using the processor")
    assert reason.idle_seconds == pytest.approx(5.5)


@pytest.mark.parametrize(
    ("limits", "source", "detail"),
    [
        ({"wall_seconds": 0.5}, "import time; time.sleep(3600)", "0.5 s of wall-clock time"),
        ({"wall_seconds": 0.5}, "while True: pass", "0.5 s of wall-clock time"),
        (
            {"wall_seconds": 600.0, "idle_seconds": 0.6},
            "import time; time.sleep(3600)",
            "0.6 s without using the processor",
        ),
        (
            {"wall_seconds": 600.0, "cpu_seconds": 0.5},
            "while True: pass",
            "0.5 s of processor time",
        ),
    ],
)
def test_each_clock_ends_a_process(pool, limits, source, detail):
    reason = exit_of(pool.start_process("tracer", ProcessLimits(**limits)), source)
    assert (reason.kind, reason.detail) == ("time", detail)


def test_a_process_that_the_kernel_ends_for_its_processor_time_was_too_slow(make_watch):
    watch = make_watch(cpu_seconds=1)
    watch.cpu_seconds = 3.0
    reason = watch.exit_reason(signal.SIGKILL, None, is_confined=True)
    assert (reason.kind, reason.detail) == ("time", "1 s of processor time")
    watch.cpu_seconds = 0.5
    assert watch.exit_reason(signal.SIGKILL, None, is_confined=True).kind == "internal"


# ----------------------------------------------------------------------------- exits and responses


def test_a_process_that_has_ended_reports_its_exit_again(pool):
    with pool.start_process("tracer", ProcessLimits()) as process:
        for _ in range(2):
            with pytest.raises(ProcessEnded, match="exit") as caught:
                load(process, "import os; os._exit(7)")
            assert caught.value.reason.exit_code == 7


def test_an_exit_by_a_signal_names_it(pool):
    reason = exit_of(pool.start_process("tracer", ProcessLimits()), "import os; os.abort()")
    assert (reason.kind, reason.signal) == ("signal", signal.SIGABRT)


@pytest.mark.parametrize("level", ["A", "C"])
def test_a_signal_in_a_confined_process_is_self_inflicted(level):
    sources = {
        "A": "import signal; signal.alarm(1); signal.pause()",
        "C": "import os; os.kill(os.getpid(), 15)",
    }
    with open_tracer_pool(level) as pool:
        reason = exit_of(pool.start_process("tracer", ProcessLimits()), sources[level])
        assert reason.kind == "signal"
        assert is_judge_fault(reason) == (pool.level == "C")


def test_a_process_that_exits_is_told_from_one_that_closes_its_pipes(pool):
    """Both close the pipe first; the exit must not be taken for a violation of the protocol."""
    for _ in range(20):
        process = pool.start_process("tracer", ProcessLimits())
        assert exit_of(process, "import os; os._exit(0)").kind == "exit"
    source = "import os, time; os.close(4); time.sleep(3600)"
    reason = exit_of(pool.start_process("tracer", ProcessLimits()), source)
    assert (reason.kind, reason.detail) == ("protocol", "the response pipe was closed")


def test_a_second_response_to_one_request_is_rejected(pool):
    source = """
import os
from shardlab.judge.protocol.responses import LoadResponse
from shardlab.sandbox.frame import frame_bytes
os.write(4, frame_bytes(LoadResponse(defined_names=('forged',)).to_frame()))
"""
    with pool.start_process("tracer", ProcessLimits()) as process:
        assert load(process, source) == LoadResponse(defined_names=("forged",))
        # Until its regular response is in the pipe as well.
        assert wait_until(lambda: piped_process._has_data(process._responses_fd))
        with pytest.raises(ProcessEnded, match="a response came before its request") as caught:
            load(process, "x = 1")
    assert caught.value.reason.kind == "protocol"


def test_a_response_beyond_the_limit_is_rejected_before_it_is_read(pool):
    source = "import os, struct\nos.write(4, struct.pack('<II', 2, 1001))\nos.read(3, 1)"
    reason = exit_of(pool.start_process("tracer", ProcessLimits(response_bytes=1000)), source)
    detail = "a frame of 2 + 1,001 bytes is too long"
    assert (reason.kind, reason.detail) == ("protocol", detail)


def test_output_is_truncated_and_has_no_control_characters(pool):
    with pool.start_process("tracer", ProcessLimits(output_bytes=20)) as process:
        load(process, r"print('\x1b]0;title\x07 café')")
        assert process.output == "\ufffd]0;title\ufffd café\n"
    assert process.output == "\ufffd]0;title\ufffd café\n"


def test_a_large_request_and_a_large_response_do_not_block_each_other(pool):
    data = bytes(range(256)) * (1 << 14)
    call = FunctionCall(
        function="same",
        argument_names=("x",),
        packed_inputs={"x": {"$array": [0, [len(data)], "uint8"]}},
    )
    with pool.start_process("tracer", ProcessLimits(response_bytes=64 << 20)) as process:
        load(process, "def same(x): return x")
        frame = process.request(CallRequest(call=call, arrays=(data,)).to_frame())
        assert frame.buffers == (data,)


def test_processes_of_several_submissions_run_at_the_same_time(pool):
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(lambda _: next_number(pool), range(8))) == [42] * 8


# ---------------------------------------------------------------------------------------- levels


def test_a_lower_level_can_be_requested_and_a_higher_one_required():
    with open_worker_pool("C") as pool:
        assert pool.level == "C"
    with pytest.raises(SandboxLevelUnavailable, match="cannot be confined at level A on this"):
        open_worker_pool("B", at_least="A")


@pytest.mark.parametrize(
    ("denied", "level", "reason"),
    [
        ("unshare", "B", "A: namespaces are refused: Operation not permitted"),
        ("mount", "B", "A: namespaces are refused: Operation not permitted"),
        ("landlock", "C", "A: this kernel has no Landlock"),
    ],
)
def test_what_a_kernel_denies_lowers_the_level_and_is_named(denied, level, reason):
    completed = run_python(str(Path(HERE) / "deny_system_call.py"), denied)
    assert completed.stdout.splitlines() == [level, reason], completed.stderr


FEW_FILES = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 4096))
warnings.simplefilter("error")
import test_pool
from shardlab.judge.worker_pool import open_worker_pool
with open_worker_pool() as pool:
    print(pool.level, test_pool.next_number(pool))
"""


def test_a_small_limit_of_open_files_lowers_no_level(pool):
    """On macOS it is 256."""
    completed = run_python("-c", FEW_FILES, "32")
    assert completed.stdout.split() == [pool.level, "42"], completed.stderr


RESTRICTED = """
import os, resource, sys
from shardlab.errors import ForkServerFailed
from shardlab.judge.worker_pool import open_worker_pool
from shardlab.sandbox import kernel
import test_pool
if sys.argv[1] == "files":
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
elif sys.argv[1] == "threads":
    resource.setrlimit(resource.RLIMIT_NPROC, (60, 60))
    os.setuid(os.getuid() or 60599)
else:
    kernel.unshare(kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.REC | kernel.PRIVATE)
    kernel.mount("tmpfs", "/proc", "tmpfs", 0, "")
try:
    with open_worker_pool() as pool:
        print(pool.level, test_pool.next_number(pool))
except ForkServerFailed as error:
    print(error)
"""


def test_without_proc_a_submission_is_judged_at_the_lowest_level():
    if os.geteuid() != 0:
        pytest.skip("only root can hide /proc")
    completed = run_python("-c", RESTRICTED, "proc")
    assert completed.stdout.split() == ["C", "42"], completed.stderr


def test_if_no_process_can_be_started_the_reason_is_reported():
    completed = run_python("-c", RESTRICTED, "files")
    message = "C: no fork server: [Errno 24] Too many open files"
    assert message in completed.stdout, completed.stderr


def test_a_limit_of_threads_is_not_the_fault_of_a_submission():
    completed = run_python("-c", RESTRICTED, "threads")
    message = "this user may have 60 processes and threads; a submission may need 256"
    assert message in completed.stdout, completed.stderr


UNCONFINED = """
import sys, warnings
from shardlab.judge.protocol.requests import LoadRequest
from shardlab.judge.worker_pool import open_worker_pool
from shardlab.sandbox import fork_server
from shardlab.sandbox.process import ProcessLimits, ProcessEnded
fork_server._ZYGOTE_COMMAND = fork_server._ZYGOTE_COMMAND.replace(
    "main(int(",
    "import shardlab.sandbox.zygote as z;"
    f"z.confine_process = lambda plan, *_: plan.level in {sys.argv[1]!r} and 1 / 0; main(int(",
)
with warnings.catch_warnings(record=True) as caught, open_worker_pool() as opened:
    warnings.simplefilter("always")
    print(opened.level, *(str(warning.message).splitlines()[0] for warning in caught))
    try:
        process = opened.start_process("tracer", ProcessLimits())
        process.request(LoadRequest(source=b"x = 1").to_frame())
    except ProcessEnded as ended:
        print(ended)
"""


@pytest.mark.parametrize("levels", ["AB", "ABC"])
def test_a_failure_before_confinement_is_the_judges_fault_and_warned_about(levels):
    completed = run_python("-c", UNCONFINED, levels)
    first, *others = completed.stdout.splitlines()
    warning = "C The sandbox works at level C because of an error. A: "
    assert first.startswith(warning), completed.stderr
    fault = "internal the process ended before it was confined"
    assert fault in first
    assert others == ([fault] if "C" in levels else [])


def run_python(*arguments, **variables):
    """Run Python with this folder and our own paths to import from."""
    paths = [HERE, *(p for p in sys.path if p)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)


WITHOUT_PIDFD = """
import os, socket, sys, time
del os.pidfd_open  # as on macOS, which has no /proc either
from shardlab.sandbox.confinement import ConfinementPlan
from shardlab.sandbox.process import ProcessLimits
from shardlab.sandbox.supervisor import supervise_process
for action, wall_seconds in ((lambda: os._exit(3), 600.0), (lambda: time.sleep(3600), 0.5)):
    pid = os.fork()
    if pid == 0:
        action()
    client, supervisor = socket.socketpair()
    client.send(b"b")
    limits = ProcessLimits(wall_seconds=wall_seconds)
    supervise_process(pid, supervisor, limits, ConfinementPlan(level="C"), 0)
    print(client.recv(1000).decode())
"""


def test_a_process_is_supervised_without_pidfd_and_without_proc():
    completed = run_python("-c", WITHOUT_PIDFD)
    first, second = (parse_exit_report(line.encode()) for line in completed.stdout.splitlines())
    assert (first.kind, first.exit_code, first.signal) == ("exit", 3, None)
    assert (second.kind, second.signal) == ("time", signal.SIGKILL)


# ------------------------------------------------------------------------ processes that are killed

BLOCKING = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b'{name}')
time.sleep(3600)
"""


def tracer_zygote(pool):
    return pool.zygote_pids[0]


def exit_after_kill(pool, victim):
    """Return how a sleeping process ended when it, its supervisor or the fork server is killed."""
    with pool.start_process("tracer", ProcessLimits(wall_seconds=600, idle_seconds=600)) as process:
        name = f"victim-{threading.get_native_id()}"[:15]
        pids = {}

        def kill_victim():
            def find():
                descendants = list_descendants(tracer_zygote(pool))
                pids["process"] = next((p for p in descendants if process_name(p) == name), None)
                return pids["process"] is not None

            assert wait_until(find)  # its name shows that the request is being processed
            pids["supervisor"] = list_parents()[pids["process"]]
            pids["zygote"] = tracer_zygote(pool)
            os.kill(pids[victim], signal.SIGKILL)

        thread = threading.Thread(target=kill_victim)
        thread.start()
        with pytest.raises(ProcessEnded) as caught:
            load(process, BLOCKING.format(name=name))
        thread.join()
    return caught.value.reason, [pids["supervisor"], pids["process"]]


@pytest.mark.parametrize("level", ["A", "B", "C"])
def test_whichever_process_is_killed_the_submission_is_not_blamed(level):
    with open_tracer_pool(level) as pool:
        for victim in ("process", "supervisor", "zygote"):
            reason, pids = exit_after_kill(pool, victim)
            assert reason.kind == "internal", victim
            assert have_ended(pids), victim
            assert next_number_after_kill(pool) == 42, victim


def next_number_after_kill(pool):
    """Return what a normal submission returns, at the second attempt at the latest.

    A process that was forked ahead may end with its server; what is lost then is one process, and
    the judge sends its request once more.
    """
    try:
        return next_number(pool)
    except ProcessEnded as ended:
        if ended.reason.kind != "internal":
            raise
        return next_number(pool)


def test_a_response_is_read_although_its_process_has_ended_since():
    """A self test responds once and ends: often both are known before any of it is read."""
    request = self_test.SelfTestRequest(hidden_paths=(), client_pid=os.getpid())
    with open_tracer_pool("B") as pool:
        server = pool._servers[0].current
        for _ in range(60):
            with server.fork_process(self_test.ROLE, ProcessLimits()) as process:
                frame = process.request(request.to_frame())
                assert self_test.SelfTestResponse.from_frame(frame).breaches == ()


def test_nothing_is_left_when_processes_and_pool_are_closed():
    files = list_open_files()
    pool = open_worker_pool()
    processes = [pool.start_process("tracer", ProcessLimits()) for _ in range(3)]
    for process in processes:
        load(process, "x = 1")
    pids = [pid for zygote in pool.zygote_pids for pid in (zygote, *list_descendants(zygote))]
    assert len(pids) >= 8
    processes[0].close()
    pool.close()  # with two processes that were not closed
    for process in processes:
        process.close()
        process.close()
    assert have_ended(pids)
    assert list_open_files() == files


CLIENT = """
import sys
from shardlab.judge.protocol.requests import LoadRequest
from shardlab.judge.worker_pool import open_worker_pool
from shardlab.sandbox.process import ProcessLimits
pool = open_worker_pool(sys.argv[1])
process = pool.start_process("tracer", ProcessLimits())
ignore = b"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
process.request(LoadRequest(source=ignore).to_frame())
print(pool.level, flush=True)
process.request(LoadRequest(source=b"import time; time.sleep(3600)").to_frame())
"""


# Its child leaves the session, and the process between them ends, as a daemon does.
FORKING = """
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b'{name}')
        time.sleep(3600)
    os._exit(0)
os.wait()
"""


def find_named(name):
    return [pid for pid in list_parents() if process_name(pid) == name]


def test_what_a_process_has_forked_ends_with_it():
    """Only at level C can a process fork at all."""
    name = f"orphan-{os.getpid()}"
    with open_tracer_pool("C") as unconfined:
        with unconfined.start_process("tracer", ProcessLimits()) as process:
            load(process, FORKING.format(name=name))
            assert wait_until(lambda: find_named(name))
        assert wait_until(lambda: not find_named(name))


def test_what_a_process_has_forked_ends_when_the_client_is_killed():
    name = f"orphan-{os.getpid()}"
    forking = FORKING.format(name=name) + "time.sleep(3600)"
    source = CLIENT.replace('b"import time; time.sleep(3600)"', repr(forking.encode()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", source, "C"], stdout=subprocess.PIPE, env=environment
    ) as client:
        assert wait_until(lambda: find_named(name))
        client.kill()
    assert wait_until(lambda: not find_named(name))


@pytest.mark.parametrize("level", ["A", "C"])
def test_everything_ends_when_the_client_is_killed(level):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, level], stdout=subprocess.PIPE, env=environment
    ) as client:
        assert client.stdout.readline().strip() in (b"A", b"B", b"C")
        pids = list_descendants(client.pid)
        assert len(pids) >= 3
        client.kill()
    assert have_ended(pids)


def test_files_in_the_current_folder_are_never_imported_by_the_fork_server(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with open_tracer_pool("C") as pool:
        assert next_number(pool) == 42
    assert Path.cwd() == tmp_path


def test_a_pending_request_ends_when_another_thread_aborts_it(pool):
    process = pool.start_process("tracer", ProcessLimits())
    with ThreadPoolExecutor(1) as executor:
        # Whether the request has started or not, it must end.
        reason = executor.submit(exit_of, process, "import time\ntime.sleep(999)")
        process.abort()
        assert reason.result().kind == "internal"
    process.abort()  # twice is harmless
    assert next_number(pool) == 42


# ------------------------------------------------------------------------ fork servers and figures


def test_a_fork_server_is_renewed_while_its_processes_go_on():
    with open_tracer_pool(max_forks=3) as pool:
        first = tracer_zygote(pool)
        process = pool.start_process("tracer", ProcessLimits())
        load(process, "x = 1")
        assert [next_number(pool) for _ in range(3)] == [42] * 3
        assert wait_until(lambda: tracer_zygote(pool) != first)
        assert load(process, "y = 2").error is None  # its server has retired, and lives
        assert next_number(pool) == 42
        process.close()
        assert have_ended([first])
        assert pool.statistics().n_fork_servers >= 2


def find_server(pid):
    """Return the process that forks: of those below `pid`, the first that has loaded JAX."""
    for descendant in [pid, *list_descendants(pid)]:
        with contextlib.suppress(OSError):
            if "jaxlib" in Path(f"/proc/{descendant}/maps").read_text():
                return descendant
    raise AssertionError("there is no fork server")


@pytest.mark.parametrize("depth", ["outermost", "innermost"])
def test_a_submission_right_after_the_death_of_the_fork_server_is_judged(depth):
    """At level A the process that serves is not the one that the pool has started."""
    with open_worker_pool() as pool:
        for zygote in pool.zygote_pids:
            os.kill(zygote if depth == "outermost" else find_server(zygote), signal.SIGKILL)
        small = problem("total")
        judgement = judge(pool, small, submission("total", TOTAL), kind="submit", seed=3)
        assert judgement.passed, str(judgement.verdict)


def test_tracer_and_runner_have_fork_servers_of_their_own():
    with open_worker_pool() as pool:
        assert len(set(pool.zygote_pids)) == 2


def test_rejected_system_calls_are_counted_by_name(pool):
    if pool.level == "C":
        pytest.skip("nothing is rejected at level C")
    source = """
import os, socket
for _ in range(3):
    try:
        socket.socket()
    except OSError as error:
        assert error.errno == 1
try:
    os.open('/tmp/x', os.O_CREAT | os.O_WRONLY)
except OSError as error:
    assert error.errno == 13
"""
    before = pool.statistics().rejected_calls
    with pool.start_process("tracer", ProcessLimits()) as process:
        assert load(process, source).error is None
        assert process.rejected_calls == {"socket": 3, "openat": 1}
    after = pool.statistics().rejected_calls
    assert after["socket"] - before.get("socket", 0) == 3


def test_the_processor_time_of_a_running_process_is_known_to_its_client(pool):
    source = "import time\nwhile time.process_time() < 0.5: pass"
    with pool.start_process("tracer", ProcessLimits()) as process:
        load(process, source)
        assert wait_until(lambda: process.cpu_seconds >= 0.4)


def test_a_budget_of_the_client_ends_a_process_in_its_own_words(pool):
    with pool.start_process("tracer", ProcessLimits()) as process:
        process.find_exceeded_budget = lambda: "3 bananas"
        with pytest.raises(ProcessEnded) as caught:
            load(process, "while True: pass")
    assert (caught.value.reason.kind, caught.value.reason.detail) == ("time", "3 bananas")


def test_memory_counts_page_tables():
    """Of a stopped process, so that all figures stay as they are."""
    proc_fd = os.open("/proc", os.O_RDONLY)
    with subprocess.Popen(["sleep", "3600"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        figures = open_process_figures(proc_fd, process.pid).read()
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.kill()
    os.close(proc_fd)
    sizes = dict(line.split(":", 1) for line in status.splitlines())
    resident, tables, swap = (
        int(sizes[name].split()[0]) * 1024 for name in ("VmRSS", "VmPTE", "VmSwap")
    )
    assert tables > 0
    assert figures.memory_bytes == resident + tables + swap


def test_sigxcpu_is_used_up_time_only_if_the_time_is_used_up(make_watch):
    watch = make_watch(cpu_seconds=5)
    watch.cpu_seconds = 0.1
    assert watch.exit_reason(signal.SIGXCPU, None, is_confined=True).kind == "signal"
    watch.cpu_seconds = 5.5
    assert watch.exit_reason(signal.SIGXCPU, None, is_confined=True).kind == "time"


def test_without_bubblewrap_the_level_is_the_same_and_the_reason_is_known():
    source = (
        "from shardlab.judge.worker_pool import open_worker_pool\n"
        "with open_worker_pool() as pool:\n"
        "    print(pool.level, pool.confinement, pool.statistics().unwrapped_reason, sep='|')"
    )
    levels = []
    for variables in ({"SHARDLAB_NO_BUBBLEWRAP": "1"}, {}):
        completed = run_python("-c", source, **variables)
        level, confinement, reason = completed.stdout.strip().split("|")
        levels.append(level)
        assert confinement.endswith("inside bubblewrap") == (not reason)
    assert levels[0] == levels[1]


def test_packages_beside_a_hidden_folder_can_be_imported_and_not_listed():
    """Landlock's right to list a folder is a right to list all below it, so nobody has it."""
    import hypothesis

    hidden = os.path.dirname(os.path.realpath(hypothesis.__file__))
    packages = os.path.dirname(hidden)
    config = replace(WORKERS, fork_servers=WORKERS.fork_servers[:1], ready_roles=())
    source = f"""
import importlib.metadata, os, sys
assert "pluggy" not in sys.modules
import pluggy
assert importlib.metadata.version("pluggy")
for folder in {[packages, hidden]!r}:
    try:
        os.listdir(folder)
    except PermissionError:
        continue
    raise AssertionError(folder)
"""
    with open_sandbox_pool(config, "B", [hidden]) as opened:
        if opened.level != "B":
            pytest.skip("this machine does not hold level B")
        with opened.start_process("tracer", ProcessLimits()) as process:
            assert load(process, source).error is None


def test_the_limit_of_mapped_memory_follows_that_of_memory_in_use(pool):
    source = "import resource\nprint(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    limits = ProcessLimits(memory_bytes=600 << 20)
    with pool.start_process("tracer", limits) as process:
        load(process, source)
        assert int(process.output) == (600 + 512) << 20
