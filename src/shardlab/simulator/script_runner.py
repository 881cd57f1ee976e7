"""Runs a user's script or module as `python` would, in simulated mode."""

from __future__ import annotations

import importlib.util
import io
import os
import runpy
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from shardlab._jax import device_hooks, explicit_axes
from shardlab.errors import InvalidDeviceCount, ProgramNotFound
from shardlab.simulator.hosts.world import has_hosts
from shardlab.simulator.program_exit import ProgramExit
from shardlab.simulator.run_statistics import RUN_STATISTICS
from shardlab.simulator.simulated_mode import simulated

# The exit code of a strict run with replicated outputs that differ between devices.
REPLICAS_DIFFER_EXIT_CODE = 3
_NO_COORDINATOR = "coordinator_address should be defined"  # JAX's text
_INTERRUPTED_EXIT_CODE = 130  # 128 + SIGINT, as in a shell

_JAX_FOLDER = str(Path(jax.__file__).parent)
# Frames of shardlab, and of runpy in frozen modules, are not part of the user's traceback.
_HIDDEN = (str(Path(__file__).parents[1]), "<frozen ")
_NOT_USER_CODE = (*_HIDDEN, _JAX_FOLDER, sys.prefix, sys.base_prefix)


def run_script_file(
    program: str,
    args: Sequence[str],
    *,
    is_module: bool = False,
    devices: int | None = None,
    strict: bool = False,
    after_run: Callable[[], None] = lambda: None,
) -> tuple[int, str]:
    """Run a program, and return its exit code and a line that summarizes the simulation.

    With no `devices` the program gets as many as it requests itself, or 8. The real backend has
    one device, whatever the environment and the program request. With `strict`, a program that
    succeeds but has outputs whose replicas differ exits with `REPLICAS_DIFFER_EXIT_CODE`.
    `after_run` is called after the program, while its devices still exist.
    """
    check_program_exists(program, is_module)
    RUN_STATISTICS.clear(warn_once=True)
    program_exit = ProgramExit()
    with simulated(devices) as device_count, program_exit.collect_callbacks():
        code = _run_for_exit_code(lambda: execute_as_main(program, args, is_module), program_exit)
        jax.effects_barrier()
        program_exit.call_callbacks()
        after_run()
        n_devices = device_count.fix_count()
    # A backend that was started before the mode could have several devices.
    n_real = len(device_hooks.real_backend().local_devices())
    if n_real != 1:
        raise InvalidDeviceCount(
            f"The real backend has {n_real} devices; expected 1.",
            where=f"shardlab run {program}",
            fix="report this bug: the values are right, but they were computed on several devices.",
        )
    meshes = "; ".join(RUN_STATISTICS.meshes) or "none"
    of_hosts = f" of {device_count.n_hosts} hosts" if device_count.n_hosts > 1 else ""
    summary = (
        f"shardlab: simulated {n_devices} devices{of_hosts} on 1 CPU device; meshes: {meshes}; "
        f"shard_maps: {RUN_STATISTICS.n_shard_maps}"
    )
    if RUN_STATISTICS.n_differing:
        summary += f"; replicated outputs that differ: {RUN_STATISTICS.n_differing}"
        code = code or (REPLICAS_DIFFER_EXIT_CODE if strict else 0)
    RUN_STATISTICS.clear()
    return code, summary


def check_program_exists(program: str, is_module: bool) -> None:
    """Raise if there is no such file or module."""
    if is_module:
        sys.path.insert(0, os.getcwd())
        try:
            exists = importlib.util.find_spec(program) is not None
        except (ImportError, ValueError):
            exists = False
        finally:
            sys.path.pop(0)
        message = f"There is no module named {program!r}."
    else:
        exists, message = Path(program).exists(), f"There is no file {program!r}."
    if not exists:
        raise ProgramNotFound(
            message,
            where=f"shardlab run {'-m ' if is_module else ''}{program}, in {os.getcwd()}",
            fix="check the name, or run it from the folder that contains it.",
        )


# -------------------------------------------------------------------------------- as python would


def execute_as_main(program: str, args: Sequence[str], is_module: bool = False) -> None:
    """Run a program as `python program args` would, in this process."""
    sys.argv = [program, *args]
    # sys.path[0] is the folder of the shardlab command; python puts the script's there.
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    if Path(program).is_dir() or program.endswith((".zip", ".pyz")):
        runpy.run_path(program, run_name="__main__")
        return
    path = os.path.abspath(program)
    sys.path[0] = os.path.dirname(os.path.realpath(program))
    # Not runpy.run_path, which restores sys.modules at the end: the program may pickle its own
    # classes, or use its globals in threads that are still running.
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, main.__dict__)


def _run_for_exit_code(execute: Callable[[], None], program_exit: ProgramExit) -> int:
    """Call `execute` and return the exit code that `python` would have ended with."""
    try:
        code = _call_for_exit_code(execute)
        # While the mode is on: threads that still run JAX would lose their devices.
        program_exit.join_threads()
        return code
    except KeyboardInterrupt as error:
        _print_error(error)
        return _INTERRUPTED_EXIT_CODE
    finally:
        sys.stdout.flush()


def _call_for_exit_code(execute: Callable[[], None]) -> int:
    try:
        execute()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        _print_error(error)
        return _INTERRUPTED_EXIT_CODE
    except BaseException as error:
        _print_error(error)
        return 1
    return 0


def _print_error(error: BaseException) -> None:
    """Print a traceback that begins in the user's program."""
    sys.stdout.flush()
    if isinstance(error, KeyboardInterrupt) and has_hosts():
        return  # each host has the same traceback; the command says once that it was interrupted
    # The program has installed a hook of its own, such as rich.traceback.
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, error.__traceback__)
        return
    print(traceback_text(error), end="", file=sys.stderr)
    if reason := explicit_axes.explain_explicit_axes(error):
        explanation, fix = reason
        print(f"shardlab: {explanation}\n  try: {fix}", file=sys.stderr)
    if isinstance(error, ValueError) and _NO_COORDINATOR in str(error):
        print(
            "shardlab: this run has one host, and jax.distributed.initialize() found no cluster.\n"
            "  try: `shardlab run --hosts N`, which runs the program on N virtual hosts.",
            file=sys.stderr,
        )


def traceback_text(error: BaseException, *, user_code_only: bool = False) -> str:
    """Return a traceback that begins in the user's program, without frames of shardlab.

    With `user_code_only` also without those of JAX, and without its note about them.
    """
    formatted = traceback.TracebackException.from_exception(error)
    if not os.environ.get("SHARDLAB_TRACEBACK"):
        _drop_frames(formatted, (*_HIDDEN, _JAX_FOLDER) if user_code_only else _HIDDEN)
    return "".join(formatted.format())


def user_line_of(error: BaseException) -> str:
    """Return the innermost line of the user's program in the traceback of an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        f"{frame.filename}:{frame.lineno} ({frame.name})"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_USER_CODE)
    ]
    return frames[-1] if frames else ""


def _drop_frames(formatted: traceback.TracebackException, hidden: tuple[str, ...]) -> None:
    frames = [frame for frame in formatted.stack if not frame.filename.startswith(hidden)]
    formatted.stack = traceback.StackSummary.from_list(frames)
    # JAX's note that it has removed internal frames would be repeated for each exception.
    if _JAX_FOLDER in hidden and formatted.__notes__:
        formatted.__notes__ = [n for n in formatted.__notes__ if "internal frames" not in n]
    for chained in (formatted.__cause__, formatted.__context__):
        if chained is not None:
            _drop_frames(chained, hidden)
