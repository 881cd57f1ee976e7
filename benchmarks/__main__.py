"""`python -m benchmarks`: measure, print one table per section, then every goal's status."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console

from benchmarks import (
    command_time,
    explorer_drag,
    first_call,
    jit_trace,
    judge_throughput,
    lab_opening,
    layout_rate,
    plan_time,
    planner_accuracy,
    pod_scale,
    programs,
    report,
    script_time,
    shard_map_trace,
    step_time,
    torch_local_tensor,
    web_reading,
    web_submitting,
    worker_throughput,
)
from benchmarks.autoshard import search_quality, search_time
from benchmarks.options import QUICK, Options
from benchmarks.report import Section

_SECTIONS: dict[str, Callable[[Options], Section | list[Section]]] = {
    **{name: functools.partial(step_time.measure_steps, name) for name in programs.NAMES},
    "one-core": functools.partial(step_time.measure_one_core, "mlp"),
    "one-core-wide": functools.partial(step_time.measure_one_core, "mlp-wide"),
    "first-call": first_call.measure_first_calls,
    "compile": first_call.measure_compilation,
    "script": script_time.measure_scripts,
    "trace": shard_map_trace.measure_traces,
    "jit-trace": jit_trace.measure_jit_traces,
    "shell": command_time.measure_commands,
    "layouts": layout_rate.measure_layouts,
    "plan": plan_time.measure_plans,
    "pod-scale": pod_scale.measure_pod_scale,
    "autoshard": search_quality.measure_autoshard,
    "autoshard-time": search_time.measure_search_time,
    "planner": planner_accuracy.measure_planner,
    "judge": judge_throughput.measure_judge,
    "web-reading": web_reading.measure_reading,
    "web-submitting": web_submitting.measure_submitting,
    "workers": worker_throughput.measure_workers,
    "lab-opening": lab_opening.measure_openings,
    "explorer-drag": explorer_drag.measure_drags,
    "torch": torch_local_tensor.measure_local_tensor,
}
# Takes long and installs PyTorch, so it runs only with --torch or --only torch.
_OPTIONAL_SECTIONS = ("torch",)


def _parse_devices(_: object, __: object, text: str | None) -> tuple[int, ...] | None:
    if not text:
        return None
    allowed = [str(n) for n in programs.DEVICES]
    counts = text.split(",")
    unknown = [count for count in counts if count not in allowed]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
    return tuple(int(count) for count in counts)


def _parse_sections(_: object, __: object, text: str | None) -> tuple[str, ...]:
    default = tuple(name for name in _SECTIONS if name not in _OPTIONAL_SECTIONS)
    names = tuple(text.split(",")) if text else default
    unknown = [name for name in names if name not in _SECTIONS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(_SECTIONS)}")
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="8 and 64 devices, few rounds: a smoke test.")
@click.option(
    "--only",
    callback=_parse_sections,
    metavar="NAMES",
    help=f"Sections to run, of {','.join(_SECTIONS)}.",
)
@click.option(
    "--devices",
    callback=_parse_devices,
    metavar="N,N",
    help=f"Device counts, of {','.join(str(n) for n in programs.DEVICES)}.",
)
@click.option(
    "--search-seconds",
    type=click.FloatRange(min=0.1),
    help="Time limit of each search of section autoshard.",
)
@click.option("--prove", is_flag=True, help="Section autoshard also proves each answer.")
@click.option("--torch", is_flag=True, help="Also PyTorch's LocalTensor (installs torch once).")
@click.option(
    "--autoparallel",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="SHARDLAB_AUTOPARALLEL",
    help="A clone of meta-pytorch/autoparallel: section planner runs its NCCL model.",
)
@click.option(
    "--calculon",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="SHARDLAB_CALCULON",
    help="A clone of calculon-ai/calculon: section planner runs it on its Megatron points.",
)
@click.option("--json", "file", type=click.File("w"), help="Also write all figures to this file.")
def main(
    quick: bool,
    only: tuple[str, ...],
    devices: tuple[int, ...] | None,
    search_seconds: float | None,
    prove: bool,
    torch: bool,
    autoparallel: Path | None,
    calculon: Path | None,
    file: TextIO | None,
) -> None:
    """Time the simulator against the unsharded program and forced host devices."""
    options = dataclasses.replace(
        QUICK if quick else Options(), autoparallel=autoparallel, calculon=calculon, prove=prove
    )
    if search_seconds:
        options = dataclasses.replace(options, search_s=search_seconds)
    if devices:
        options = dataclasses.replace(options, devices=devices)
    console = Console()
    if not console.is_terminal:
        # Rich assumes 80 columns for a file or a pipe and would wrap most cells.
        console = Console(width=120)
    machine = report.describe_machine()
    report.print_machine(console, machine)
    sections: list[Section] = []
    for name in dict.fromkeys([*only, *(_OPTIONAL_SECTIONS if torch else ())]):
        with console.status(f"Measuring {name} ..."):
            measured = _SECTIONS[name](options)
        for section in measured if isinstance(measured, list) else [measured]:
            sections.append(section)
            report.print_section(console, section)
    report.print_goals(console, [goal for section in sections for goal in section.goals])
    if file:
        json.dump(report.report_json(machine, sections), file, indent=1)


if __name__ == "__main__":
    main()
