"""The process that a person's program runs in: told what to do in JSON, answers in JSON.

Started by `cli/child.py`, never imported by a person. Its standard output is the channel for
answers; the program finds its own output led to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TextIO

from shardlab.errors import LabError, MemoryLimitReached, ProgramExited, ProgramRaised

Tell = Callable[[str], None]


def main() -> None:
    """Do one job and end, without waiting for what the program has left running."""
    channel, job = _open_channel()

    def say(message: Mapping[str, Any]) -> None:
        channel.write(json.dumps(message, default=str) + "\n")
        channel.flush()

    try:
        answer = _answer(job, lambda text: say({"progress": text}))
        sys.stdout.flush()
        sys.stderr.flush()
        say(answer)
    except OSError:  # nobody reads any more, so nobody will end the program's children
        _end_group()
    finally:
        os._exit(0)


def _open_channel() -> tuple[TextIO, dict[str, Any]]:
    """Take standard input and output for ourselves, and give the program others."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    parent = os.fdopen(os.dup(0), "rb", buffering=0)
    job: dict[str, Any] = json.loads(_read_line(parent))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)

    def end_with_parent() -> None:
        parent.read(1)
        _end_group()

    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    return channel, job


def _end_group() -> None:
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _read_line(pipe: Any) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (chunk := pipe.read(1 << 16)):
        line += chunk
    return line


