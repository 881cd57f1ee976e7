"""The process that runs the user's program: reads one `Job`, writes progress and one result.

Started by `worker_client`, never imported by users. Its standard output is the message channel, so
the program's own output is redirected to standard error.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO

from shardlab.errors import LabError, MemoryLimitReached, ProgramExited, ProgramRaised
from shardlab.execution.messages import (
    Failure,
    Job,
    Message,
    Progress,
    WorkerResult,
    decode_message,
    encode_message,
)
from shardlab.execution.target import Target

if TYPE_CHECKING:
    from shardlab.findings.fix_search import FixSearch
    from shardlab.findings.report import Report

_MAX_TRACEBACK = 20_000  # characters of the program's own traceback
_CPU_GRACE_SECONDS = 5
_MAX_FDS = 4096
_RETRY_SECONDS = 0.01  # until a signal whose exception was ignored is sent again
_SEARCH_SHARE = 0.75  # of the time limit, for `check --fix`
_UNLIMITED_SECONDS = 3600.0
_DEFAULT_DEVICES = 8  # that a program sees if neither it nor the job names a number

ReportStep = Callable[[str], None]


def main() -> None:
    """Do one job and exit, without waiting for threads that the program left running."""
    channel, line = open_channel()
    job = decode_message(line)
    assert isinstance(job, Job)
    _limit_processor_time(job.cpu_seconds)

    def send_message(message: Message) -> None:
        channel.write(encode_message(message) + "\n")
        channel.flush()

    try:
        result = _run_job(job, lambda step: send_message(Progress(step)))
        # What the program printed must come before the result.
        sys.stdout.flush()
        sys.stderr.flush()
        send_message(result)
    except OSError:  # the client is gone, so the program's children must be ended here
        kill_process_group()
    finally:
        os._exit(0)


def open_channel() -> tuple[TextIO, bytes]:
    """Keep standard input and output for messages, and give the program others.

    Return where to write messages, and the line of the job.
    """
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    client = FileIO(os.dup(0), "rb")
    line = _read_line(client)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)

    _exit_with_client(client)
    # A shell starts background jobs with SIGINT ignored; autoshard ends its search by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # An exception instead of the default action, so that the program's `finally` blocks run.
    signal.signal(signal.SIGTERM, _stop)
    sys.unraisablehook = functools.partial(_deliver_again, sys.unraisablehook)
    return channel, line


class _Stopped(SystemExit):
    """Ends the program after SIGTERM."""


def _stop(*_: object) -> NoReturn:
    raise _Stopped("stopped")


def _deliver_again(report: Callable[[Any], object], unraisable: Any) -> None:
    """Send the signal again if its exception was raised where Python ignores exceptions.

    That is in callbacks of the garbage collector, of which JAX has one, and in `__del__`.
    """
    signals = {_Stopped: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
    number = signals.get(unraisable.exc_type)
    if number is None:
        report(unraisable)
        return
    # Later, from another thread: the main thread is still in the callback.
    timer = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _exit_with_client(client: FileIO) -> None:
    """End this process, and the program's children, when the client is gone.

    The client never writes a second line: a read returns when its end of the pipe closes, also when
    the client was killed. A thread could not act on that while the program holds the interpreter's
    lock, so another process reads.
    """
    if hasattr(os, "fork"):
        group = os.getpid()
        pid = os.fork()
        if pid == 0:
            _watch_client(client.fileno(), group)
        # The watcher is a grandchild, so that a program that waits for its children finds none.
        os.waitpid(pid, 0)
        return

    def wait_for_client() -> None:
        client.read(1)
        kill_process_group()

    threading.Thread(target=wait_for_client, daemon=True).start()


def _watch_client(client_fd: int, group: int) -> NoReturn:
    """In a forked process: kill the group as soon as the client's pipe closes."""
    try:
        if os.fork() == 0:
            os.setpgid(0, 0)  # out of the group that it will kill, and that a program may kill
            # All pipes but this one: they would look open to the client when the program is gone.
            os.closerange(0, client_fd)
            os.closerange(client_fd + 1, _MAX_FDS)
            os.read(client_fd, 1)
            os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
    os._exit(0)


def _limit_processor_time(seconds: float) -> None:
    """Let the kernel end the program when its time is up, if the client cannot.

    The client's limit is elapsed time; a program may use all processors during it.
    """
    if not seconds:
        return
    with contextlib.suppress(ImportError, OSError, ValueError, OverflowError):
        import resource

        limit = math.ceil(seconds * (os.cpu_count() or 1)) + _CPU_GRACE_SECONDS
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))


def kill_process_group() -> None:
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _read_line(pipe: FileIO) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (chunk := pipe.read(1 << 16)):
        line += chunk
    return line


def _run_job(job: Job, report_step: ReportStep) -> WorkerResult | Failure:
    try:
        return _do_job(job, report_step)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return describe_failure(error, job)


