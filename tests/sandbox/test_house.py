"""The house and its guests: clocks, endings, and what is left when any of its processes dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from processes import are_gone, descendants, open_files, parents

from shardlab.errors import SandboxLevelUnavailable
from shardlab.judge.failures import is_ours
from shardlab.sandbox import supervisor
from shardlab.sandbox.frame import Frame
from shardlab.sandbox.pool import open_sandbox_pool
from shardlab.sandbox.process import Limits, ProcessEnded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.fixture(scope="module")
def house():
    with open_sandbox_pool() as opened:
        yield opened


def load(guest, source):
    return guest.ask(Frame({"do": "load"}, (source.encode(),)))


def ended(guest, source):
    """Return how a guest ended when it loaded an answer."""
    with guest, pytest.raises(ProcessEnded) as caught:
        load(guest, source)
    return caught.value.ending


def number(house):
    """Return what a normal answer gives: 42."""
    with house.guest("author", Limits()) as guest:
        load(guest, "def next_number(n): return n + 1")
        asked = {"do": "call", "function": "next_number", "order": ["n"], "arguments": {"n": 41}}
        return guest.ask(Frame({**asked, "mesh": None, "specs": []})).header["value"]


# ------------------------------------------------------------------------------ time and talk


def test_a_guest_that_waits_for_a_request_is_not_late(house):
    with house.guest("author", Limits(wall_seconds=0.5)) as guest:
        load(guest, "x = 1")
        time.sleep(1.0)
        assert load(guest, "y = 2").header == {"defines": []}


def test_the_wall_clock_counts_all_requests_together(house):
    with house.guest("author", Limits(wall_seconds=3.0)) as guest:
        load(guest, "import time; time.sleep(1.7)")
        with pytest.raises(ProcessEnded) as caught:
            load(guest, "import time; time.sleep(1.7)")
    assert caught.value.ending.why == "time"
    assert caught.value.ending.seconds > 3.0


def test_processor_time_is_limited_too(house):
    ending = ended(house.guest("author", Limits(cpu_seconds=0.5)), "while True: pass")
    assert (ending.why, ending.detail) == ("time", "0.5 s of processor time")


def test_a_guest_that_waits_for_itself_is_ended_long_before_the_clock_is(house):
    limits = Limits(wall_seconds=30.0, idle_seconds=0.6)
    with house.guest("author", limits) as guest:
        load(guest, "x = 1")
        time.sleep(1.0)  # nothing is asked of it meanwhile
        load(guest, "y = 2")
        with pytest.raises(ProcessEnded) as caught:
            load(guest, "import time; time.sleep(20)")
    ending = caught.value.ending
    assert (ending.why, ending.detail) == ("time", "0.6 s of waiting without computing")
    assert ending.seconds < 20


def test_an_ended_guest_keeps_saying_how_it_ended(house):
    with house.guest("author", Limits()) as guest:
        for _ in range(2):
            with pytest.raises(ProcessEnded, match="exit") as caught:
                load(guest, "import os; os._exit(7)")
            assert caught.value.ending.exit_code == 7


def test_an_ending_names_its_signal(house):
    ending = ended(house.guest("author", Limits()), "import os; os.abort()")
    assert (ending.why, ending.signal) == ("signal", signal.SIGABRT)


@pytest.mark.parametrize("level", ["A", "C"])
def test_a_signal_in_a_confined_guest_is_its_own_doing(level):
    sources = ("import os; os.kill(os.getpid(), 15)", "import signal; signal.alarm(1); input()")
    source = sources[0] if level == "C" else sources[1].replace("input()", "signal.pause()")
    with open_sandbox_pool(level) as house:
        ending = ended(house.guest("author", Limits()), source)
        assert ending.why == "signal"
        assert is_ours(ending) == (house.level == "C")


def test_a_guest_that_the_kernel_ends_for_its_processor_time_was_late():
    watch = supervisor._Watch(1, Limits(cpu_seconds=1), None)
    watch.cpu = 3.0
    told = watch.ending(signal.SIGKILL, None, is_confined=True)
    assert (told["why"], told["detail"]) == ("time", "1 s of processor time")
    watch.cpu = 0.5
    assert watch.ending(signal.SIGKILL, None, is_confined=True)["why"] == "judge"


def test_a_second_answer_to_one_request_is_refused(house):
    source = """
