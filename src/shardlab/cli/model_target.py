"""A model that a user's file makes: `file.py:make_model`, loaded in a child process."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any

from shardlab.errors import InvalidTarget, LabError
from shardlab.execution.target import make_job, parse_target


def load_named(model: str, options: dict[str, Any]) -> Any:
    """Return the model of a name, a file or a folder, or what a person's function makes.

    A function is called in a child process under limits, where arrays are shapes alone; what comes
    back is plain data, so that this process loads no JAX.
    """
    from shardlab.planner.models.load import load_model

    if not is_target(model):
        return load_model(model)
    from shardlab.cli.worker_options import ask
    from shardlab.planner.models.model_json import model_from_json

    target = parse_target(model)
    if target.kind == "script":
        raise InvalidTarget(
            f"{model!r} is a whole file, and a plan is of one model.",
            where=f"the model {model!r}",
            fix=f"name what makes it, as in {model}:make_model.",
        )
    told = make_job("plan", target, (), None, meshes=[], devices=_n_devices(options))
    limits = {name: options[name] for name in ("time_limit", "memory_limit", "quiet")}
    made = model_from_json(ask(told, **limits)["model"])
    return replace(made, details={**made.details, "called": model})  # for what to run next


def is_target(model: str) -> bool:
    """Tell whether this names something in a file or a module, and not a file of tensors.

    >>> is_target("model.py:Decoder"), is_target("mypackage.model:make"), is_target("llama3-8b")
    (True, True, False)
    """
    place, _, name = model.rpartition(":")
    is_name = bool(place) and name.replace(".", "").isidentifier() and os.sep not in name
    return model.endswith(".py") or (is_name and not os.path.exists(model))


def _n_devices(options: dict[str, Any]) -> int | None:
    """Return how many devices the file sees: as many as the mesh has, where that can be read."""
    from shardlab.sharding.mesh import parse_mesh

    with contextlib.suppress(LabError):
        return parse_mesh(mesh).n_devices if (mesh := options.get("mesh")) else None
    return None
