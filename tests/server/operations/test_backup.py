"""Backup and restore: one state of both databases, checked, and never half a copy."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from click.testing import CliRunner

from server.people.people_server import PeopleServer
from shardlab.cli import main
from shardlab.course.store import open_store
from shardlab.errors import BackupFailed, InvalidBackup
from shardlab.server.database.engine import open_database
from shardlab.server.operations.backup import (
    create_backup,
    delete_old_backups,
    read_backup,
    restore_backup,
)


@pytest.fixture
def data(tmp_path):
    """Return a data folder with an account, a submission, and a progress store."""
    folder = tmp_path / "data"
    server = PeopleServer(folder)
    server.submit(server.person("Ada"))
    server.close()
    open_store(folder).add_submission("shard-map-psum", 1, b"x = 1\n", kind="submit", seed=3)
    return folder


def query(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def test_a_server_goes_on_with_what_was_restored(data, tmp_path):
    backup = create_backup(data, tmp_path / "backups")
    assert sorted(os.listdir(backup.folder)) == ["manifest.json", "practice.db", "server.db"]
    restored = tmp_path / "restored"
    restore_backup(backup.folder, restored)
    server = PeopleServer(restored)
    ada = server.browser()
    assert ada.sign_in("Ada").status_code == 303
    (submission,) = ada.get("/api/v1/practice/submissions").json()
    assert submission["problem"] == "shard-map-psum"
    server.close()
    assert query(restored / "server.db", "PRAGMA journal_mode") == [("wal",)]
    (terminal,) = open_store(restored).list_submissions()
    assert open_store(restored).load_source(terminal.number) == b"x = 1\n"


def test_a_backup_is_readable_by_its_owner_only(data, tmp_path):
    backup = create_backup(data, tmp_path / "backups")
    assert backup.folder.stat().st_mode & 0o077 == 0
    assert (backup.folder / "server.db").stat().st_mode & 0o077 == 0


def test_backups_while_others_write_are_each_one_state_of_both_databases(data, tmp_path):
    # Each round writes its number into both, under the locks of both, as nobody else does.
    paths = [data / "server.db", data / "practice.db"]
    for path in paths:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE round (number INTEGER)")
            connection.execute("INSERT INTO round VALUES (0)")
            connection.commit()
    is_ending = threading.Event()

    def write():
        connections = [sqlite3.connect(p, isolation_level=None, timeout=60) for p in paths]
        number = 0
        while not is_ending.is_set():
            number += 1
            for connection in connections:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("UPDATE round SET number = ?", (number,))
            for connection in reversed(connections):  # committed one after the other
                connection.execute("COMMIT")
        for connection in connections:
            connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(4):
            folder = create_backup(data, tmp_path / "backups").folder
            rounds = {query(folder / p.name, "SELECT number FROM round")[0][0] for p in paths}
            assert len(rounds) == 1
    finally:
        is_ending.set()
        writer.join()


def test_the_newest_backups_are_kept_and_other_folders_left_alone(data, tmp_path):
    target = tmp_path / "backups"
    folders = [create_backup(data, target, now=1e9 + day * 86400).folder for day in range(4)]
    (target / "notes").mkdir()
    incomplete = target / "shardlab-20300101T000000Z"
    incomplete.mkdir()
    assert delete_old_backups(target, 2) == folders[:2]
    assert {path.name for path in target.iterdir()} == {
        *("notes", incomplete.name, folders[2].name, folders[3].name)
    }


def test_an_interrupted_backup_leaves_no_backup_and_the_next_one_clears_up(data, tmp_path):
    target = tmp_path / "backups"
    # Killed where it hurts most: both copies are there, and the manifest is not.
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from shardlab.server.operations import backup\n"
        "backup._write_durably = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "backup.create_backup(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", code, str(data), str(target)]
    process = subprocess.run(command, timeout=300, check=False)
    assert process.returncode == -signal.SIGKILL
    (left,) = target.iterdir()
    assert left.name.endswith(".partial")
    with pytest.raises(InvalidBackup, match="not a complete backup"):
        read_backup(left)
    backup = create_backup(data, target)
    assert list(target.iterdir()) == [backup.folder]


def test_a_full_disk_leaves_no_backup(data, tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(BackupFailed, match="not made"):
            create_backup(data, tmp_path / "backups")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list((tmp_path / "backups").iterdir()) == []


@pytest.mark.parametrize("position", [100, 5000])
def test_a_changed_byte_is_found_before_anything_is_restored(data, tmp_path, position):
    folder = create_backup(data, tmp_path / "backups").folder
    content = bytearray((folder / "server.db").read_bytes())
    content[position] ^= 1
    (folder / "server.db").write_bytes(content)
    with pytest.raises(InvalidBackup, match="has changed"):
        restore_backup(folder, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_damaged_database_makes_no_backup(data, tmp_path):
    with closing(sqlite3.connect(data / "server.db")) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("UPDATE submission SET person = 999")
        connection.commit()
    with pytest.raises(InvalidBackup, match="a row of submission has no owner"):
        create_backup(data, tmp_path / "backups")
    assert list((tmp_path / "backups").iterdir()) == []


def test_a_backup_of_a_newer_release_is_refused(data, tmp_path):
    folder = create_backup(data, tmp_path / "backups").folder
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"schema": "9999", "shardlab": "7.0"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidBackup, match="schema version 9999") as caught:
        restore_backup(folder, tmp_path / "restored")
    assert "7.0" in caught.value.fix


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"format": "shardlab-backup"}'])
def test_other_manifests_are_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InvalidBackup, match="not the manifest"):
        read_backup(tmp_path)


def test_the_commands_copy_check_and_never_overwrite(data, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    target = tmp_path / "backups"
    for _ in range(3):
        result = run("backup", target, "--data", data, "--keep", 2)
        assert (result.exit_code, "checked" in result.output) == (0, True), result.output
    assert len(list(target.iterdir())) == 2
    folder = max(target.iterdir())
    assert "complete and intact" in run("restore", folder, "--check").output
    over = run("restore", folder, "--data", data)
    assert over.exit_code == 2
    assert "[server.invalid_backup] The data folder has server.db and practice.db" in over.output
    assert "start the server on it" in run("restore", folder, "--data", tmp_path / "new").output
    open_database(tmp_path / "new").close()
    missing = run("backup", target, "--data", tmp_path / "nowhere")
    assert "[server.backup] There is no database" in missing.output
