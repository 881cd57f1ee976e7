"""Saves are noticed however an editor makes them, once each, and never half of one."""

from __future__ import annotations

import os

import pytest

from shardlab.course.file_watch import FileWatch


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("one\n")
    return path


def looks(watch, n=4):
    return [watch.has_changed() for _ in range(n)]


def in_place(path, text):
    path.write_text(text)


def atomically(path, text):
    other = path.with_name(".a.py.swp")
    other.write_text(text)
    other.replace(path)


def by_renaming_first(path, text):
    path.rename(path.with_name("a.py~"))
    path.write_text(text)


@pytest.mark.parametrize("save", [in_place, atomically, by_renaming_first])
def test_a_save_is_noticed_once(file, save):
    watch = FileWatch(file)
    assert looks(watch) == [False] * 4
    save(file, "two\n")
    assert looks(watch).count(True) == 1
    save(file, "three\n")
    assert looks(watch).count(True) == 1


def test_a_save_of_the_same_size_in_the_same_instant_is_noticed(file):
    """Two saves within one tick of the file system's clock leave size and time as they were."""
    watch = FileWatch(file)
    before = file.stat()
    atomically(file, "two\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert looks(watch).count(True) == 1


def test_a_save_that_changes_nothing_is_none(file):
    watch = FileWatch(file)
    os.utime(file)
    atomically(file, "one\n")
    assert looks(watch) == [False] * 4


def test_half_of_a_save_is_waited_for(file):
    watch = FileWatch(file)
    file.write_text("")
    assert watch.has_changed() is False
    file.write_text("tw")
    assert watch.has_changed() is False
    file.write_text("two\n")
    assert watch.has_changed() is False
    assert watch.has_changed() is True


def test_a_file_that_is_gone_for_a_while_is_waited_for(file):
    watch = FileWatch(file)
    file.unlink()
    assert looks(watch) == [False] * 4
    file.write_text("two\n")
    assert looks(watch).count(True) == 1


def test_a_file_that_comes_back_as_it_was_is_no_save(file):
    watch = FileWatch(file)
    file.unlink()
    looks(watch)
    file.write_text("one\n")
    assert looks(watch) == [False] * 4


def test_a_file_that_stays_away_is_gone_once(file):
    watch = FileWatch(file)
    file.unlink()
    gone = []
    for _ in range(30):
        watch.has_changed()
        gone.append(watch.was_deleted)
    assert gone.count(True) == 1
    assert not any(gone[:3])  # an editor that puts another in its place


def test_a_save_without_a_change_is_reported_once(file):
    watch = FileWatch(file)
    assert not watch.was_saved_unchanged
    atomically(file, "one\n")
    polls = []
    for _ in range(4):
        assert not watch.has_changed()
        polls.append(watch.was_saved_unchanged)
    assert polls.count(True) == 1