import os
from shardlab.sandbox.frame import Frame, frame_bytes
os.write(4, frame_bytes(Frame({'defines': ['forged']})))
"""
    with house.guest("author", Limits()) as guest:
        assert load(guest, source).header == {"defines": ["forged"]}
        time.sleep(0.5)  # until its own answer lies in the pipe as well
        with pytest.raises(ProcessEnded, match="it spoke before it was asked") as caught:
            load(guest, "x = 1")
    assert caught.value.ending.why == "frame"


def test_an_answer_beyond_the_limit_is_refused_before_it_is_read(house):
    source = "import os, struct\nos.write(4, struct.pack('<II', 2, 1001))\nos.read(3, 1)"
    ending = ended(house.guest("author", Limits(answer_bytes=1000)), source)
    assert (ending.why, ending.detail) == ("frame", "a frame of 2 + 1,001 bytes is too long")


def test_output_comes_cut_and_without_orders_to_a_terminal(house):
    with house.guest("author", Limits(output_bytes=20)) as guest:
        load(guest, r"print('\x1b]0;title\x07 café')")
        assert guest.output == "\ufffd]0;title\ufffd café\n"
    assert guest.output == "\ufffd]0;title\ufffd café\n"


def test_a_large_request_and_a_large_answer_do_not_wait_for_each_other(house):
    with house.guest("author", Limits(answer_bytes=64 << 20)) as guest:
        load(guest, "def same(x): return x")
        shape = [4 << 20]
        asked = {"do": "call", "function": "same", "order": ["x"], "mesh": None, "specs": []}
        asked["arguments"] = {"x": {"$array": [0, shape, "uint8"]}}
        data = bytes(range(256)) * (shape[0] // 256)
        assert guest.ask(Frame(asked, (data,))).buffers == (data,)


def test_guests_of_several_submissions_run_at_the_same_time(house):
    with ThreadPoolExecutor(4) as workers:
        assert list(workers.map(lambda _: number(house), range(8))) == [42] * 8


# ------------------------------------------------------------------------------ the levels


def test_a_lower_level_can_be_asked_for_and_a_higher_one_demanded():
    with open_sandbox_pool("C") as house:
        assert house.level == "C"
    with pytest.raises(SandboxLevelUnavailable, match="cannot be confined at level A here"):
        open_sandbox_pool("B", at_least="A")


@pytest.mark.parametrize(
    ("refused", "level", "why"),
    [
        ("unshare", "B", "A: namespaces are refused: Operation not permitted"),
        ("mount", "B", "A: namespaces are refused: Operation not permitted"),
        ("landlock", "C", "A: this kernel has no Landlock"),
    ],
)
def test_what_a_kernel_refuses_lowers_the_level_and_is_named(refused, level, why):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    script = str(Path(__file__).parent / "refusing.py")
    done = subprocess.run(
        [sys.executable, script, refused], capture_output=True, text=True, env=environment
    )
    assert done.stdout.splitlines() == [level, why], done.stderr


FEW_FILES = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), 4096))
warnings.simplefilter("error")
import test_house
from shardlab.sandbox.pool import open_sandbox_pool
with open_house() as house:
    print(house.level, test_house.number(house))
"""


def test_a_small_limit_of_open_files_lowers_no_level(house):
    """On macOS it is 256."""
    done = in_a_process(FEW_FILES, "32")
    assert done.stdout.split() == [house.level, "42"], done.stderr


NOTHING = """
import os, resource, sys
from shardlab.errors import ForkServerFailed
from shardlab.sandbox import kernel
from shardlab.sandbox.pool import open_sandbox_pool
import test_house
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
    with open_house() as house:
        print(house.level, test_house.number(house))
except ForkServerFailed as error:
    print(error)
"""


def test_without_the_kernels_figures_an_answer_is_judged_at_the_lowest_level():
    if os.geteuid() != 0:
        pytest.skip("only root can hide /proc")
    done = in_a_process(NOTHING, "proc")
    assert done.stdout.split() == ["C", "42"], done.stderr


def test_where_no_process_can_be_started_the_reason_is_told():
    done = in_a_process(NOTHING, "files")
    assert "C: no fork server: [Errno 24] Too many open files" in done.stdout, done.stderr


def test_a_limit_of_threads_is_not_the_fault_of_an_answer():
    done = in_a_process(NOTHING, "threads")
    told = "this user may have 60 processes and threads; two guests may need 256"
    assert told in done.stdout, done.stderr


UNPREPARED = """
import sys, warnings
from shardlab.sandbox import zygote, house, guest
house._START = house._START.replace(
    "main(int(",
    "import shardlab.sandbox.zygote as z;"
    f"z.confine = lambda room, *_: room.level in {sys.argv[1]!r} and 1 / 0; main(int(",
)
from shardlab.sandbox.pool import open_sandbox_pool
from shardlab.sandbox.frame import Frame
with warnings.catch_warnings(record=True) as caught, open_house() as opened:
    warnings.simplefilter("always")
    print(opened.level, *(str(each.message).splitlines()[0] for each in caught))
    try:
        opened.guest("author", guest.Limits()).ask(Frame({"do": "load"}, (b"x = 1",)))
    except guest.Ended as ended:
        print(ended)
"""


