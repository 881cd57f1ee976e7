"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any


def describe() -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            names = [line.split(":", 1)[1].strip() for line in info if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
