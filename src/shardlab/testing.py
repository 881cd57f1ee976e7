"""Assertions about sharded programs: equal values on every mesh, collectives, traffic, memory.

Each takes a function, its arguments (arrays, or text such as "f32[8,4]") and a mesh, which may be
virtual. A failed assertion is an AssertionError with the report as its message.

`time_limit` turns a hang into a failure. It first interrupts the block, which works in Python code;
code that never returns to Python (a loop in a compiled program) cannot be interrupted, so a few
seconds later `give_up` is called, which ends the process.
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


GRACE_SECONDS = 3.0  # between the interrupt and `give_up`


class Hang(AssertionError):
    """A block exceeded its time limit."""


def _end_process(message: str) -> None:
    sys.stderr.write(f"\n{message}\n")
    sys.stderr.flush()
    os._exit(124)


@contextlib.contextmanager
def time_limit(
    seconds: float, label: str, *, give_up: Callable[[str], Any] = _end_process
) -> Iterator[None]:
    """Raise `Hang` in the block if it takes longer than `seconds`.

    Inside another such block, if another tool uses SIGALRM, or outside the main thread the block
    cannot be interrupted; only `give_up` remains, which ends the process.

    >>> import time
    >>> try:
    ...     with time_limit(0.05, "the nap"):
    ...         time.sleep(5)
    ... except Hang as hang:
    ...     print(str(hang)[:39])
    the nap took longer than 0.05 s and was
    """
    message = (
        f"{label} took longer than {seconds:g} s and was stopped. Look for a loop that does not "
        "end, or allow more time (shardlab_timeout)."
    )
    # A thread, because a signal handler runs only when the main thread is back in Python code.
    timer = threading.Timer(seconds + GRACE_SECONDS, give_up, [message])
    timer.daemon = True
    timer.start()
    try:
        with _interrupt_after(seconds, message):
            yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _interrupt_after(seconds: float, message: str) -> Iterator[None]:
    if not _can_set_alarm():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        __tracebackhide__ = True
        raise Hang(message)

    # SIGALRM interrupts blocking system calls such as sleep and read too; a thread that raises an
    # exception in the main thread (PyThreadState_SetAsyncExc) would not.
    old_handler = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)


def _can_set_alarm() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        # A process has one such timer: pytest-timeout, or an outer limit of ours, may use it.
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )


# Seconds per assertion; the pytest plugin sets it from the ini option `shardlab_timeout`.
timeout = 120.0


def assert_mesh_invariant(
    f: Callable[..., Any], *args: Any, meshes: Sequence[Any] | None = None, grads: bool = True
) -> None:
    """Assert that values, and with `grads` gradients, are the same on every mesh.

    Without `meshes` the program's own mesh axes get the sizes 1, 2, 3, 4, 8, or 2x4, 4x2 and so on.
    Any other error that `shardlab.check` finds fails it too.
    """
    __tracebackhide__ = True
    from shardlab.analysis.trace_and_check import check

    with time_limit(timeout, _quote_name(f)):
        report = check(f, *args, meshes=meshes, grads=grads)
    if not report.ok:
        raise AssertionError(f"{_quote_name(f)} is not the same on every mesh\n{report}")
    if not report.meshes:
        raise AssertionError(f"{_quote_name(f)} was compared on no mesh\n{report}")


def assert_collectives(
    f: Callable[..., Any],
    *args: Any,
    expected: Sequence[str] | Mapping[str, int],
    mesh: Any = None,
) -> None:
    """Assert which collectives a program calls.

    `expected` lists the calls in program order, such as `["all_gather model", "psum data"]`; or it
    is the number of executions of each, multiplied by loops: `{"psum data": 24}`. The mesh axes may
    be omitted: `["psum"]`.
    """
    __tracebackhide__ = True
    trace = trace_program(f, *args, mesh=mesh)
    if isinstance(expected, Mapping):
        expected_lines = sorted(f"{count} x {name}" for name, count in expected.items() if count)
        actual_lines = sorted(_execution_lines(trace, expected))
    else:
        expected_lines = list(expected)
        actual_lines = [
            _match_expectation(call, expected_lines, index)
            for index, call in enumerate(trace.collectives)
        ]
    if actual_lines != expected_lines:
        diff = "\n".join(_diff_lines(expected_lines, actual_lines, "expected", "actual"))
        raise AssertionError(
            f"{_quote_name(f)} has other collectives than expected\n{diff}\n\n{trace}"
        )


def assert_traffic(
    f: Callable[..., Any],
    *args: Any,
    at_most: int | str | None = None,
    at_most_total: int | str | None = None,
    mesh: Any = None,
) -> None:
    """Assert how many bytes one device sends, and all devices in total, such as "1.5MB".

    Every execution counts: of a cond the most expensive branch, of a while loop one iteration.
    """
    __tracebackhide__ = True
    from shardlab._text.units import bytes_text, parse_bytes

    if at_most is None and at_most_total is None:
        raise TypeError("assert_traffic needs at_most=... or at_most_total=...")
    trace = trace_program(f, *args, mesh=mesh)
    n_devices = 1
    for _, size in trace.mesh:
        n_devices *= size
    for limit, n_bytes, subject in (
        (at_most, trace.wire_bytes, "each device sends"),
        (at_most_total, trace.wire_bytes * n_devices, f"the {n_devices} devices send"),
    ):
        if limit is not None and n_bytes > parse_bytes(limit):
            excess = bytes_text(n_bytes - parse_bytes(limit))
            raise AssertionError(
                f"{_quote_name(f)}: {subject} {bytes_text(n_bytes)} ({n_bytes:,} bytes), "
                f"{excess} more than the budget of {limit}\n{trace}"
            )


def assert_memory(f: Callable[..., Any], *args: Any, at_most: int | str, mesh: Any = None) -> None:
    """Assert the bytes that one device stores: arguments, results and temporaries.

    Temporaries are those of the compiler named in the message; a CPU's do not predict a TPU's.
    """
    __tracebackhide__ = True
    from shardlab._text.units import bytes_text, parse_bytes

    memory = trace_program(f, *args, mesh=mesh, memory=True).memory
    assert memory is not None, f"{_quote_name(f)}: the compiler does not report its memory"
    # Donated arguments share their memory with results, so they count once.
    total = memory.argument_bytes + memory.output_bytes + memory.temp_bytes - memory.alias_bytes
    if total > parse_bytes(at_most):
        parts = ", ".join(
            f"{name} {bytes_text(n_bytes)}"
            for name, n_bytes in (
                ("arguments", memory.argument_bytes),
                ("results", memory.output_bytes),
                ("temporaries", memory.temp_bytes),
                ("shared", -memory.alias_bytes),
            )
            if n_bytes
        )
        raise AssertionError(
            f"{_quote_name(f)}: each device stores {bytes_text(total)} ({total:,} bytes), more "
            f"than the budget of {at_most}\n{parts}; counted by {memory.compiler}"
        )


def assert_golden(record: Any, path: str | os.PathLike[str], *, update: bool = False) -> None:
    """Assert that a Trace, or the shardings of a tree of arrays, equal those in a golden file.

    With `update` the file is written instead. It has no line numbers, which change with every edit.
    """
    __tracebackhide__ = True
    lines = _golden_lines(record)
    file = Path(path)
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n", "utf-8")
        return
    if not file.exists():
        text = "\n".join(f"  {line}" for line in lines)
        raise AssertionError(
            f"The golden file {file} does not exist; run pytest with --shardlab-update to write:"
            f"\n{text}"
        )
    golden_lines = file.read_text("utf-8").splitlines()
    if golden_lines != lines:
        diff = "\n".join(_diff_lines(golden_lines, lines, str(file), "now"))
        raise AssertionError(
            f"The result differs from {file}; if it is right, run pytest with --shardlab-update.\n"
            f"{diff}"
        )


def trace_program(
    f: Callable[..., Any], *args: Any, mesh: Any = None, memory: bool = False
) -> Trace:
    """Return the trace of a program, within the time limit; fail if JAX rejects the program."""
    __tracebackhide__ = True
    from shardlab.analysis.trace_and_check import trace
    from shardlab.errors import ProgramRejected

    try:
        with time_limit(timeout, _quote_name(f)):
            return trace(f, *args, mesh=mesh, memory=memory)
    except ProgramRejected as error:
        raise AssertionError(str(error)) from None


# ---------------------------------------------------------------------------------------- lines


def _quote_name(f: Any) -> str:
    return repr(getattr(f, "__name__", None) or type(f).__name__)


def call_text(call: CollectiveCall) -> str:
    """Return a call in the form of `expected`: `psum data`, `all_gather data,model`."""
    return f"{call.op} {','.join(call.mesh_axes)}".strip()


def _match_expectation(call: CollectiveCall, expected: Sequence[str], index: int) -> str:
    """Return the call as text, without its mesh axes if the expectation has none."""
    text = call_text(call)
    if expected[index : index + 1] in ([text], [call.op]):
        return expected[index]
    # The expectation differs at this position: use the form that it has elsewhere, so that the diff
    # shows only real differences.
    return call.op if call.op in expected and text not in expected else text


def _execution_lines(trace: Trace, expected: Mapping[str, int]) -> list[str]:
    counts: dict[str, int] = {}
    for call in trace.collectives:
        name = call.op if call.op in expected else call_text(call)
        # The number of iterations of a while loop is unknown; it counts as one.
        counts[name] = counts.get(name, 0) + (1 if call.count is None else call.count)
    return [f"{count} x {name}" for name, count in counts.items()]


def _golden_lines(record: Any) -> list[str]:
    from shardlab.sharding.mesh import mesh_text
    from shardlab.tracing.trace import Trace

    if not isinstance(record, Trace):
        from shardlab.simulator.shards import sharding_lines

        return sharding_lines(record)
    lines = [f"mesh {mesh_text(record.mesh)}", *map(_call_line, record.collectives)]
    return [*lines, f"each device sends {record.wire_bytes:,} bytes"]


def _call_line(call: CollectiveCall) -> str:
    count = "?" if call.count is None else call.count
    function = f" in {call.source.function}" if call.source.function else ""
    shape = ",".join(map(str, call.shape))
    return (
        f"{call_text(call)}: {call.dtype}[{shape}] x {count}, {call.phase}, "
        f"{call.wire_bytes:,} bytes{function}"
    )


def _diff_lines(
    before: Sequence[str], after: Sequence[str], before_name: str, after_name: str
) -> list[str]:
    """Return a diff with full context, because these lists are short.

    >>> print("\\n".join(_diff_lines(["psum data"], ["psum data", "pmax data"], "expected", "now")))
    --- expected
    +++ now
      psum data
    + pmax data
    """
    lines = [f"--- {before_name}", f"+++ {after_name}"]
    # autojunk would ignore a line that is repeated often, such as the same psum of every layer.
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            lines += [f"  {line}" for line in before[i:j]]
        else:
            lines += [f"- {line}" for line in before[i:j]]
            lines += [f"+ {line}" for line in after[k:m]]
    return lines
