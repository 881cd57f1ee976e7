"""The secret of local mode: the same after a restart, and readable by its user only."""

from __future__ import annotations

import stat

from shardlab.server.local_secret import SECRET_FILE, read_local_secret


def test_the_secret_is_the_same_after_a_restart_and_private(tmp_path):
    secret = read_local_secret(tmp_path)
    path = tmp_path / SECRET_FILE
    assert len(secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    assert read_local_secret(tmp_path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [SECRET_FILE]


def test_a_damaged_secret_is_replaced(tmp_path):
    (tmp_path / SECRET_FILE).write_bytes(b"half")
    secret = read_local_secret(tmp_path)
    assert len(secret) == 32
    assert read_local_secret(tmp_path) == secret


def test_a_folder_that_does_not_exist_gives_a_secret_of_this_start(tmp_path):
    assert len(read_local_secret(tmp_path / "missing")) == 32