@pytest.mark.parametrize("levels", ["AB", "ABC"])
def test_a_guest_that_fails_before_it_is_confined_is_the_judges_fault_and_told_loudly(levels):
    done = in_a_process(UNPREPARED, levels)
    first, *others = done.stdout.splitlines()
    assert first.startswith("C The judge works at level C, because of an error. A: "), done.stderr
    fault = "judge the process ended before it was confined"
    assert fault in first
    assert others == ([fault] if "C" in levels else [])


def in_a_process(source, *arguments):
    paths = [str(Path(__file__).parent), *(p for p in sys.path if p)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", source, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


ELSEWHERE = """
import os, signal, socket, sys, time
del os.pidfd_open  # as on macOS, which has no /proc either
from shardlab.sandbox.confinement import ConfinementPlan
from shardlab.sandbox.process import Limits
from shardlab.sandbox.supervisor import supervise
for act in (lambda: os._exit(3), lambda: time.sleep(60)):
    pid = os.fork()
    if pid == 0:
        act()
    ours, theirs = socket.socketpair()
    ours.send(b"b")
    supervise(pid, theirs, Limits(wall_seconds=0.5), Room("C"), 0)
    print(ours.recv(1000).decode())
"""


def test_a_guest_is_watched_where_the_kernel_tells_little():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, env=environment
    )
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["why"], first["exit_code"], first["signal"]) == ("exit", 3, None)
    assert (second["why"], second["signal"]) == ("time", signal.SIGKILL)


# ------------------------------------------------------------------- what dies, what is left


def pids_of(house):
    """Return this house's processes below the first."""
    return descendants(house.zygote_pid)


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def pending(house, do):
    """Return how a sleeping guest ended when `do(zygote, supervisor, guest)` was done."""
    with house.guest("author", Limits()) as guest:
        load(guest, "import ctypes; ctypes.CDLL(None).prctl(15, b'this-guest')")
        child = next(pid for pid in pids_of(house) if name_of(pid) == "this-guest")
        supervisor = parents()[child]
        timer = threading.Timer(0.2, do, [house.zygote_pid, supervisor, child])
        timer.start()
        with pytest.raises(ProcessEnded) as caught:
            load(guest, "import time; time.sleep(60)")
        timer.join()
    return caught.value.ending, [supervisor, child]


@pytest.mark.parametrize("level", ["A", "B", "C"])
def test_whoever_is_killed_the_judge_says_that_it_was_not_the_answer(level):
    with open_sandbox_pool(level) as house:
        for who in ("guest", "supervisor", "zygote"):
            place = ("zygote", "supervisor", "guest").index(who)
            kill = partial(kill_one, place)
            ending, pids = pending(house, kill)
            assert ending.why == "judge", who
            assert are_gone(pids), who
            assert number_at_last(house) == 42, who


def test_an_answer_is_heard_though_its_guest_has_ended_since():
    """A trial answers once and ends: often both are known before the first of it is read."""
    with open_sandbox_pool("B") as house:
        for _ in range(60):
            with house._ask_zygote("trial", Limits(wall_seconds=10)) as guest:
                asked = Frame({"hidden": [], "judge": os.getpid()})
                assert "broken" in guest.ask(asked).header


def number_at_last(house):
    """Return what a normal answer gives; one guest that was ready may be ending with its server."""
    try:
        return number(house)
    except ProcessEnded as ended:
        if ended.ending.why != "judge":
            raise
    return number(house)


def kill_one(place, *pids):
    os.kill(pids[place], signal.SIGKILL)


def test_nothing_is_left_when_guests_and_house_are_closed():
    before = open_files()
    house = open_sandbox_pool()
    guests = [house.guest("author", Limits()) for _ in range(3)]
    for guest in guests:
        load(guest, "x = 1")
    pids = [house.zygote_pid, *pids_of(house)]
    assert len(pids) >= 7
    guests[0].close()
    house.close()  # with two guests that nobody closed
    for guest in guests:
        guest.close()
        guest.close()
    assert are_gone(pids)
    assert open_files() == before


JUDGE = """
import os, signal, sys, time
from shardlab.sandbox.frame import Frame
from shardlab.sandbox.process import Limits
from shardlab.sandbox.pool import open_sandbox_pool
house = open_house(sys.argv[1])
guest = house.guest("author", Limits())
guest.ask(Frame({"do": "load"}, (b"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",)))
print(house.level, flush=True)
guest.ask(Frame({"do": "load"}, (b"import time; time.sleep(600)",)))
"""


@pytest.mark.parametrize("level", ["A", "C"])
def test_everything_ends_when_the_judge_is_killed(level):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", JUDGE, level], stdout=subprocess.PIPE, env=environment
    ) as judge:
        assert judge.stdout.readline().strip() in (b"A", b"B", b"C")
        time.sleep(0.2)
        pids = descendants(judge.pid)
        assert len(pids) >= 3
        judge.kill()
    assert are_gone(pids)


def test_answers_in_the_folder_are_never_imported_by_the_fork_server(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with open_sandbox_pool("C") as house:
        assert number(house) == 42
    assert Path.cwd() == tmp_path
