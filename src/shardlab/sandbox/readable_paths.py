"""What a guest may read: Python, its packages, the system's libraries. Never what is hidden.

Hidden folders can lie inside readable ones (the catalogue's solutions lie inside this package), so
a folder that contains one is replaced by all its other entries:

>>> import tempfile, pathlib
>>> top = pathlib.Path(tempfile.mkdtemp()).resolve()
>>> for name in ("a", "b/open", "b/closed"):
...     (top / name).mkdir(parents=True)
>>> readable, listable = around([str(top)], [str(top / "b/closed")])
>>> sorted(p[len(str(top)):] for p in readable), sorted(p[len(str(top)):] for p in listable)
(['/a', '/b/open'], ['', '/b'])
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence

_SYSTEM = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/dev/null",
    "/dev/urandom",
    "/proc/cpuinfo",  # XNNPACK and XLA look at both, and complain into a person's output
    "/sys/devices/system/cpu",
)


def around(paths: Sequence[str], hidden: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what to allow so that nothing hidden is: paths to read, and folders to list only."""
    readable: list[str] = []
    listable: list[str] = []
    for path in paths:
        if any(is_within(path, each) for each in hidden):
            continue
        if not any(is_within(each, path) for each in hidden):
            readable.append(path)
            continue
        listable.append(path)
        inside = [os.path.join(path, name) for name in sorted(os.listdir(path))]
        # A symbolic link is not followed here: what it leads to is readable in its own right.
        below = around([each for each in inside if not os.path.islink(each)], hidden)
        readable += below[0]
        listable += below[1]
    return readable, listable


def guest_paths() -> list[str]:
    """Return the places that a guest's Python and JAX are loaded from, none within another."""
    stdlib = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    libraries = [os.path.join(sys.base_prefix, "lib")]
    found = {os.path.realpath(p) for p in (*stdlib, *libraries, *_loaded_from()) if p}
    found |= {p for p in _SYSTEM if not os.path.islink(p)}
    # The way to a file may lead through links (/lib -> /usr/lib): rules are about where it ends.
    found |= {os.path.realpath(p) for p in _SYSTEM}
    there = sorted(p for p in found if os.path.exists(p))
    return [p for p in there if not any(q != p and is_within(p, q) for q in there)]


def _loaded_from() -> set[str]:
    """Return package folders of sys.path whole, and of other folders only what was imported.

    A person's own folder (an editable install, PYTHONPATH) holds more than a guest should see.
    """
    roots = [os.path.realpath(entry) for entry in sys.path if entry and os.path.isdir(entry)]
    found = {root for root in roots if root.endswith(("site-packages", "dist-packages"))}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or not file:
            continue
        file = os.path.realpath(file)
        is_package = os.path.basename(file) == "__init__.py"
        found.add(os.path.dirname(file) if is_package else file)
    return found


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder or lies inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
