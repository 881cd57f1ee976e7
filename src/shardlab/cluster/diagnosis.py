"""Why a launch does not go on: which process, where it is, and which collective it does not reach.

Only decides; `launcher.py` and `joined_cluster.py` collect the evidence. A hang is found by
evidence of no progress, never by elapsed time: every process that still runs has been idle for the
limit (it neither used a processor nor waited for one), and at least one of them waits for the
others. A slow process, such as one that compiles for an hour, is not idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardlab.cluster.messages import KnownCollective, ProcessFailure, Status
from shardlab.errors import (
    CollectiveNotReached,
    LaunchError,
    LaunchStalled,
    ProcessDied,
    ProcessNeverArrived,
    ProcessRaised,
)

# JAX sends a host value to all processes, to check that it is the same on each of them.
DEVICE_PUT = "jax.device_put"

Collectives = Mapping[str, tuple[KnownCollective, ...]]


@dataclass(frozen=True, kw_only=True)
class ProcessView:
    """What is known of one process."""

    process: int
    host: str = ""
    pid: int | None = None
    status: Status = field(default_factory=lambda: Status(phase="starting"))
    idle_seconds: float = 0.0
    is_done: bool = False  # its records have arrived
    failure: ProcessFailure | None = None
    ended_by: str = ""  # "signal SIGKILL", "exit code 3"
    ended_order: int = 0  # the first that ended or failed has the lowest
    is_stopped: bool = False  # by SIGSTOP

    @property
    def name(self) -> str:
        where = f" on {self.host}" if self.host and self.host != "this machine" else ""
        return f"process {self.process}{where}"

    @property
    def position(self) -> str:
        """Where it is, as a clause: 'at train.py:12 (main)'."""
        status = self.status
        if self.is_done or status.phase == "finished":
            return "has finished the program"
        if self.is_stopped:
            return f"is stopped (SIGSTOP){f', at {status.line}' if status.line else ''}"
        words = {
            "starting": "is loading Python and JAX",
            "connecting": "waits in jax.distributed.initialize",
            "running": "runs the program's own lines",
            "compiling": f"compiles {status.program!r}",
            "executing": f"executes {status.program!r}",
        }
        clause = words.get(status.phase, status.phase)
        return f"{clause}{f', at {status.line}' if status.line else ''}"


def find_hang(
    views: Sequence[ProcessView], collectives: Collectives, limit: float, where: str
) -> LaunchError | None:
    """Return the error for processes that wait for each other forever, or None.

    Call it with processes that all run or are done; one that ended is `find_failure`'s.
    """
    running = [view for view in views if not view.is_done and view.status.phase != "finished"]
    if not running or any(view.idle_seconds < limit for view in running):
        return None
    connecting = [view for view in running if view.status.phase == "connecting"]
    if connecting:
        missing = [view for view in running if view.status.phase == "starting" or view.is_stopped]
        return _never_arrived(missing, connecting, where, limit) if missing else None
    waiting = [v for v in running if v.status.phase == "executing" and not v.is_stopped]
    if not waiting:
        return None
    # The execution that comes first in the order of the program: the others are past it, or have
    # not come to it.
    number = min(view.status.n_executed for view in waiting)
    first = [view for view in waiting if view.status.n_executed == number]
    program = _most_common([view.status.program for view in first])
    first = [view for view in first if view.status.program == program]
    others = [view for view in views if view not in first]
    if not others:
        return _all_in_one_program(first, program, collectives.get(program, ()), where, limit)
    return _not_reached(first, others, program, collectives.get(program, ()), where, limit)


def _never_arrived(
    missing: Sequence[ProcessView], waiting: Sequence[ProcessView], where: str, limit: float
) -> ProcessNeverArrived:
    lines = [f"{view.name} {view.position}" for view in missing]
    n_total = len(missing) + len(waiting)
    return ProcessNeverArrived(
        f"{len(missing)} of {n_total} processes did not connect to the others: {'; '.join(lines)}. "
        f"{_sentence(_names(waiting))} waited, and nothing was active for {limit:g} s.",
        where=where,
        fix="look at that line; a program must not block before all processes are connected. If it "
        "waits for something slow on purpose, raise --stall-limit.",
    )


def _not_reached(
    waiting: Sequence[ProcessView],
    others: Sequence[ProcessView],
    program: str,
    calls: Sequence[KnownCollective],
    where: str,
    limit: float,
) -> CollectiveNotReached:
    number = waiting[0].status.n_executed
    # A process that has completed this execution took a branch without the collective.
    has_passed = [view for view in others if view.status.n_executed > number]
    conditional = [call for call in calls if call.is_conditional]
    call = _first(conditional if has_passed and conditional else calls)
    if program == DEVICE_PUT:
        call = "JAX's check that all processes put the same value"
    clauses = [f"{view.name} {view.position}" for view in others]
    line = waiting[0].status.line
    return CollectiveNotReached(
        f"{_sentence(_names(waiting))} {'waits' if len(waiting) == 1 else 'wait'} in {program!r}"
        f"{f', called at {line},' if line else ''} for {call}, which "
        f"{_names(others)} {'does' if len(others) == 1 else 'do'} not reach: {'; '.join(clauses)}.",
        where=f"{where}; execution {number + 1} of those on several processes, nothing active for "
        f"{limit:g} s",
        fix=_advice(program, others)
        if not has_passed
        else f"every process must execute the same collectives: in {program!r} a branch is taken "
        "that not all of them take. Call the collective outside of it.",
    )


def _advice(program: str, others: Sequence[ProcessView]) -> str:
    if stopped := [view for view in others if view.is_stopped]:
        return f"let it continue (kill -CONT {stopped[0].pid}), or find out who stopped it."
    return (
        f"call {program!r} on every process: look for a branch on jax.process_index(), on a file "
        "or on data that only one process has. If that process waits for something slow on "
        "purpose, raise --stall-limit."
    )


def _all_in_one_program(
    waiting: Sequence[ProcessView],
    program: str,
    calls: Sequence[KnownCollective],
    where: str,
    limit: float,
) -> LaunchStalled:
    conditional = [call for call in calls if call.is_conditional]
    candidates = "; ".join(map(str, (conditional or calls)[:4])) or "no collective is known in it"
    line = waiting[0].status.line
    return LaunchStalled(
        f"All {len(waiting)} processes execute {program!r} and no thread was active for {limit:g} "
        f"s: they do not wait in the same collective. Its collectives"
        f"{' in branches and loops' if conditional else ''}: {candidates}.",
        where=f"{where}{f', called at {line}' if line else ''}",
        fix="make the condition of a branch or loop around a collective the same on all devices: "
        "lax.pmax(predicate, axis). `shardlab check` names such a branch before it hangs.",
    )


# ----------------------------------------------------------------------- ended and failed processes


@dataclass(frozen=True)
class LaunchFailure:
    """The error to report, and the traceback of the program that goes with it."""

    error: LaunchError
    traceback: str = ""


def find_failure(
    views: Sequence[ProcessView], collectives: Collectives, where: str
) -> LaunchFailure | None:
    """Return the failure for the process that ended or raised first for a reason of its own.

    Others fail because of it: a collective with a lost peer raises, and JAX aborts a process that
    has lost the coordinator. So what was killed comes before an exception in host code, and that
    before an exception in a collective and an abort.
    """
    broken = [view for view in views if view.failure is not None or view.ended_by]
    if not broken:
        return None
    root = min(broken, key=lambda view: (_follows_from_another(view), view.ended_order))
    # Those that failed in a collective because of it waited there too.
    waiting = [
        view
        for view in views
        if view is not root and view.status.phase == "executing" and not view.is_done
    ]
    if root.failure is None:
        return LaunchFailure(_died(root, waiting, collectives, where))
    return LaunchFailure(_raised(root, broken, waiting, where), root.failure.failure.traceback)


def _follows_from_another(view: ProcessView) -> int:
    """Return how likely it is that a process ended because of another: 0, 1 or 2."""
    if view.failure is not None:
        return 1 if view.failure.status.phase == "executing" else 0
    return 2 if view.ended_by == "signal SIGABRT" else 0


def _died(
    view: ProcessView, waiting: Sequence[ProcessView], collectives: Collectives, where: str
) -> ProcessDied:
    arrived = view.status.phase not in ("starting", "connecting")
    reached = ""
    if waiting:
        program = waiting[0].status.program
        call = _first(collectives.get(program, ()))
        reached = f" {_sentence(_names(waiting))} waited for it in {program!r}, for {call}."
    when = "before the program was done" if arrived else "before it was connected"
    pid = f" (pid {view.pid})" if view.pid else ""
    return ProcessDied(
        f"{_sentence(view.name)}{pid} ended by {view.ended_by} {when}; when last seen, it "
        f"{view.position}.{reached}",
        where=where,
        fix="SIGKILL comes from a person, a scheduler, or Linux when memory runs out: look at "
        "`dmesg` on that host, and at what the process printed above."
        if "SIGKILL" in view.ended_by
        else "look at what that process printed above.",
    )


def _raised(
    root: ProcessView,
    broken: Sequence[ProcessView],
    waiting: Sequence[ProcessView],
    where: str,
) -> ProcessRaised:
    assert root.failure is not None
    failure = root.failure.failure
    same = [v for v in broken if v.failure and v.failure.failure.what == failure.what]
    others = [view for view in waiting if view not in same]
    rest = f" {_sentence(_names(others))} waited in {others[0].status.program!r}." if others else ""
    message = f"{failure.what.rstrip('.:')}."
    return ProcessRaised(
        f"In {_names(same)}: {message}{rest}",
        where=f"{failure.where}; {where}",
        fix=failure.fix,
    )


# ------------------------------------------------------------------------------------------- words


def _names(views: Sequence[ProcessView]) -> str:
    """Return 'process 1', or 'processes 0, 2 and 3'."""
    if len(views) == 1:
        return views[0].name
    numbers = [str(view.process) for view in views]
    return f"processes {', '.join(numbers[:-1])} and {numbers[-1]}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _first(calls: Sequence[KnownCollective]) -> str:
    return str(calls[0]) if calls else "its first collective"


def _most_common(names: Sequence[str]) -> str:
    return max(dict.fromkeys(names), key=names.count)
