"""What can happen to the file: kills, two processes, a full disk, no permission, corruption."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from shardlab.course import database
from shardlab.course.database import MIGRATIONS, migrate_database, schema_version
from shardlab.course.store import open_store
from shardlab.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNewerVersion,
    StoreUnwritable,
)
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict

# Submits and judges in a loop; prints a number only after it is stored. The lock timeout is large
# because a loaded machine may be slow.
WRITER = """
import os, sys
from pathlib import Path
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.course import database
from shardlab.course.store import open_store

database.LOCK_SECONDS = 600
store = open_store(Path(sys.argv[1]))
if "nobody" in sys.argv:
    os.setgid(65534)
    os.setuid(65534)
for i in range(int(sys.argv[2])):
    number = store.add_submission("ring", 1, b"x = %d\\n" % i * 2000, kind="submit", seed=i)
    print("in", number, i, flush=True)
    case = CaseResult(
        name="data=2", part=1, mesh="data=2", seed=i, verdicts=(Verdict(code="WA", what="Said."),)
    )
    judgement = Judgement(
        problem="ring", content_version=1, level="C", seed=i, kind="submit", cases=(case,)
    )
    store.save_judgement(number, judgement)
    print("judged", number, i, flush=True)
"""


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "data")


def writer(store, n=10**6, *more, first="", **options):
    return subprocess.Popen(
        [sys.executable, "-c", first + WRITER, str(store.path.parent), str(n), *more],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def submit(store):
    return store.add_submission("ring", 1, b"x = 1\n", kind="run", seed=0)


def judgement(seed):
    case = CaseResult(
        name="data=2",
        part=1,
        mesh="data=2",
        seed=seed,
        verdicts=(Verdict(code="WA", what="Said."),),
    )
    return Judgement(
        problem="ring", content_version=1, level="C", seed=seed, kind="submit", cases=(case,)
    )


def test_a_kill_at_any_moment_loses_nothing_that_was_kept(store):
    """Killed again and again, also while the file is first made and while it is opened."""
    draw = random.Random(4)
    lines = []
    for _ in range(12):
        process = writer(store)
        first_lines = [process.stdout.readline() for _ in range(draw.choice([0, 1, 2, 5, 8]))]
        time.sleep(draw.uniform(0, 0.25) if not first_lines else draw.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].splitlines()
        lines += [line.split() for line in [*first_lines, *rest]]
    submissions = {submission.number: submission for submission in store.list_submissions()}
    events = [words for words in lines if len(words) == 3]  # the last line may be incomplete
    submitted = {int(number): int(i) for event, number, i in events if event == "in"}
    judged = {int(number) for event, number, _ in events if event == "judged"}
    assert len(judged) > 2
    for number, i in submitted.items():
        assert store.load_source(number) == b"x = %d\n" % i * 2000
        assert submissions[number].seed == i
        # Unfinished, or judged in full: never in between.
        stored = store.load_judgement(number)
        is_finished = submissions[number].is_finished
        assert stored == judgement(i) if is_finished else stored is None
    assert all(submissions[number].is_finished for number in judged)
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_processes_that_start_and_write_at_once_all_keep_theirs(store):
    processes = [writer(store, 15) for _ in range(4)]
    outputs = [process.communicate()[0].split("\n") for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len({line for lines in outputs for line in lines if line.startswith("in")}) == 60
    assert len(store.list_submissions()) == 60
    assert all(submission.is_finished for submission in store.list_submissions())


def test_a_store_that_another_process_locks_is_waited_for_and_then_reported(store, monkeypatch):
    submit(store)
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with (
        pytest.raises(StoreBusy, match="Another process has locked") as caught,
        database.connect(store.path, lock_seconds=0.05),
    ):
        pass
    assert caught.value.where == str(store.path)
    holder.execute("ROLLBACK")
    holder.close()
    submit(store)


def test_a_process_that_stops_while_it_makes_the_store_is_waited_for_and_then_reported(
    store, monkeypatch
):
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.05)
    store.path.parent.mkdir()
    with (store.path.parent / "practice.db.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreBusy, match="Another process has locked"):
            submit(store)
    assert submit(store) == 1


def test_a_full_disk_is_reported_and_nothing_is_lost(store):
    """SQLite's own limit on pages stands for the disk; the error is the same."""
    first = submit(store)

    def too_much():
        with database.connect(store.path) as connection:
            connection.execute("PRAGMA max_page_count = 1")
            connection.execute("INSERT INTO source VALUES ('d', ?)", (os.urandom(1 << 20),))

    with pytest.raises(StoreFull, match="The disk is full") as caught:
        too_much()
    assert "SHARDLAB_DATA" in caught.value.fix
    assert [submission.number for submission in store.list_submissions()] == [first]
    assert submit(store) > first


FULL_DISK = """
mount -t tmpfs -o size=64k tmpfs "$1" || exit 77
head -c "$2" /dev/zero > "$1/other" 2>/dev/null
SHARDLAB_DATA="$1/data" "$3" -m shardlab practice hint shard-map-psum
"""


