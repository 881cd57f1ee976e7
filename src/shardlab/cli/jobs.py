"""Runs a job of a command in the worker process, and loads models that a user's file creates."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardlab.errors import InvalidTarget, LabError

if TYPE_CHECKING:
    from shardlab.execution.messages import Job, WorkerResult
    from shardlab.planner.model import Model

_DEFAULT_MEMORY = 16 * 2**30  # of a machine that does not report its own


def run_job(job: Job, *, time_limit: float, memory_limit: str | None, quiet: bool) -> WorkerResult:
    """Return the worker's result; Ctrl-C also ends the worker."""
    from shardlab._text.units import parse_bytes
    from shardlab.cli.outputs import show_progress
    from shardlab.execution.worker_client import run_worker

    n_bytes = _machine_memory() if memory_limit is None else parse_bytes(memory_limit)
    try:
        with show_progress(quiet=quiet) as report_step:
            job = replace(job, memory_limit=n_bytes)
            return run_worker(job, seconds=time_limit, report_step=report_step)
    # Ctrl-C does not reach the worker, which has a session of its own; run_worker has ended it.
    except KeyboardInterrupt:
        click.echo("interrupted; the program was stopped", err=True)
        raise click.exceptions.Exit(130) from None


def raise_failure(result: WorkerResult) -> None:
    """Raise the error that ended a script, after the results so far were shown."""
    from shardlab.execution.worker_client import error_from_failure

    if result.failure is not None:
        raise error_from_failure(result.failure)


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return _DEFAULT_MEMORY


def load_model_argument(model: str, options: dict[str, Any]) -> Model:
    """Return the model of a preset, a file or a folder, or of a function in a user's file.

    A function is called in a child process under limits, where arrays are shapes only; plain data
    comes back, so that this process never loads JAX.
    """
    from shardlab.planner.models.load import load_model

    if not is_model_target(model):
        return load_model(model)
    from shardlab.execution.messages import Job
    from shardlab.execution.target import parse_target

    target = parse_target(model)
    if target.kind == "script":
        raise InvalidTarget(
            f"{model!r} is a file, and a plan needs one model in it.",
            where=f"the model {model!r}",
            fix=f"name the function or class that creates it, as in {model}:make_model.",
        )
    job = Job(command="plan", target=target, devices=_mesh_devices(options.get("mesh")))
    limits = {name: options[name] for name in ("time_limit", "memory_limit", "quiet")}
    loaded = run_job(job, **limits).model
    assert loaded is not None
    # Suggested commands name the model as the user did.
    return replace(loaded, details={**loaded.details, "called": model})


def is_model_target(model: str) -> bool:
    """Return whether `model` names something in a Python file or module.

    >>> is_model_target("model.py:Decoder"), is_model_target("mypackage.model:make")
    (True, True)
    >>> is_model_target("llama3-8b")
    False
    """
    location, _, name = model.rpartition(":")
    is_name = bool(location) and name.replace(".", "").isidentifier() and os.sep not in name
    return model.endswith(".py") or (is_name and not os.path.exists(model))


def _mesh_devices(mesh: str | None) -> int | None:
    """Return the number of devices that the file sees while it is imported: those of the mesh."""
    from shardlab.sharding.mesh import parse_mesh

    # A mesh with -1, or an invalid one, is reported later, with its option.
    with contextlib.suppress(LabError):
        return parse_mesh(mesh).n_devices if mesh else None
    return None
