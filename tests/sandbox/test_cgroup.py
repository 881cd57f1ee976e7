"""Memory limits by cgroup v2: found only where they can be set, and read as the kernel writes them.

Few machines let a test create groups. The files of the tree are plain text, so most of this reads
and writes such files in a folder; the last test needs a kernel that allows it.
"""

from __future__ import annotations

import os
import signal
import sys

import pytest

from shardlab.sandbox import cgroup, supervisor
from shardlab.sandbox.cgroup import MemoryGroup, create_memory_group, find_group_parent
from shardlab.sandbox.process import ProcessLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A cgroup tree with one slice that has the memory controller, and a scope inside of it."""
    scope = tmp_path / "tree" / "user.slice" / "mine.scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.subtree_control").write_text("")
    (scope.parent / "cgroup.subtree_control").write_text("cpu memory pids")
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "mountinfo").write_text(
        "22 1 0:20 / /proc rw - proc proc rw\n"
        f"30 22 0:26 / {tmp_path / 'tree'} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    )
    (proc / "cgroup").write_text("1:name=systemd:/x\n0::/user.slice/mine.scope\n")
    make_folder = os.mkdir

    def make_group(path, mode=0o777, *, dir_fd=None):
        """The kernel fills a new group with its files."""
        make_folder(path, mode, dir_fd=dir_fd)
        fd = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
        for name in ("memory.max", "memory.swap.max", "memory.oom.group", "cgroup.procs"):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.close(fd)

    monkeypatch.setattr(cgroup.os, "mkdir", make_group)
    return tmp_path


def test_the_parent_of_our_own_group_is_used_if_its_children_have_the_controller(tree):
    assert find_group_parent(tree / "proc") == tree / "tree" / "user.slice"


def test_without_the_controller_or_the_tree_there_is_no_group(tree):
    (tree / "tree/user.slice/cgroup.subtree_control").write_text("cpu pids")
    assert find_group_parent(tree / "proc") is None
    (tree / "proc/mountinfo").write_text("22 1 0:20 / /proc rw - proc proc rw\n")
    assert find_group_parent(tree / "proc") is None
    assert find_group_parent(tree / "nothing") is None
    assert create_memory_group(-1, 1 << 20) is None


def test_a_group_gets_its_limit_and_reports_what_the_kernel_counts(tree):
    parent_fd = os.open(tree / "tree/user.slice", os.O_RDONLY)
    group = MemoryGroup(parent_fd, 1 << 20)
    (folder,) = (tree / "tree/user.slice").glob("shardlab-*")
    contents = {name: (folder / name).read_text() for name in os.listdir(folder)}
    assert contents == {
        "memory.max": "1048576",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cgroup.procs": "",
    }
    group.enter()
    assert (folder / "cgroup.procs").read_text() == "0"  # the process that writes
    assert not group.has_exceeded_limit()
    (folder / "memory.current").write_text("4096\n")
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n")
    assert group.memory_bytes() == 4096
    assert group.has_exceeded_limit()
    group.close()
    os.close(parent_fd)


def test_a_process_that_the_kernel_ends_in_its_group_has_exceeded_its_memory():
    watch = supervisor.ProcessWatch(1, ProcessLimits(), None)
    reason = watch.exit_reason(signal.SIGKILL, "memory", is_confined=True)
    assert (reason.kind, reason.signal) == ("memory", signal.SIGKILL)


def test_the_kernel_ends_a_process_that_exceeds_the_limit_of_its_group():
    parent = find_group_parent()
    if parent is None:
        pytest.skip("this user can create no cgroup with a memory limit")
    parent_fd = os.open(parent, os.O_RDONLY)
    group = MemoryGroup(parent_fd, 64 << 20)
    pid = os.fork()
    if pid == 0:
        group.enter()
        os._exit(len([b"x" * (1 << 20) for _ in range(256)]) & 1)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert group.has_exceeded_limit()
    group.close()
    os.close(parent_fd)
    assert not list(parent.glob(f"shardlab-{os.getpid()}-*"))
