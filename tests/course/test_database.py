"""What can happen to a file: kills, two processes, no room, no permission, damage, a newer form."""

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
from shardlab.course.database import STEPS, migrate, version
from shardlab.course.store import open_record
from shardlab.errors import StoreBusy, StoreCorrupt, StoreFull, StoreNewerVersion, StoreUnwritable
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict

# Hands in and judges for ever; says a number only once it is kept.
WRITER = """
import os, sys
from pathlib import Path
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.course.store import open_record

record = open_record(Path(sys.argv[1]))
if "nobody" in sys.argv:
    os.setgid(65534)
    os.setuid(65534)
for i in range(int(sys.argv[2])):
    number = record.hand_in("ring", 1, b"x = %d\\n" % i * 2000, kind="submit", seed=i)
    print("in", number, i, flush=True)
    case = CaseResult("data=2", 1, "data=2", i, (Verdict("WA", "Said."),))
    record.judged(number, Judgement("ring", 1, "C", i, "submit", (case,)))
    print("judged", number, i, flush=True)
"""


@pytest.fixture
def record(tmp_path):
    return open_record(tmp_path / "data")


def writer(record, n=10**6, *more, first="", **options):
    return subprocess.Popen(
        [sys.executable, "-c", first + WRITER, str(record.path.parent), str(n), *more],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def hand_in(record):
    return record.hand_in("ring", 1, b"x = 1\n", kind="run", seed=0)


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


def test_a_kill_at_any_moment_loses_nothing_that_was_kept(record):
    """Killed again and again, also while the file is first made and while it is opened."""
    draw = random.Random(4)
    said = []
    for _ in range(12):
        process = writer(record)
        heard = [process.stdout.readline() for _ in range(draw.choice([0, 1, 2, 5, 8]))]
        time.sleep(draw.uniform(0, 0.25) if not heard else draw.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        said += [line.split() for line in [*heard, *process.communicate()[0].splitlines()]]
    kept = {each.number: each for each in record.submissions()}
    said = [words for words in said if len(words) == 3]  # the last line may be cut off
    handed_in = {int(number): int(i) for what, number, i in said if what == "in"}
    judged = {int(number) for what, number, _ in said if what == "judged"}
    assert len(judged) > 2
    for number, i in handed_in.items():
        assert record.source(number) == b"x = %d\n" % i * 2000
        assert kept[number].seed == i
        # Unfinished, or judged in full: never something between.
        told = record.judgement(number)
        assert told == judgement(i) if kept[number].is_finished else told is None
    assert all(kept[number].is_finished for number in judged)
    with sqlite3.connect(record.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_processes_that_start_and_write_at_once_all_keep_theirs(record):
    at_once = [writer(record, 15) for _ in range(4)]
    said = [each.communicate()[0].split("\n") for each in at_once]
    assert [each.returncode for each in at_once] == [0] * 4
    assert len({line for lines in said for line in lines if line.startswith("in")}) == 60
    assert len(record.submissions()) == 60
    assert all(each.is_finished for each in record.submissions())


def test_a_record_that_another_process_holds_is_waited_for_and_then_named(record, monkeypatch):
    hand_in(record)
    holder = sqlite3.connect(record.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with (
        pytest.raises(StoreBusy, match="Another process has held") as caught,
        database.connected(record.path, patience=0.05),
    ):
        pass
    assert caught.value.where == str(record.path)
    holder.execute("ROLLBACK")
    holder.close()
    hand_in(record)


def test_a_process_that_stops_while_it_makes_the_record_is_waited_for_and_then_named(
    record, monkeypatch
):
    monkeypatch.setattr(database, "PATIENCE", 0.05)
    record.path.parent.mkdir()
    with (record.path.parent / "practice.db.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreBusy, match="Another process has held"):
            hand_in(record)
    assert hand_in(record) == 1


def test_a_full_disk_is_named_and_nothing_is_lost(record):
    """SQLite's own limit on pages stands for the disk; the error is the same."""
    first = hand_in(record)

    def too_much():
        with database.connected(record.path) as connection:
            connection.execute("PRAGMA max_page_count = 1")
            connection.execute("INSERT INTO source VALUES ('d', ?)", (os.urandom(1 << 20),))

    with pytest.raises(StoreFull, match="The disk is full") as caught:
        too_much()
    assert "SHARDLAB_DATA" in caught.value.fix
    assert [each.number for each in record.submissions()] == [first]
    assert hand_in(record) > first


def test_a_disk_that_refuses_to_write_is_named_and_nothing_is_lost(record):
    first = hand_in(record)

    size = record.path.stat().st_size
    small_files = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
    )
    process = writer(record, first=small_files, stderr=subprocess.PIPE)
    told = process.communicate()[1]
    assert process.returncode == 1
    assert "shardlab.errors.StoreUnwritable: [store.unwritable]" in told
    assert "disk I/O error" in told
    assert record.source(first) == b"x = 1\n"
    hand_in(record)


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "data").write_text("mine")
    with pytest.raises(StoreUnwritable, match="cannot be written: ") as caught:
        open_record(tmp_path / "data").submissions()
    assert caught.value.where == str(tmp_path / "data" / "practice.db")
    assert (tmp_path / "data").read_text() == "mine"


def test_a_record_that_may_not_be_written_is_named(record):
    """Root may write everything, so that the writer becomes nobody where we are root."""
    first = hand_in(record)
    for place in (record.path, record.path.parent):
        place.chmod(0o555 if place.is_dir() else 0o444)
    as_whom = []
    if os.getuid() == 0:
        as_whom = ["nobody"]
        for above in list(record.path.parents)[1:4]:  # pytest's own folders are the user's alone
            above.chmod(0o755)
    process = writer(record, 1, *as_whom, stderr=subprocess.PIPE)
    told = process.communicate()[1]
    record.path.parent.chmod(0o755)
    record.path.chmod(0o644)
    assert "shardlab.errors.StoreUnwritable: [store.unwritable]" in told
    assert record.source(first) == b"x = 1\n"


@pytest.mark.parametrize("damage", ["overwritten", "cut off", "another program's"])
def test_a_damaged_record_is_kept_beside_and_a_new_one_begun(record, damage):
    for _ in range(40):
        hand_in(record)
    if damage == "overwritten":
        record.path.write_bytes(b"\x00garbage" * 4096)
    elif damage == "cut off":
        with record.path.open("r+b") as file:
            file.truncate(5000)
    else:
        record.path.unlink()
        with sqlite3.connect(record.path) as connection:
            connection.execute("CREATE TABLE theirs (a)")
        connection.close()
    before = record.path.read_bytes()
    with pytest.raises(StoreCorrupt, match="The record of practice is damaged: ") as caught:
        record.submissions()
    name = caught.value.where.split("kept as ")[1]
    assert (record.path.parent / name).read_bytes() == before
    assert name in caught.value.fix
    assert record.submissions() == ()
    assert hand_in(record) == 1


def test_a_record_of_a_newer_form_is_not_touched(record):
    hand_in(record)
    with sqlite3.connect(record.path) as connection:
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    connection.close()
    before = record.path.read_bytes()
    with pytest.raises(StoreNewerVersion, match=f"has form {len(STEPS) + 1}; this shardlab knows"):
        record.submissions()
    assert record.path.read_bytes() == before


def test_a_migration_happens_as_a_whole_or_not_at_all(tmp_path):
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    steps = [["CREATE TABLE a (x)"], ["ALTER TABLE a ADD COLUMN y"], ["INSERT INTO a VALUES (1)"]]
    migrate(connection, steps[:1])
    connection.execute("INSERT INTO a VALUES (7)")
    with pytest.raises(sqlite3.OperationalError, match="2 columns but 1 values"):
        migrate(connection, steps)
    assert version(connection) == 1
    assert connection.execute("SELECT * FROM a").fetchall() == [(7,)]
    migrate(connection, [*steps[:2], ["INSERT INTO a VALUES (1, 2)"]])
    assert version(connection) == 3
    assert connection.execute("SELECT * FROM a").fetchall() == [(7, None), (1, 2)]
    connection.close()


def test_the_log_is_ahead_and_foreign_keys_hold(record):
    hand_in(record)
    with database.connected(record.path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
    with (
        pytest.raises(StoreUnwritable, match="FOREIGN KEY constraint failed"),
        database.connected(record.path) as connection,
    ):
        connection.execute("INSERT INTO judgement VALUES (99, 'AC', 1, 1, '', x'')")


def test_a_copy_of_the_folder_holds_everything(record, tmp_path):
    hand_in(record)
    shutil.copytree(record.path.parent, tmp_path / "copy")
    assert len(open_record(tmp_path / "copy").submissions()) == 1