@pytest.mark.parametrize("n_bytes", [20_000, 45_000, 61_000, 65_536])
def test_a_disk_that_is_really_full_is_called_full(tmp_path, n_bytes):
    # Whatever SQLite calls it: "disk I/O error" for the index of its log, and in the middle of a
    # migration "cannot rollback". From 20,000 bytes on, the store does not fit any more.
    arguments = ["sh", "-c", FULL_DISK, "sh", str(tmp_path), str(n_bytes), sys.executable]
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare, to mount a small disk")
    done = subprocess.run(
        [unshare, "--user", "--map-root-user", "--mount", *arguments],
        capture_output=True,
        text=True,
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip("no user namespaces, to mount a small disk")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("[store.full] The disk is full"), done.stderr


def test_a_disk_that_refuses_to_write_is_reported_and_nothing_is_lost(store):
    first = submit(store)

    size = store.path.stat().st_size
    small_files = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
    )
    process = writer(store, first=small_files, stderr=subprocess.PIPE)
    stderr = process.communicate()[1]
    assert process.returncode == 1
    assert "shardlab.errors.StoreUnwritable: [store.unwritable]" in stderr
    assert "disk I/O error" in stderr
    assert store.load_source(first) == b"x = 1\n"
    submit(store)


def test_a_folder_that_is_a_file_is_reported(tmp_path):
    (tmp_path / "data").write_text("mine")
    with pytest.raises(StoreUnwritable, match="cannot be written: ") as caught:
        open_store(tmp_path / "data").list_submissions()
    assert caught.value.where == str(tmp_path / "data" / "practice.db")
    assert (tmp_path / "data").read_text() == "mine"


def test_a_store_that_may_not_be_written_is_reported(store):
    """Root may write everything, so that the writer becomes nobody where we are root."""
    first = submit(store)
    for place in (store.path, store.path.parent):
        place.chmod(0o555 if place.is_dir() else 0o444)
    as_whom = []
    if os.getuid() == 0:
        as_whom = ["nobody"]
        for above in list(store.path.parents)[1:4]:  # pytest's own folders are the user's alone
            above.chmod(0o755)
    process = writer(store, 1, *as_whom, stderr=subprocess.PIPE)
    stderr = process.communicate()[1]
    store.path.parent.chmod(0o755)
    store.path.chmod(0o644)
    assert "shardlab.errors.StoreUnwritable: [store.unwritable]" in stderr
    assert store.load_source(first) == b"x = 1\n"


@pytest.mark.parametrize("damage", ["overwritten", "cut off", "another program's"])
def test_a_corrupt_store_is_moved_aside_and_a_new_one_created(store, damage):
    for _ in range(40):
        submit(store)
    if damage == "overwritten":
        store.path.write_bytes(b"\x00garbage" * 4096)
    elif damage == "cut off":
        with store.path.open("r+b") as file:
            file.truncate(5000)
    else:
        store.path.unlink()
        with sqlite3.connect(store.path) as connection:
            connection.execute("CREATE TABLE theirs (a)")
        connection.close()
    before = store.path.read_bytes()
    with pytest.raises(StoreCorrupt, match="The progress store is corrupt: ") as caught:
        store.list_submissions()
    name = caught.value.where.split("moved to ")[1]
    assert (store.path.parent / name).read_bytes() == before
    assert name in caught.value.fix
    assert store.list_submissions() == ()
    assert submit(store) == 1


def test_a_store_of_a_newer_version_is_not_touched(store):
    submit(store)
    with sqlite3.connect(store.path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    before = store.path.read_bytes()
    with pytest.raises(StoreNewerVersion, match=f"has schema version {len(MIGRATIONS) + 1}"):
        store.list_submissions()
    assert store.path.read_bytes() == before


def test_a_migration_happens_as_a_whole_or_not_at_all(tmp_path):
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    migrations = [
        ["CREATE TABLE a (x)"],
        ["ALTER TABLE a ADD COLUMN y"],
        ["INSERT INTO a VALUES (1)"],
    ]
    migrate_database(connection, migrations[:1])
    connection.execute("INSERT INTO a VALUES (7)")
    with pytest.raises(sqlite3.OperationalError, match="2 columns but 1 values"):
        migrate_database(connection, migrations)
    assert schema_version(connection) == 1
    assert connection.execute("SELECT * FROM a").fetchall() == [(7,)]
    migrate_database(connection, [*migrations[:2], ["INSERT INTO a VALUES (1, 2)"]])
    assert schema_version(connection) == 3
    assert connection.execute("SELECT * FROM a").fetchall() == [(7, None), (1, 2)]
    connection.close()


def test_the_log_is_ahead_and_foreign_keys_hold(store):
    submit(store)
    with database.connect(store.path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
    with (
        pytest.raises(StoreUnwritable, match="FOREIGN KEY constraint failed"),
        database.connect(store.path) as connection,
    ):
        connection.execute("INSERT INTO judgement VALUES (99, 'AC', 1, 1, '', x'')")


def test_a_copy_of_the_folder_holds_everything(store, tmp_path):
    submit(store)
    shutil.copytree(store.path.parent, tmp_path / "copy")
    assert len(open_store(tmp_path / "copy").list_submissions()) == 1


def test_the_log_stays_while_it_is_held_open(tmp_path):
    store = open_store(tmp_path)
    log = store.path.with_name(store.path.name + "-wal")
    store.load_progress()
    assert not log.exists()  # deleted by the last connection
    with database.hold_log_open(store.path):
        store.load_progress()
        assert log.exists()
        store.record_start("a-problem")  # it holds no lock
        assert store.latest_problem() == "a-problem"
    assert not log.exists()


def test_a_log_that_cannot_be_opened_is_reported_by_the_first_operation(tmp_path):
    path = tmp_path / "progress.db"
    path.mkdir()
    with database.hold_log_open(path), pytest.raises(StoreError), database.connect(path):
        pass
