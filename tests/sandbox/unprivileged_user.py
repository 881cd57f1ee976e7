"""Runs a script as a user without rights: `python unprivileged_user.py attack_suite.py A`, as root.

Python may be installed where only root can go. A mount namespace makes it readable for that user.
"""

from __future__ import annotations

import os
import runpy
import stat
import sys
from pathlib import Path

from shardlab.sandbox import kernel

USER = 60599
TEMPORARY_MOUNT = "/mnt"


def main() -> None:
    script, *arguments = sys.argv[1:]
    kernel.unshare(kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.REC | kernel.PRIVATE)
    for path in (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])):
        make_reachable(os.path.realpath(path))
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.environ["HOME"] = "/"
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def make_reachable(path: str) -> None:
    """Make a folder reachable: mount over the closed folder above it, and bind it there again."""
    closed = next((p for p in reversed(Path(path).parents) if not is_open(p)), None)
    if closed is None:
        return
    kernel.mount("tmpfs", TEMPORARY_MOUNT, "tmpfs", 0, "mode=755")
    keep = f"{TEMPORARY_MOUNT}/keep"
    os.mkdir(keep)
    kernel.mount(path, keep, None, kernel.BIND | kernel.REC)
    kernel.mount("tmpfs", str(closed), "tmpfs", 0, "mode=755")
    os.makedirs(path)
    kernel.mount(keep, path, None, kernel.BIND | kernel.REC)


def is_open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


if __name__ == "__main__":
    main()
