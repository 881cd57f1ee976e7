"""Assertions about sharded programs: equal on every mesh, these collectives, so many bytes.

Each takes a function, its arguments (arrays, or text such as "f32[8,4]") and a mesh that need not
exist. What is not so is an AssertionError whose message is the report.

Patience with a limit: what takes longer fails with a message, and never sticks.

First the block is interrupted, which Python code allows. Code that never returns to Python (a loop
inside of a compiled program) cannot be interrupted; after a moment of grace `give_up` is called.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardlab.collectives.call import CollectiveCall
    from shardlab.tracing.trace import Trace


GRACE = 3.0


class Hang(AssertionError):
    """A block that took longer than it was allowed."""


def _end_process(message: str) -> None:
    sys.stderr.write(f"\n{message}\n")
    sys.stderr.flush()
    os._exit(124)


@contextlib.contextmanager
def time_limit(
    seconds: float, what: str, *, give_up: Callable[[str], Any] = _end_process
) -> Iterator[None]:
    """Raise `Hang` in the block if it takes longer than `seconds`.

    Inside of another such block, or where another tool has set the alarm, or outside of the main
    thread, only the last resort is left: `give_up`, which ends the process.

    >>> import time
    >>> try:
    ...     with time_limit(0.05, "the nap"):
    ...         time.sleep(5)
    ... except Hang as hang:
    ...     print(str(hang)[:39])
    the nap took longer than 0.05 s and was
    """
    message = (
        f"{what} took longer than {seconds:g} s and was stopped. Look for a loop that does not "
        "end, or allow more time (shardlab_timeout)."
    )
    last_resort = threading.Timer(seconds + GRACE, give_up, [message])
    last_resort.daemon = True
    last_resort.start()
    try:
        with _interrupted(seconds, message):
            yield
    finally:
        last_resort.cancel()


@contextlib.contextmanager
def _interrupted(seconds: float, message: str) -> Iterator[None]:
    if not _may_set_alarm():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        __tracebackhide__ = True
        raise Hang(message)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _may_set_alarm() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )


# Seconds for each assertion; the pytest plugin sets it from `shardlab_timeout`.
timeout = 120.0


def assert_mesh_invariant(
    f: Callable[..., Any], *args: Any, meshes: Sequence[Any] | None = None, grads: bool = True
) -> None:
    """Assert that values, and with `grads` gradients, are the same on every mesh.

    Without `meshes` the program's own axes get the sizes 1, 2, 3, 4, 8, or 2x4, 4x2 and their like.
    Any error that `shardlab.check` finds on the way fails it too.
    """
    __tracebackhide__ = True
    from shardlab.analysis.trace_and_check import check

    with time_limit(timeout, _named(f)):
        report = check(f, *args, meshes=meshes, grads=grads)
    if not report.ok:
        raise AssertionError(f"{_named(f)} is not the same on every mesh\n{report}")
    if not report.meshes:
        raise AssertionError(f"{_named(f)} was compared on no mesh\n{report}")


def assert_collectives(
    f: Callable[..., Any],
    *args: Any,
    expected: Sequence[str] | Mapping[str, int],
    mesh: Any = None,
) -> None:
    """Assert which collectives a program calls.

    `expected` lists the calls as they are written, in order, such as `["all_gather model",
    "psum data"]`; or gives how often each is executed, loops multiplied: `{"psum data": 24}`. The
    mesh axes may be left out: `["psum"]`.
    """
    __tracebackhide__ = True
    trace = traced(f, *args, mesh=mesh)
    if isinstance(expected, Mapping):
        wanted = sorted(f"{count} x {name}" for name, count in expected.items() if count)
        found = sorted(_executions(trace, expected))
    else:
        wanted = list(expected)
        found = [_as_wanted(call, wanted, i) for i, call in enumerate(trace.collectives)]
    if found != wanted:
        told = "\n".join(_diff(wanted, found, "expected", "found"))
        raise AssertionError(f"{_named(f)} has other collectives than expected\n{told}\n\n{trace}")


def assert_traffic(
    f: Callable[..., Any],
    *args: Any,
    at_most: int | str | None = None,
    at_most_in_all: int | str | None = None,
    mesh: Any = None,
) -> None:
    """Assert how many bytes one device sends, and all devices together, such as "1.5MB".

    Executions are counted, of a cond the worst branch, of a while loop one turn.
    """
    __tracebackhide__ = True
    from shardlab._text.units import bytes_text, parse_bytes

    if at_most is None and at_most_in_all is None:
        raise TypeError("assert_traffic needs at_most=... or at_most_in_all=...")
    trace = traced(f, *args, mesh=mesh)
    n_devices = 1
    for _, size in trace.mesh:
        n_devices *= size
    for limit, sent, who in (
        (at_most, trace.wire_bytes, "each device sends"),
        (at_most_in_all, trace.wire_bytes * n_devices, f"the {n_devices} devices send"),
    ):
        if limit is not None and sent > parse_bytes(limit):
            raise AssertionError(
                f"{_named(f)}: {who} {bytes_text(sent)} ({sent:,} bytes), "
                f"{bytes_text(sent - parse_bytes(limit))} more than the budget of {limit}\n{trace}"
            )


def assert_memory(f: Callable[..., Any], *args: Any, at_most: int | str, mesh: Any = None) -> None:
    """Assert what one device holds: arguments, results and temporaries, as the compiler counts.

    Temporaries are those of the compiler named in the message; a CPU's are no forecast for a TPU.
    """
    __tracebackhide__ = True
    from shardlab._text.units import bytes_text, parse_bytes

    held = traced(f, *args, mesh=mesh, memory=True).memory
    assert held is not None, f"{_named(f)}: the compiler does not tell its memory"
    total = held.argument_bytes + held.output_bytes + held.temp_bytes - held.alias_bytes
    if total > parse_bytes(at_most):
        parts = ", ".join(
            f"{name} {bytes_text(n_bytes)}"
            for name, n_bytes in (
                ("arguments", held.argument_bytes),
                ("results", held.output_bytes),
                ("temporaries", held.temp_bytes),
                ("shared", -held.alias_bytes),
            )
            if n_bytes
        )
        raise AssertionError(
            f"{_named(f)}: each device holds {bytes_text(total)} ({total:,} bytes), more than the "
            f"budget of {at_most}\n{parts}; counted by {held.compiler}"
        )


def assert_golden(record: Any, path: str | os.PathLike[str], *, update: bool = False) -> None:
    """Assert that a Trace, or the shardings of a tree of arrays, are those kept in a file.

    With `update` the file is written instead. Source lines are not kept, since they move.
    """
    __tracebackhide__ = True
    lines = _golden_lines(record)
    file = Path(path)
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n", "utf-8")
        return
    if not file.exists():
        shown = "\n".join(f"  {line}" for line in lines)
        raise AssertionError(
            f"There is no golden file {file} yet; run pytest with --shardlab-update to keep this:"
            f"\n{shown}"
        )
    kept = file.read_text("utf-8").splitlines()
    if kept != lines:
        told = "\n".join(_diff(kept, lines, str(file), "now"))
        raise AssertionError(
            f"This is not what {file} keeps; if it is right, run pytest with --shardlab-update.\n"
            f"{told}"
        )


def traced(f: Callable[..., Any], *args: Any, mesh: Any = None, memory: bool = False) -> Trace:
    """Return the trace of a program, in limited time; one that JAX refuses has none."""
    __tracebackhide__ = True
    from shardlab.analysis.trace_and_check import trace
    from shardlab.errors import ProgramRejected

    try:
        with time_limit(timeout, _named(f)):
            return trace(f, *args, mesh=mesh, memory=memory)
    except ProgramRejected as error:
        raise AssertionError(str(error)) from None


# ---------------------------------------------------------------------------------------- as lines


def _named(f: Any) -> str:
    return repr(getattr(f, "__name__", None) or type(f).__name__)


def call_text(call: CollectiveCall) -> str:
    """Return a call as it is written in `expected`: `psum data`, `all_gather data,model`."""
    return f"{call.op} {','.join(call.mesh_axes)}".strip()


def _as_wanted(call: CollectiveCall, wanted: Sequence[str], at: int) -> str:
    """Return the call as text, without its axes where the expectation has none."""
    text = call_text(call)
    if wanted[at : at + 1] in ([text], [call.op]):
        return wanted[at]
    return call.op if call.op in wanted and text not in wanted else text


def _executions(trace: Trace, expected: Mapping[str, int]) -> list[str]:
    counts: dict[str, int] = {}
    for call in trace.collectives:
        name = call.op if call.op in expected else call_text(call)
        counts[name] = counts.get(name, 0) + (1 if call.count is None else call.count)
    return [f"{count} x {name}" for name, count in counts.items()]


def _golden_lines(record: Any) -> list[str]:
    from shardlab.tracing.trace import Trace

    if not isinstance(record, Trace):
        from shardlab.simulator.shards import sharding_lines

        return sharding_lines(record)
    mesh = ",".join(f"{name}={size}" for name, size in record.mesh)
    lines = [f"mesh {mesh}", *map(_call_line, record.collectives)]
    return [*lines, f"each device sends {record.wire_bytes:,} bytes"]


def _call_line(call: CollectiveCall) -> str:
    count = "?" if call.count is None else call.count
    function = f" in {call.source.function}" if call.source.function else ""
    shape = ",".join(map(str, call.shape))
    return (
        f"{call_text(call)}: {call.dtype}[{shape}] x {count}, {call.phase}, "
        f"{call.wire_bytes:,} bytes{function}"
    )


def _diff(before: Sequence[str], after: Sequence[str], one: str, other: str) -> list[str]:
    """Return what differs, with all lines around it: these lists are short.

    >>> print("\\n".join(_diff(["psum data"], ["psum data", "pmax data"], "expected", "found")))
    --- expected
    +++ found
      psum data
    + pmax data
    """
    lines = [f"--- {one}", f"+++ {other}"]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            lines += [f"  {line}" for line in before[i:j]]
        else:
            lines += [f"- {line}" for line in before[i:j]]
            lines += [f"+ {line}" for line in after[k:m]]
    return lines
