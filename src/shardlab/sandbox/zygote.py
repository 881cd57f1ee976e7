"""The fork server: imports everything once, holds no secret, forks a supervised process on request.

All of this runs before or beside untrusted code, never with it. Only a process with one thread can
be forked safely, so nothing here may start a thread: a worker that needs threads (XLA's backend)
starts them after the fork.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import NoReturn

from shardlab.sandbox import kernel, self_test
from shardlab.sandbox.cgroup import MemoryGroup, create_memory_group, open_group_parent
from shardlab.sandbox.confinement import ConfinementPlan, confine_process
from shardlab.sandbox.filesystem import (
    create_pid_namespace,
    enter_private_root,
    exclude_hidden,
    find_runtime_paths,
    remember_folders,
)
from shardlab.sandbox.landlock import create_ruleset, landlock_version
from shardlab.sandbox.messages import (
    ForkRequest,
    StartRequest,
    StartResponse,
    receive_message,
    send_message,
)
from shardlab.sandbox.process import Level
from shardlab.sandbox.supervisor import (
    STARTED,
    end_descendants,
    protect_supervisor,
    supervise_process,
)
from shardlab.sandbox.usage_record import UsageRecord

_PID_BYTES = 20  # a process number as it is written to its supervisor
_UNPRIVILEGED = 65534  # the user without rights of every distribution
_REQUESTS_FD, _RESPONSES_FD, _STARTED_FD, _LANDLOCK_FD = 3, 4, 5, 6


@dataclass(frozen=True)
class ProcessFds:
    """The descriptors that come with a fork request."""

    requests: int
    responses: int
    output: int
    client: int  # the supervisor's socket to the client
    usage: int  # the record that the supervisor writes and the client reads


def main(control_fd: int) -> None:
    """Prepare once, then fork processes until the pool closes the socket."""
    control = socket.socket(fileno=control_fd)
    message = receive_message(control, StartRequest)
    if message is None:
        return
    request, _ = message
    entry_points = {**request.entry_points, self_test.ROLE: self_test.__name__}
    try:
        plan = _prepare_confinement(request, entry_points, control)
    except Exception as error:
        # The kernel's own refusals are OSErrors: they mean a lower level, not a fault.
        is_internal = not isinstance(error, OSError)
        text = traceback.format_exc(limit=-4) if is_internal else str(error)
        send_message(control, StartResponse(error=text[-2000:], is_internal=is_internal))
        return
    send_message(control, StartResponse())
    _serve_forks(control, plan, entry_points)
    if plan.level == "C":
        # Its processes can fork. At A they end with their namespace, at B there are no others.
        end_descendants(plan.proc_fd)


def _prepare_confinement(
    request: StartRequest, entry_points: Mapping[str, str], control: socket.socket
) -> ConfinementPlan:
    level = request.level
    if sys.platform != "linux" and level != "C":
        raise OSError(f"level {level} needs Linux, this is {sys.platform}")
    if level != "C" and not landlock_version():
        raise OSError("this kernel has no Landlock")
    if level == "A":
        _check_namespaces()
        create_pid_namespace()
        _continue_as_pid_one(control)
    # Imports come before the private root, which shows only what was imported by then.
    _load_modules(entry_points.values(), request.warmup_module)
    if sys.platform != "linux":
        return ConfinementPlan(level=level)
    proc_fd = _open_proc(level)
    group_fd = open_group_parent()
    kernel.adopt_orphans()
    paths = find_runtime_paths()
    is_reachable = level == "A" or _can_anybody_read(paths)
    if level == "C":
        return ConfinementPlan(
            level=level, proc_fd=proc_fd, group_fd=group_fd, is_reachable=is_reachable
        )
    if level == "A":
        enter_private_root(paths, request.hidden_paths)
    readable, unlisted = exclude_hidden(paths, request.hidden_paths)
    return ConfinementPlan(
        level=level,
        landlock_fd=create_ruleset(readable),
        proc_fd=proc_fd,
        group_fd=group_fd,
        is_reachable=is_reachable,
        unlisted_folders=tuple(unlisted),
    )


def _open_proc(level: Level) -> int:
    """Return a descriptor of /proc, -1 if there is none; only level C works without it.

    It is opened before the private root, in which there is no /proc.
    """
    if os.path.lexists("/proc/self"):
        return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if level != "C":
        raise OSError("there is no /proc")
    return -1


def _check_namespaces() -> None:
    """Try all of it in a throw-away process: some kernels allow a part and refuse the rest.

    Half-way there is no way back, neither to the old namespaces nor to a lower level.
    """

    def attempt() -> None:
        create_pid_namespace()
        pid = os.fork()
        if pid == 0:
            _exit_after(lambda: enter_private_root(["/usr/lib"], []))
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    pid = os.fork()
    if pid == 0:
        _exit_after(attempt)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number:
        text = os.strerror(number) if number > 0 else f"signal {-number}"
        raise OSError(f"namespaces are refused: {text}")


def _exit_after(action: Callable[[], None]) -> NoReturn:
    """End this process with 0, or with the errno of the error that was raised."""
    try:
        action()
    except OSError as error:
        os._exit(error.errno or 1)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _continue_as_pid_one(control: socket.socket) -> None:
    """Return as pid 1 of the new namespace; everything in it ends with that process."""
    pid = os.fork()
    if pid == 0:
        kernel.die_with_parent()
        return
    control.close()
    os.closerange(3, 256)
    os._exit(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def _load_modules(modules: Iterable[str], warmup_module: str) -> None:
    """Import what the processes need, so that they start without importing it."""
    for name in modules:
        import_module(name)
    if warmup_module:
        import_module(warmup_module).warm_up()
    # Objects out of the collector's sight are never written to by it, so their pages stay shared
    # between all forks.
    gc.collect()
    gc.freeze()


def _can_anybody_read(paths: Sequence[str]) -> bool:
    """Return whether a user without rights can read these paths."""
    if os.geteuid() != 0:
        return True
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(_UNPRIVILEGED, _UNPRIVILEGED, _UNPRIVILEGED)
        os.setresuid(_UNPRIVILEGED, _UNPRIVILEGED, _UNPRIVILEGED)
        os._exit(0 if all(os.access(path, os.R_OK) for path in paths) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ------------------------------------------------------------------------------------ one process


def _serve_forks(
    control: socket.socket, plan: ConfinementPlan, entry_points: Mapping[str, str]
) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors that have ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_blocking(2, False)  # from here on the pool does not read it, so it may fill up
    own_pid_namespace = -1
    if plan.level == "A":
        own_pid_namespace = os.open("self/ns/pid", os.O_RDONLY, dir_fd=plan.proc_fd)
    slot = int.from_bytes(os.urandom(2), "little")  # random, because another pool may count too
    while (message := receive_message(control, ForkRequest)) is not None:
        request, fds = message
        if not request.role:
            send_message(control, StartResponse())
            continue
        slot += 1
        remember_folders(plan.unlisted_folders)
        if _count_threads(plan) != 1:
            os._exit(3)  # a fork would copy locks that no thread is left to release
        # Each supervisor becomes pid 1 of a namespace of its own. setns afterwards, because a
        # process whose next children go to a namespace that has ended cannot fork any more.
        if plan.level == "A":
            kernel.unshare(kernel.NEWPID)
        pid = os.fork()
        if pid == 0:
            control.detach()
            _run_supervisor(plan, request, entry_points, ProcessFds(*fds), slot)
        if plan.level == "A":
            kernel.set_namespace(own_pid_namespace, kernel.NEWPID)
        for fd in fds:
            os.close(fd)


def _count_threads(plan: ConfinementPlan) -> int:
    if plan.proc_fd < 0:
        return threading.active_count()
    return os.stat("self/task", dir_fd=plan.proc_fd).st_nlink - 2  # one folder per thread


def _run_supervisor(
    plan: ConfinementPlan,
    request: ForkRequest,
    entry_points: Mapping[str, str],
    fds: ProcessFds,
    slot: int,
) -> NoReturn:
    """Fork the process that confines itself, and watch it."""
    try:
        protect_supervisor()
        supervisor_pid = os.getpid()
        group = create_memory_group(plan.group_fd, request.limits.memory_bytes)
        started, peer = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            module = entry_points[request.role]
            _run_sandboxed(plan, request, module, fds, slot, supervisor_pid, peer.detach(), group)
        peer.close()
        for fd in (fds.requests, fds.responses, fds.output):
            os.close(fd)
        proc_pid = int(started.recv(_PID_BYTES, socket.MSG_WAITALL) or b"0")
        client = socket.socket(fileno=fds.client)
        usage = UsageRecord(fds.usage)
        supervise_process(
            pid, client, request.limits, plan, proc_pid, started=started, usage=usage, group=group
        )
    except BaseException:
        with contextlib.suppress(Exception):  # read by the pool only while it starts
            traceback.print_exc()
    os._exit(0)


def _run_sandboxed(
    plan: ConfinementPlan,
    request: ForkRequest,
    module: str,
    fds: ProcessFds,
    slot: int,
    supervisor_pid: int,
    started_fd: int,
    group: MemoryGroup | None,
) -> NoReturn:
    """Confine this process and run the entry point of its role."""
    code = 70
    try:
        # Its number in the /proc of the fork server, which is not its number in its own namespace.
        number = os.readlink("self", dir_fd=plan.proc_fd) if plan.proc_fd >= 0 else os.getpid()
        os.write(started_fd, str(number).encode().ljust(_PID_BYTES))
        _prefer_for_oom_kill(plan)
        if group is not None:
            group.enter()
        plan = _keep_only(plan, fds, started_fd)
        # An object of its own before the filter, under which a descriptor cannot be made one.
        supervisor = socket.socket(fileno=_STARTED_FD)
        confine_process(plan, request.limits, slot, supervisor)
        if os.getppid() != supervisor_pid:
            os._exit(1)  # the supervisor ended before die_with_parent was set
        os.write(_STARTED_FD, STARTED)
        supervisor.close()  # from here on nothing that this process says is trusted
        import_module(module).main(_REQUESTS_FD, _RESPONSES_FD)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have closed or replaced it
            stream.flush()
    # Not sys.exit: that would run the exit handlers that the program has registered.
    os._exit(code & 255)


def _prefer_for_oom_kill(plan: ConfinementPlan) -> None:
    """Make the kernel end this process, not its client, when the machine runs out of memory."""
    with contextlib.suppress(OSError):
        fd = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=plan.proc_fd)
        os.write(fd, b"1000")
        os.close(fd)


def _keep_only(plan: ConfinementPlan, fds: ProcessFds, started_fd: int) -> ConfinementPlan:
    """Close every descriptor except 0 to 6; return the plan with the new Landlock descriptor.

    0 to 2 are /dev/null and the output, 3 the requests, 4 the responses; 5 (to the supervisor) and
    6 (the rules of Landlock) are closed before the entry point runs.
    """
    null_fd = os.open(os.devnull, os.O_RDONLY)
    targets = {
        0: null_fd,
        1: fds.output,
        2: fds.output,
        _REQUESTS_FD: fds.requests,
        _RESPONSES_FD: fds.responses,
        _STARTED_FD: started_fd,
    }
    if plan.landlock_fd >= 0:
        targets[_LANDLOCK_FD] = plan.landlock_fd
    # First all of them out of the way, then each to its number: a source may have the number of
    # another target. Not further up than needed: there may be few descriptors (256 on macOS).
    copies = {to: fcntl.fcntl(fd, fcntl.F_DUPFD, len(targets)) for to, fd in targets.items()}
    for to, fd in copies.items():
        os.dup2(fd, to, inheritable=False)
    os.closerange(len(targets), 4096)
    return replace(
        plan, landlock_fd=_LANDLOCK_FD if plan.landlock_fd >= 0 else -1, proc_fd=-1, group_fd=-1
    )
