"""What was read from a configuration, as text: values, settings read, settings ignored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardlab.planner.configs.run_config import RunConfig
from shardlab.render.sheet import Section

_MAX_READ = 40  # settings listed; the JSON has all
_MAX_IGNORED = 12


def config_section(
    run: RunConfig, overridden: Sequence[str] = (), problems: Sequence[str] = ()
) -> Section:
    """Return what a configuration says; `overridden` are options in place of its values."""
    return Section(
        f"{run.format} {run.source}", None, tuple(config_lines(run, overridden, problems))
    )


def config_lines(
    run: RunConfig, overridden: Iterable[str] = (), problems: Iterable[str] = ()
) -> Iterator[str]:
    """Yield the values that the plan is made with, then the settings behind them."""
    values = "; ".join(_describe_values(run))
    if values:
        yield values
    if names := ", ".join(overridden):
        yield f"given by options instead: {names}"
    yield _list_settings("read", run.settings_read, _MAX_READ)
    if run.settings_ignored:
        yield _list_settings("not used", run.settings_ignored, _MAX_IGNORED)
    yield from run.notes
    yield from problems


def _describe_values(run: RunConfig) -> Iterator[str]:
    if run.model is not None:
        yield f"model {run.model.name}, {run.model.n_parameters:,} parameters"
    if run.mesh is not None:
        yield f"mesh {run.mesh_text}"
    if run.strategy is not None:
        yield f"strategy {run.strategy}"
    if run.rules is not None:
        yield f"{len(run.rules.rules)} layouts"
    if run.batch is not None and run.sequence is not None:
        microbatch = f", {run.microbatch:,} at once" if run.microbatch else ""
        yield f"batch {run.batch:,} x sequence {run.sequence:,}{microbatch}"
    named = {"remat": run.remat, "optimizer": run.optimizer, "hardware": run.hardware}
    named |= {"precision": run.precision, "framework": run.framework}
    if run.mesh is not None and run.mesh.shape.get("stage", 1) > 1:
        named["schedule"] = run.schedule
    yield from (f"{name} {value}" for name, value in named.items() if value)
    if run.policy is not None:
        yield f"dtypes {run.policy}"


def _list_settings(label: str, settings: Sequence[str], limit: int) -> str:
    listed = ", ".join(settings[:limit]) or "nothing"
    n_more = len(settings) - limit
    return f"{label}: {listed}{f', and {n_more:,} more' if n_more > 0 else ''}"
