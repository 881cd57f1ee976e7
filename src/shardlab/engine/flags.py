"""The device count that a person asks XLA for in its flags."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def count_in(flags: str) -> int | None:
    """Return the count that flags ask for, the last one if there are several.

    >>> count_in("--xla_cpu_foo=1 --xla_force_host_platform_device_count=8")
    8
    """
    found = _FLAG.findall(flags)
    return int(found[-1]) if found and int(found[-1]) > 0 else None


def without_count(flags: str) -> str:
    """Return the flags without the count.

    >>> without_count("--xla_cpu_foo=1 --xla_force_host_platform_device_count=8")
    '--xla_cpu_foo=1'
    """
    return " ".join(_FLAG.sub("", flags).split())


def count_in_environment() -> int | None:
    return count_in(os.environ.get("XLA_FLAGS", ""))


@contextlib.contextmanager
def hidden_count() -> Iterator[None]:
    """Within this block XLA_FLAGS asks for no device count; afterwards it does again."""
    flags = os.environ.get("XLA_FLAGS")
    if flags is None:
        yield
        return
    os.environ["XLA_FLAGS"] = without_count(flags)
    try:
        yield
    finally:
        os.environ["XLA_FLAGS"] = flags
