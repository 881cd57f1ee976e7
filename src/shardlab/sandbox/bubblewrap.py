"""Starts the fork server inside bubblewrap, where it is installed and works.

A second wall, made by others: whatever our own confinement forgets, the fork server and everything
below it see a read-only file system, no network and no other processes. It is not required, and no
level depends on it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence

from shardlab.sandbox.cgroup import find_group_parent

DISABLE_VARIABLE = "SHARDLAB_NO_BUBBLEWRAP"
_TRIAL_SECONDS = 20.0


def wrap_command(command: Sequence[str]) -> list[str]:
    """Return a command that runs another one inside bubblewrap. The command itself stays outside.

    bubblewrap ends everything with the thread that started it, which may be a short one of the
    client. So a shell is its parent, which lives as long as the fork server.
    """
    bubblewrap = find_bubblewrap()
    assert bubblewrap
    return ["/bin/sh", "-c", '"$@"; exit "$?"', "sh", bubblewrap, *_options(), *command]


def _options() -> list[str]:
    options = ["--die-with-parent", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    options += ["--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    groups = find_group_parent()
    if groups is not None:
        options += ["--bind", str(groups), str(groups)]
    # Our own namespaces, and a user of its own for each process, need capabilities. Without this
    # option bubblewrap would drop all of root's.
    return [*options, "--cap-add", "ALL"] if os.geteuid() == 0 else [*options, "--unshare-user"]


@functools.cache
def find_bubblewrap() -> str:
    """Return the path of bubblewrap if it works here, otherwise an empty text."""
    return "" if missing_reason() else shutil.which("bwrap") or ""


@functools.cache
def missing_reason() -> str:
    """Return why bubblewrap is not used; empty if it is."""
    path = shutil.which("bwrap")
    if os.environ.get(DISABLE_VARIABLE):
        return f"{DISABLE_VARIABLE} is set"
    if path is None:
        return "bubblewrap is not installed"
    # An actual run: user namespaces may be forbidden, and a container may deny a mount.
    try:
        completed = subprocess.run(
            [path, *_options(), "/bin/sh", "-c", "exit 42"],
            capture_output=True,
            timeout=_TRIAL_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    if completed.returncode == 42:
        return ""
    lines = completed.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
    return f"bubblewrap does not work here: {lines[-1][:200]}"
