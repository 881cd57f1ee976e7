"""Opens the house for guests at the highest level that this machine holds."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

from shardlab.errors import NoForkServer, NotConfined
from shardlab.sandbox.guest import Level, Limits
from shardlab.sandbox.house import ForkHouse, ZygoteRefused

_LEVELS: tuple[Level, ...] = ("A", "B", "C")
_PROBLEMS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "problems")


def open_house(
    level: Level | None = None,
    hidden: Sequence[str | os.PathLike[str]] = (),
    *,
    at_least: Level = "C",
) -> ForkHouse:
    """Return a house at `level`, or at the highest that holds.

    Guests cannot read `hidden` paths (at A and B), nor the solutions of the built-in catalogue.

    A level is never assumed: the house is attacked from a throw-away guest first. `at_least="A"`
    is for a shared server, which must not start with less. Where a level is not held because of
    an error, and not because the kernel refuses it, a warning says so.
    """
    _check_threads()
    kept = [*(os.fspath(path) for path in hidden), _PROBLEMS]
    refused: list[str] = []
    failed: list[str] = []
    for each in _LEVELS[_LEVELS.index(level or "A") :]:
        if each > at_least:
            break
        try:
            house = ForkHouse(each, kept)
        except ZygoteRefused as error:
            refused.append(f"{each}: {error}")
            failed += refused[-1:] if error.is_error else []
        else:
            if failed:
                words = f"The judge works at level {each}, because of an error. {'; '.join(failed)}"
                warnings.warn(words, RuntimeWarning, stacklevel=2)
            return house
    if at_least != "C":
        raise NotConfined(
            f"Another person's code cannot be confined at level {at_least} here.",
            where="; ".join(refused) or f"level {level} was asked for",
            fix="run it on Linux with user namespaces allowed, or as root; levels: docs/judge.md.",
        )
    raise NoForkServer(
        "The judge's fork server did not start.",
        where="; ".join(refused),
        fix="python -c 'import jax, flax, shardlab' shows what is missing.",
    )


def _check_threads() -> None:
    """Refuse a limit under which XLA aborts for want of threads, as if the answer had done it."""
    import resource  # not everywhere, and this file is imported everywhere

    most, needed = resource.getrlimit(resource.RLIMIT_NPROC)[0], 2 * Limits().n_processes
    if os.geteuid() == 0 or most == resource.RLIM_INFINITY or most >= needed:
        return
    raise NoForkServer(
        "The judge's fork server did not start.",
        where=f"this user may have {most} processes and threads; two guests may need {needed}",
        fix=f"raise that limit: ulimit -u {4 * needed}.",
    )