def _do_job(job: Job, report_step: ReportStep) -> WorkerResult:
    report_step("loading JAX")
    from shardlab.simulator.simulated_mode import simulated

    _limit_memory(job.memory_limit)
    with simulated(_count_devices(job)):
        if job.target.kind == "script":
            return _run_script(job, report_step)
        if job.command == "plan":
            return _load_model(job, report_step)
        if job.command == "trace":
            return _trace_function(job, report_step)
        if job.command == "record":
            return _record_function(job, report_step)
        if job.command == "autoshard":
            return _autoshard_function(job, report_step)
        return _check_function(job, report_step)


def _limit_memory(n_bytes: int) -> None:
    """Let the program allocate `n_bytes` beyond what JAX itself has allocated.

    Systems without RLIMIT_DATA (macOS, Windows) have only their own limits.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        # RLIMIT_DATA and not RLIMIT_AS: XLA and jemalloc reserve address space that they never
        # touch. Field 6 of statm is data plus stack, in pages.
        with open("/proc/self/statm") as file:
            in_use = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (in_use + n_bytes, in_use + n_bytes))


def _count_devices(job: Job) -> int | None:
    """Return enough devices for the meshes; None lets the program choose, or gives it 8."""
    from shardlab.sharding.mesh import parse_mesh

    if job.devices:
        return job.devices
    largest = max((parse_mesh(mesh).n_devices for mesh in job.meshes), default=0)
    return largest if largest > _DEFAULT_DEVICES else None


# ------------------------------------------------------------------------------------- the commands


def _load_function(job: Job, report_step: ReportStep) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    from shardlab.execution.load_target import find_function, load_arguments

    report_step(f"loading {job.target.location}")
    module = _load_once(job.target.kind, job.target.location)
    function = find_function(module, job)
    return function, load_arguments(function, module, job)


@functools.cache
def _load_once(kind: Literal["file", "module", "script"], location: str) -> types.ModuleType:
    """Import a file or module; the reference of a program is often in the same file."""
    from shardlab.execution.load_target import load_target_module

    return load_target_module(Target(kind, location))


def _trace_function(job: Job, report_step: ReportStep) -> WorkerResult:
    from shardlab.analysis.trace_and_check import trace

    function, args = _load_function(job, report_step)
    name = job.target.function
    report_step(f"tracing {name}{f' on {job.mesh}' if job.mesh else ''}")
    record = trace(function, *args, mesh=job.mesh, topology=job.topology, quick=job.quick)
    # A wrapped function has the name of its body; the user knows it by the name they typed.
    return WorkerResult(traces=(replace(record, program=name),))


def _autoshard_function(job: Job, report_step: ReportStep) -> WorkerResult:
    from shardlab.autoshard.find_shardings import DEFAULT_HARDWARE, autoshard

    function, args = _load_function(job, report_step)
    options = job.autoshard
    assert options is not None
    answer = autoshard(
        function,
        *args,
        mesh=job.mesh,
        devices=None if job.mesh else job.devices,
        hardware=job.hardware or DEFAULT_HARDWARE,
        memory=options.memory,
        budget=options.budget,
        seed=options.seed,
        prove=options.prove,
        proof_limit=options.proof_limit,
        on_progress=report_step,
    )
    return WorkerResult(autosharding=replace(answer, program=job.target.function))


def _record_function(job: Job, report_step: ReportStep) -> WorkerResult:
    from shardlab.recording.record_program import record

    function, args = _load_function(job, report_step)
    name = job.target.function
    report_step(f"recording {name}{f' on {job.mesh}' if job.mesh else ''}")
    recording = record(function, *args, mesh=job.mesh, hardware=job.hardware)
    return WorkerResult(recording=replace(recording, title=name))


def _check_function(job: Job, report_step: ReportStep) -> WorkerResult:
    from shardlab.analysis.trace_and_check import check
    from shardlab.findings.explained_by_fix import explain_by_fix

    start = time.monotonic()
    function, args = _load_function(job, report_step)
    meshes: dict[str, Any] = {}
    if job.meshes:
        meshes = {"mesh": job.mesh} if len(job.meshes) == 1 else {"meshes": list(job.meshes)}
    reference = _load_reference(job, report_step) if job.reference else None
    report_step(f"checking {job.target.function}")
    report = check(
        function,
        *args,
        **meshes,
        run=job.run,
        reference=reference,
        scaled=job.scaled,
        on_progress=report_step,
    )
    report = replace(report, program=job.target.function)
    if job.fix:
        # The report of the check must arrive before the client's own limit ends this process.
        deadline = start + _SEARCH_SHARE * (job.cpu_seconds or _UNLIMITED_SECONDS)
        search = _search_fixes(job, report, deadline, report_step)
        report = explain_by_fix(replace(report, fix_search=search))
    return WorkerResult(report=report)


def _search_fixes(job: Job, report: Report, deadline: float, report_step: ReportStep) -> FixSearch:
    from shardlab.analysis.fix_proof import Program
    from shardlab.execution.fix_search import SearchRequest, search_fixes
    from shardlab.execution.load_target import find_function, load_arguments

    def load_program(module: types.ModuleType) -> Program:
        function = find_function(module, job)
        return Program(function=function, args=load_arguments(function, module, job))

    return search_fixes(
        SearchRequest(
            module=_load_once(job.target.kind, job.target.location),
            function_name=job.target.function,
            load_program=load_program,
            report=report,
            deadline=deadline,
            meshes=job.meshes,
            reference=_load_reference(job, report_step) if job.reference else None,
            report_step=report_step,
        )
    )


def _load_reference(job: Job, report_step: ReportStep) -> Callable[..., Any]:
    from shardlab.execution.load_target import find_function

    reference = job.reference
    assert reference is not None
    report_step(f"loading {reference.location}")
    module = _load_once(reference.kind, reference.location)
    return find_function(module, replace(job, target=reference))


def _run_script(job: Job, report_step: ReportStep) -> WorkerResult:
    from shardlab.analysis.analyze_script import check_script, trace_script

    sys.path.insert(0, "")  # replaced by the script's own folder, as `python` does
    path, args = job.target.location, job.args
    if job.command == "record":
        from shardlab.recording.script_recording import record_script

        report_step(f"running {path}")
        recording, error = record_script(path, args, job.program, hardware=job.hardware)
        result = WorkerResult(recording=recording)
    elif job.command == "check":
        report, error = check_script(path, args, on_progress=report_step)
        result = WorkerResult(report=report)
    else:
        traces, notes, error = trace_script(path, args, on_progress=report_step)
        result = WorkerResult(traces=tuple(traces), notes=notes)
    return result if error is None else replace(result, failure=describe_failure(error, job))


def _load_model(job: Job, report_step: ReportStep) -> WorkerResult:
    """Return the shapes of the model that the user's file creates."""
    from shardlab.execution.load_target import find_attribute, load_target_module
    from shardlab.planner.models.pytree import model_from_pytree

    report_step(f"loading {job.target.location}")
    value = find_attribute(load_target_module(job.target), job)
    report_step(f"creating {job.target.function}")
    model = model_from_pytree(value, job.target.function)
    return WorkerResult(model=replace(model, source=str(job.target)))


