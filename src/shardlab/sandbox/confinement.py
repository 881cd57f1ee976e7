"""What a process does to itself before it runs another person's code."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass

from shardlab.sandbox import kernel
from shardlab.sandbox.landlock import restrict
from shardlab.sandbox.process import Level, Limits
from shardlab.sandbox.seccomp import filter_program

_FIRST_USER = 60600  # no system hands these out: neither to people nor to services
_N_USERS = 512
_MAX_CPUS = 8


@dataclass(frozen=True, kw_only=True)
class ConfinementPlan:
    """What the zygote has prepared for its guests."""

    level: Level
    rules: int = -1  # Landlock
    proc: int = -1  # the /proc of the zygote's own processes
    is_reachable: bool = True  # whether any user can read what guests need


def confine(room: ConfinementPlan, limits: Limits, slot: int) -> None:
    """Give up all that a guest does not need. There is no way back."""
    _limit(limits, counts_processes=os.geteuid() == 0)
    os.chdir("/")
    os.umask(0o077)
    _spread(slot)
    if os.geteuid() == 0:
        _become_nobody(_FIRST_USER + slot % _N_USERS, room)
    elif room.level == "A":
        kernel.drop_bound()
        kernel.set_capabilities()
    if sys.platform != "linux":
        return
    kernel.no_new_privileges()
    kernel.keep_secret()
    kernel.die_with_parent()
    if room.rules >= 0:
        restrict(room.rules)
        os.close(room.rules)
    if room.level != "C":
        kernel.set_filter(filter_program(os.getpid()))


def _limit(limits: Limits, *, counts_processes: bool) -> None:
    """Set the limits that the kernel keeps. Time and memory in use are the supervisor's."""
    wanted = {
        "RLIMIT_CPU": int(limits.cpu_seconds) + 2,
        "RLIMIT_AS": limits.address_bytes,
        "RLIMIT_DATA": limits.data_bytes,
        "RLIMIT_FSIZE": 16 << 20,
        "RLIMIT_NOFILE": limits.n_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    if counts_processes:
        # It counts the threads of a user: a plain one has others, and two houses may share one
        # of ours. The supervisor counts exactly; this is for what is quicker than it.
        wanted["RLIMIT_NPROC"] = 4 * limits.n_processes
    for name, value in wanted.items():
        number = getattr(resource, name, None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(number, (value, value))
        except (OSError, ValueError):
            if sys.platform == "linux":
                raise  # macOS knows the name of some that it does not have


def _become_nobody(user: int, room: ConfinementPlan) -> None:
    """Become a user that owns nothing, another one for each guest."""
    keep = 0
    if not room.is_reachable:
        # Python may live in root's own folder: then reading past its doors stays allowed, and
        # Landlock alone says what can be read.
        kernel.keep_capabilities()
        keep = 1 << kernel.DAC_READ_SEARCH
    if sys.platform == "linux":
        kernel.drop_bound(keep)
    os.setgroups([])
    os.setregid(user, user)  # as root both set the saved one too
    os.setreuid(user, user)
    if keep:
        kernel.set_capabilities(keep)


def _spread(slot: int) -> None:
    """Use a few processors of a large machine: XLA starts threads for each that it sees."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > _MAX_CPUS:
        first = slot * _MAX_CPUS % len(cpus)
        os.sched_setaffinity(0, (cpus + cpus)[first : first + _MAX_CPUS])
