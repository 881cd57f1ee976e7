"""What a process does to itself before it runs an untrusted program: limits, user, files, calls."""

from __future__ import annotations

import os
import resource
import socket
import sys
from dataclasses import dataclass

from shardlab.sandbox import kernel
from shardlab.sandbox.landlock import restrict_files
from shardlab.sandbox.process import Level, ProcessLimits
from shardlab.sandbox.seccomp import closing_filter_program, filter_program

# Numbers that no distribution assigns, neither to users nor to services.
_FIRST_USER = 60600
_N_USERS = 512
_MAX_CPUS = 8


@dataclass(frozen=True, kw_only=True)
class ConfinementPlan:
    """What the fork server has prepared for the processes that it forks."""

    level: Level
    landlock_fd: int = -1
    proc_fd: int = -1  # the /proc of the fork server's own processes
    group_fd: int = -1  # the cgroup in which each process gets one of its own
    is_reachable: bool = True  # every user can read the files that the processes need
    unlisted_folders: tuple[str, ...] = ()  # of importable modules, beside something hidden


LISTENER = b"l"  # comes to the supervisor with the descriptor of rejected calls


def confine_process(
    plan: ConfinementPlan, limits: ProcessLimits, slot: int, supervisor: socket.socket
) -> None:
    """Give up everything that the process does not need. This cannot be undone.

    The order matters, because no step may take a right that a later step needs: the user changes
    while that is still allowed, and seccomp comes last, because it forbids all the other steps.
    """
    _set_resource_limits(limits, counts_processes=os.geteuid() == 0)
    os.chdir("/")
    os.umask(0o077)
    _restrict_cpus(slot)
    if os.geteuid() == 0:
        _become_unprivileged_user(_FIRST_USER + slot % _N_USERS, plan)
    elif plan.level == "A":
        kernel.drop_bounding_set()
        kernel.set_capabilities()
    if sys.platform != "linux":
        return
    kernel.forbid_new_privileges()
    kernel.forbid_inspection()
    kernel.die_with_parent()
    if plan.landlock_fd >= 0:
        restrict_files(plan.landlock_fd)
        os.close(plan.landlock_fd)
    if plan.level != "C":
        _filter_system_calls(supervisor)


def _filter_system_calls(supervisor: socket.socket) -> None:
    """Set the filter; let the supervisor count what it rejects, where the kernel can do that.

    Between the two filters nothing may happen that the first one rejects: the process would wait
    for a supervisor that does not have the listener yet.
    """
    closing_filter = closing_filter_program()
    try:
        listener_fd = kernel.set_notifying_filter(filter_program(os.getpid(), notifies=True))
    except OSError:  # an older kernel, or a container whose own filter has a listener
        kernel.set_seccomp_filter(filter_program(os.getpid()))
        return
    socket.send_fds(supervisor, [LISTENER], [listener_fd])
    os.close(listener_fd)
    kernel.add_seccomp_filter(closing_filter)


def _set_resource_limits(limits: ProcessLimits, *, counts_processes: bool) -> None:
    """Set the limits that the kernel enforces. Wall time and memory in use are the supervisor's."""
    values = {
        # The supervisor ends the process at the exact limit; this one is for a supervisor that is
        # not scheduled in time.
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
        # The kernel counts all threads of a user. A plain user has others, and two pools may share
        # one of our numbers, so this is no exact limit: the supervisor counts exactly, and this one
        # stops what is faster than the supervisor.
        values["RLIMIT_NPROC"] = 4 * limits.n_processes
    for name, value in values.items():
        number = getattr(resource, name, None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(number, (value, value))
        except (OSError, ValueError):
            if sys.platform == "linux":
                raise  # macOS defines some names whose limit it does not implement


def _become_unprivileged_user(user: int, plan: ConfinementPlan) -> None:
    """Become a user that owns nothing, a different one for each process."""
    capabilities = 0
    if not plan.is_reachable:
        # Python may be installed in a folder that only root can enter (/root/...). Then one
        # capability stays, to read in spite of folder permissions, and Landlock alone decides
        # what can be read.
        kernel.keep_capabilities_over_setuid()
        capabilities = 1 << kernel.DAC_READ_SEARCH
    if sys.platform == "linux":
        kernel.drop_bounding_set(capabilities)
    os.setgroups([])
    os.setregid(user, user)  # as root, both also set the saved ids
    os.setreuid(user, user)
    if capabilities:
        kernel.set_capabilities(capabilities)


def _restrict_cpus(slot: int) -> None:
    """Use at most eight processors: XLA starts several threads for each one it sees."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > _MAX_CPUS:
        first = slot * _MAX_CPUS % len(cpus)
        os.sched_setaffinity(0, (cpus + cpus)[first : first + _MAX_CPUS])