# ----------------------------------------------------------------------------------------- failures


def describe_failure(error: BaseException, job: Job) -> Failure:
    """Return our own error as it is, and the program's exception with its traceback."""
    if isinstance(error, LabError):
        return Failure.of_error(error)
    from shardlab.simulator.script_runner import traceback_text, user_line_of

    # A traceback without a line of the user's helps only to debug shardlab itself.
    is_useful = user_line_of(error) or os.environ.get("SHARDLAB_TRACEBACK")
    # sys.exit is an ordinary end of a script: its traceback would only point at sys.exit.
    has_traceback = is_useful and not isinstance(error, SystemExit)
    text = traceback_text(error, user_code_only=True)[-_MAX_TRACEBACK:] if has_traceback else ""
    return Failure.of_error(_explain_exception(error, job), text)


def _explain_exception(error: BaseException, job: Job) -> LabError:
    """Return the error to print after the program's own traceback."""
    from shardlab.simulator.script_runner import user_line_of

    kind, text = type(error).__name__, (_error_message(error).strip().splitlines() or [""])[0][:200]
    where = user_line_of(error)
    if not where:
        return ProgramRaised(
            f"shardlab itself failed, with {kind}: {text}",
            where=job.command_line,
            fix="report this together with the program; the program is not at fault.",
        )
    if isinstance(error, MemoryError) or text.startswith("RESOURCE_EXHAUSTED"):
        from shardlab._text.units import bytes_text

        return MemoryLimitReached(
            f"The program needed more memory than its limit of {bytes_text(job.memory_limit)}.",
            where=where,
            fix="try smaller shapes, or pass shape strings instead of arrays; "
            "--memory-limit raises the limit.",
        )
    if isinstance(error, SystemExit):
        return _explain_exit(error, where, job)
    message = f"The program raised {kind}{': ' + text if text else '.'}"
    return ProgramRaised(message, where=where, fix=_suggest_fix(error))


def _error_message(error: BaseException) -> str:
    """Return an exception's message; empty if its `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return ""


def _explain_exit(error: SystemExit, where: str, job: Job) -> LabError:
    status = f"code {error.code}." if isinstance(error.code, int) else f"the message: {error.code}"
    fix = "see what it printed above; it must run to its end before it can be analyzed."
    if job.target.kind == "script":
        fix += f" Its own arguments follow --, as in {job.command_line} -- --steps 2."
    return ProgramExited(f"The program exited with {status}", where=where, fix=fix)


def _suggest_fix(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name!r} beside shardlab ({sys.executable}), or set PYTHONPATH."
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "name it as a module, such as package.module:function, from the folder above."
    if isinstance(error, SyntaxError):
        return "fix that line; Python itself cannot parse the file."
    if isinstance(error, EOFError):
        return "pass what the program reads as arguments; it has no standard input here."
    # Not imported on top: the worker says that it loads JAX, and only then does so.
    from shardlab._jax.explicit_axes import explain_explicit_axes

    if reason := explain_explicit_axes(error):
        return f"{reason[1]} {reason[0]}"
    return "see the program's own traceback above; it must run before it can be analyzed."
