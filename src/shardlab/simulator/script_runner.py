"""Runs a person's script or module as `python` would, in simulated mode."""

from __future__ import annotations

import importlib.util
import io
import os
import runpy
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from shardlab._jax import device_hooks as seams
from shardlab.errors import InvalidDeviceCount, ProgramNotFound
from shardlab.simulator.run_statistics import RUN_STATISTICS
from shardlab.simulator.simulated_mode import simulated

# The exit code of a strict run whose replicated outputs were not.
DIFFERING = 3

_OURS = str(Path(__file__).parents[1])
_JAX = str(Path(jax.__file__).parent)
_HIDDEN = (_OURS, "<frozen ")
_NOT_THEIRS = (*_HIDDEN, _JAX, sys.prefix, sys.base_prefix)


def run_script_file(
    program: str,
    args: Sequence[str],
    *,
    is_module: bool = False,
    devices: int | None = None,
    strict: bool = False,
) -> tuple[int, str]:
    """Run a program, and return its exit code and a line that tells what was simulated.

    With no `devices` the program gets as many as it asks for itself, or 8. The real backend has
    one device, whatever the environment and the program ask for. With `strict`, a program that
    ends well but had outputs whose copies differ ends with `DIFFERING`.
    """
    _check_exists(program, is_module)
    RUN_STATISTICS.clear()
    with simulated(devices) as machine:
        code = _exit_code(lambda: execute_as_main(program, args, is_module))
        jax.effects_barrier()
        n_devices = machine.settle()
    n_real = len(seams.real_backend().local_devices())
    if n_real != 1:
        raise InvalidDeviceCount(
            f"The real backend has {n_real} devices, where one was meant to be.",
            where=f"shardlab run {program}",
            fix="report this: the values are right, but they took more than one device.",
        )
    meshes = "; ".join(RUN_STATISTICS.meshes) or "none"
    told = (
        f"shardlab: simulated {n_devices} devices on one real one; meshes: {meshes}; "
        f"shard_maps: {RUN_STATISTICS.n_shard_maps}"
    )
    if RUN_STATISTICS.n_differing:
        told += f"; outputs whose copies differ between devices: {RUN_STATISTICS.n_differing}"
        code = code or (DIFFERING if strict else 0)
    return code, told


def _check_exists(program: str, is_module: bool) -> None:
    if is_module:
        sys.path.insert(0, os.getcwd())
        try:
            found = importlib.util.find_spec(program) is not None
        except (ImportError, ValueError):
            found = False
        finally:
            sys.path.pop(0)
        what = f"There is no module named {program!r}."
    else:
        found, what = Path(program).exists(), f"There is no file {program!r}."
    if not found:
        raise ProgramNotFound(
            what,
            where=f"shardlab run {'-m ' if is_module else ''}{program}, in {os.getcwd()}",
            fix="check the name, or run it from the folder that it is in.",
        )


# -------------------------------------------------------------------------------- as python would


def execute_as_main(program: str, args: Sequence[str], is_module: bool = False) -> None:
    """Run a program as `python program args` would, in this process."""
    sys.argv = [program, *args]
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    if Path(program).is_dir() or program.endswith((".zip", ".pyz")):
        runpy.run_path(program, run_name="__main__")
        return
    path = os.path.abspath(program)
    sys.path[0] = os.path.dirname(os.path.realpath(program))
    # Kept as the main module for good: what it defines may be pickled, and used by its threads.
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, main.__dict__)


def _exit_code(execute: Any) -> int:
    """Call `execute` and return what the process would have ended with."""
    try:
        execute()
        join_threads()
    except SystemExit as end:
        join_threads()
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        _print(error)
        return 130
    except BaseException as error:
        _print(error)
        return 1
    finally:
        sys.stdout.flush()
    return 0


def join_threads() -> None:
    """Wait for the program's threads, as the interpreter does before it ends."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()


def _print(error: BaseException) -> None:
    """Print a traceback that begins in the person's program, without our own frames."""
    sys.stdout.flush()
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, error.__traceback__)
        return
    print(traceback_text(error), end="", file=sys.stderr)


def traceback_text(error: BaseException, *, theirs_only: bool = False) -> str:
    """Return a traceback that begins in the person's program, without our own frames.

    With `theirs_only` also without those of JAX, and without its note about them.
    """
    shown = traceback.TracebackException.from_exception(error)
    if not os.environ.get("SHARDLAB_TRACEBACK"):
        _drop(shown, (*_HIDDEN, _JAX) if theirs_only else _HIDDEN)
    return "".join(shown.format())


def user_line_of(error: BaseException) -> str:
    """Return the last place in the person's program that an error went through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        f"{frame.filename}:{frame.lineno} ({frame.name})"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THEIRS)
    ]
    return frames[-1] if frames else ""


def _drop(shown: traceback.TracebackException, hidden: tuple[str, ...]) -> None:
    kept = [frame for frame in shown.stack if not frame.filename.startswith(hidden)]
    shown.stack = traceback.StackSummary.from_list(kept)
    if _JAX in hidden and shown.__notes__:
        shown.__notes__ = [n for n in shown.__notes__ if "internal frames" not in n]
    for other in (shown.__cause__, shown.__context__):
        if other is not None:
            _drop(other, hidden)