def _answer(job: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    try:
        return {"result": _do(job, tell)}
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return _failure(error, job)


def _failure(error: BaseException, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error as data, with the program's own traceback where that tells more."""
    if isinstance(error, LabError):
        return {"error": error.to_json()}
    from shardlab.simulator.script_runner import traceback_text, user_line_of

    # Ours would mean nothing to a person, but for one who looks for a mistake of ours.
    is_theirs = user_line_of(error) or os.environ.get("SHARDLAB_TRACEBACK")
    is_shown = is_theirs and not isinstance(error, SystemExit)
    text = traceback_text(error, user_code_only=True)[-20_000:] if is_shown else ""
    return {"error": _raised(error, job).to_json(), "traceback": text}


def _words(error: BaseException) -> str:
    """Return what an error says; of one that raises when asked, nothing."""
    try:
        return str(error)
    except Exception:
        return ""


def _raised(error: BaseException, job: Mapping[str, Any]) -> LabError:
    """Return what to tell a person whose program has raised, beside its own traceback."""
    from shardlab.simulator.script_runner import user_line_of

    kind, text = type(error).__name__, (_words(error).strip().splitlines() or [""])[0][:200]
    where = user_line_of(error)
    if not where:
        return ProgramRaised(
            f"shardlab itself failed, with {kind}: {text}",
            where=job["shown"],
            fix="report this with the program; it is not the program's fault.",
        )
    if isinstance(error, MemoryError) or text.startswith("RESOURCE_EXHAUSTED"):
        from shardlab._text.units import bytes_text

        return MemoryLimitReached(
            f"The program wanted more memory than the {bytes_text(job['memory_limit'])} it is "
            "allowed.",
            where=where,
            fix="try smaller shapes, or give shape strings in the place of arrays; "
            "--memory-limit allows more.",
        )
    if isinstance(error, SystemExit):
        return _exited(error, where, job)
    what = f"The program raised {kind}{': ' + text if text else '.'}"
    return ProgramRaised(what, where=where, fix=_way_out(error))


def _exited(end: SystemExit, where: str, job: Mapping[str, Any]) -> LabError:
    how = f"exit code {end.code}." if isinstance(end.code, int) else f"the words: {end.code}"
    fix = "see what it printed above; it must run well to its end before it can be looked at."
    if job["kind"] == "script":
        fix += f" Its own arguments follow --, as in {job['shown']} -- --steps 2."
    return ProgramExited(f"The program ended itself with {how}", where=where, fix=fix)


def _way_out(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name!r} beside shardlab ({sys.executable}), or set PYTHONPATH."
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "name it as a module, such as package.module:function, from the folder above."
    if isinstance(error, SyntaxError):
        return "mend that line; Python itself cannot read the file."
    if isinstance(error, EOFError):
        return "give the program what it asks for in its arguments; it has no standard input here."
    return "see the program's own traceback above; it must run before it can be looked at."


# --------------------------------------------------------------------------------------- the work


def _do(job: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    tell("loading JAX")
    from shardlab.simulator.simulated_mode import simulated

    _limit_memory(job["memory_limit"])
    with simulated(_device_count(job)):
        if job["kind"] == "script":
            return _script(job, tell)
        if job["command"] == "plan":
            return _plan(job, tell)
        f, args = _function(job, tell)
        return (
            _trace(f, args, job, tell) if job["command"] == "trace" else _check(f, args, job, tell)
        )


def _function(job: Mapping[str, Any], tell: Tell) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    from shardlab.execution import load_target as target

    module = _module(job, tell)
    f = target.find(module, job["function"], job["shown"])
    return f, target.arguments(f, module, job)


def _module(job: Mapping[str, Any], tell: Tell) -> ModuleType:
    from shardlab.execution import load_target as target

    tell(f"loading {job['place']}")
    sys.argv = [job["place"]]
    load = target.load_file if job["kind"] == "file" else target.load_module
    return load(job["place"])


def _plan(job: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Return the shapes of the model that a person's file makes."""
    from shardlab.execution import load_target as target
    from shardlab.planner.models.model_json import model_to_json
    from shardlab.planner.models.pytree import model_of_pytree

    found = target.find_thing(_module(job, tell), job["function"], job["shown"])
    tell(f"making {job['function']}")
    model = model_of_pytree(found, job["function"])
    return {"model": {**model_to_json(model), "source": f"{job['place']}:{job['function']}"}}


def _device_count(job: Mapping[str, Any]) -> int | None:
    """Return enough devices for the meshes asked for; None lets the program choose, or have 8."""
    from shardlab.sharding.mesh import parse_mesh

    if job["devices"]:
        return int(job["devices"])
    largest = max((parse_mesh(mesh).n_devices for mesh in job["meshes"]), default=0)
    return largest if largest > 8 else None


def _trace(
    f: Callable[..., Any], args: tuple[Any, ...], job: Mapping[str, Any], tell: Tell
) -> dict[str, Any]:
    from shardlab.analysis.trace_and_check import trace

    mesh = job["meshes"][0] if job["meshes"] else None
    tell(f"tracing {job['function']}{f' on {mesh}' if mesh else ''}")
    found = trace(f, *args, mesh=mesh, topology=job["topology"])
    # By the name that the person gave: a wrapped function has that of its body.
    return {"traces": [{**found.to_json(), "program": job["function"]}]}


def _check(
    f: Callable[..., Any], args: tuple[Any, ...], job: Mapping[str, Any], tell: Tell
) -> dict[str, Any]:
    from shardlab.analysis.trace_and_check import check

    meshes = job["meshes"]
    given = {"mesh": meshes[0]} if len(meshes) == 1 else {"meshes": meshes} if meshes else {}
    tell(f"checking {job['function']}")
    report = check(f, *args, **given, run=job["run"], on_progress=tell)
    return {"report": {**report.to_json(), "program": job["function"]}}


def _script(job: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    from shardlab.analysis.analyze_script import check_script, trace_script

    sys.path.insert(0, "")  # the place of the script's own folder, as `python` has it
    answer: dict[str, Any]
    if job["command"] == "check":
        report, ended = check_script(job["place"], job["args"], on_progress=tell)
        answer = {"report": report.to_json()}
    else:
        traces, notes, ended = trace_script(job["place"], job["args"], on_progress=tell)
        answer = {"traces": [each.to_json() for each in traces], "notes": notes}
    return {**answer, "failure": None if ended is None else _failure(ended, job)}


def _limit_memory(n_bytes: int) -> None:
    """Let the program have so much beyond what JAX itself has taken.

    Where the system does not enforce it (macOS, Windows), only its own limits hold.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (taken + n_bytes, taken + n_bytes))
