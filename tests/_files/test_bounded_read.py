"""Bounded reads: a path is read up to its limit, or rejected without blocking."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from shardlab._files import bounded_read
from shardlab._files.bounded_read import NotRegularFile, open_without_blocking, read_regular_file


def test_a_file_is_read_up_to_one_byte_beyond_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abcdef")
    assert read_regular_file(tmp_path / "file", 6) == b"abcdef"
    assert read_regular_file(tmp_path / "file", 3) == b"abcd"


def test_a_sparse_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert len(read_regular_file(tmp_path / "sparse", 5_000_000)) == 5_000_001


def test_a_pipe_with_a_writer_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"some" * 50_000,))
    writer.start()
    assert read_regular_file(tmp_path / "pipe", 1_000_000) == b"some" * 50_000
    writer.join()


def test_a_pipe_without_a_writer_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_read, "_PIPE_TIMEOUT", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotRegularFile, match=r"a pipe without data for 0\.05 s"):
        read_regular_file(tmp_path / "pipe", 10)


@pytest.mark.parametrize("path", ["/dev/zero", "/tmp"])
def test_devices_and_folders_are_rejected(path: str) -> None:
    with pytest.raises(NotRegularFile, match="folder"):
        read_regular_file(Path(path), 10)
    with pytest.raises(NotRegularFile, match="folder"):
        open_without_blocking(Path(path))


def test_a_symlink_to_itself_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="symbolic links"):
        read_regular_file(tmp_path / "loop", 10)
