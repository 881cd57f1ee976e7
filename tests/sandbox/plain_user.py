"""Becomes a user without rights and runs a script: `python plain_user.py suite.py A`, as root.

Python may live where only root can go. A mount namespace of its own shows it to that user too.
"""

from __future__ import annotations

import os
import runpy
import stat
import sys
from pathlib import Path

from shardlab.sandbox import kernel

USER = 60599
ELSEWHERE = "/mnt"


def main() -> None:
    script, *arguments = sys.argv[1:]
    kernel.unshare(kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.REC | kernel.PRIVATE)
    for path in (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])):
        open_the_way(os.path.realpath(path))
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.environ["HOME"] = "/"
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def open_the_way(path: str) -> None:
    """Let anybody get to a folder: cover the one that is shut, and show the folder in its cover."""
    shut = next((p for p in reversed(Path(path).parents) if not is_open(p)), None)
    if shut is None:
        return
    kernel.mount("tmpfs", ELSEWHERE, "tmpfs", 0, "mode=755")
    keep = f"{ELSEWHERE}/keep"
    os.mkdir(keep)
    kernel.mount(path, keep, None, kernel.BIND | kernel.REC)
    kernel.mount("tmpfs", str(shut), "tmpfs", 0, "mode=755")
    os.makedirs(path)
    kernel.mount(keep, path, None, kernel.BIND | kernel.REC)


def is_open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


if __name__ == "__main__":
    main()
