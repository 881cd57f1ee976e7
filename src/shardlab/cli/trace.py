"""`shardlab trace`: what a program communicates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.worker_options import ARGUMENTS_HELP, ask, program_options, raise_failure

if TYPE_CHECKING:
    from shardlab.hardware.estimate import Estimate
    from shardlab.tracing.trace import Trace

_HELP = f"""List what a program communicates: bytes, and time on named hardware.

    PROGRAM is file.py:function, module:function, or a whole script, of which every shard_map and
    every sharded jit that it runs is traced.

    \b
    shardlab trace train.py:step --mesh data=16,model=32 --hardware tpu-v5p
    shardlab trace mypackage.model:loss 'f32[1024,4096]' 'bf16[4096,4096]' --mesh data=8
    shardlab trace train.py --json trace.json -- --steps 2
{ARGUMENTS_HELP}
    \b
    Exit codes
      0    traced; findings, if any, are listed but do not fail (see shardlab check)
      2    JAX refuses the program, it could not be looked at, or the command was not understood
      124  the time limit was reached
      130  interrupted

    What the program prints goes to standard error; standard output holds the trace.
    """


@click.command("trace", help=_HELP)
@program_options
@click.option("--mesh", metavar="AXES", help="Mesh axes, such as data=16,model=32.")
@click.option(
    "--hardware",
    metavar="NAME",
    help="Also estimate the time on tpu-v5p, h100, ... or on the chip of a TOML file.",
)
@click.option(
    "--topology",
    metavar="NAME",
    help="Ask the TPU compiler, for v5e:16x16 or the like. Needs shardlab[tpu], and no TPU.",
)
@click.option(
    "--dcn", multiple=True, metavar="AXIS", help="A mesh axis that crosses pods; may be repeated."
)
@click.option(
    "--efficiency",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    metavar="SHARE",
    help="The share of the hardware's peak figures that is reached.",
)
@click.option(
    "--dtype", default="bf16", show_default=True, help="The type that the FLOPs are counted in."
)
@click.option(
    "--picture",
    metavar="WHICH",
    help="Also draw: timeline, traffic, or the number of a call for its steps.",
)
@click.option("--svg", "svg_to", metavar="FILE", help="Write that picture as SVG (the timeline).")
def command(
    program: str,
    args: tuple[str, ...],
    args_from: str | None,
    mesh: str | None,
    devices: int | None,
    hardware: str | None,
    topology: str | None,
    dcn: tuple[str, ...],
    efficiency: float,
    dtype: str,
    json_to: str | None,
    html_to: str | None,
    picture: str | None,
    svg_to: str | None,
    time_limit: float,
    memory_limit: str | None,
    quiet: bool,
) -> None:
    from shardlab.cli.outputs import check_places
    from shardlab.execution.target import make_job, parse_target
    from shardlab.sharding.mesh import parse_mesh

    check_places(json=json_to, html=html_to, svg=svg_to)
    _check_picture(picture)
    target = parse_target(program)
    meshes = [] if mesh is None else [str(parse_mesh(mesh))]
    timed = _clock(hardware, dcn, efficiency, dtype)
    if topology and target.kind == "script":
        raise click.UsageError("--topology needs a function: file.py:function or module:function.")
    told = make_job(
        "trace", target, args, args_from, meshes=meshes, devices=devices, topology=topology
    )
    answer = ask(told, time_limit=time_limit, memory_limit=memory_limit, quiet=quiet)
    script = target.place if target.kind == "script" else ""
    _write(
        answer, script, Asked(timed=timed, json=json_to, html=html_to, svg=svg_to, picture=picture)
    )
    raise_failure(answer)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be made of the traces."""

    timed: Callable[[Trace], Estimate | None]
    json: str | None
    html: str | None
    svg: str | None
    picture: str | None


def _clock(
    hardware: str | None, dcn: tuple[str, ...], efficiency: float, dtype: str
) -> Callable[[Trace], Estimate | None]:
    """Return what times a trace; wrong names of hardware are refused before the long work."""
    if hardware is None:
        if dcn:
            raise click.UsageError("--dcn says how time is counted: it needs --hardware.")
        return lambda trace: None
    from shardlab.hardware.chips import parse_hardware

    chip = parse_hardware(hardware)
    return lambda trace: trace.estimate(chip, dcn=dcn, efficiency=efficiency, dtype=dtype)


def _write(answer: dict[str, Any], script: str, ask_for: Asked) -> None:
    from shardlab.cli.outputs import json_text, page, write_all
    from shardlab.tracing.trace import Trace
    from shardlab.tracing.trace_text import trace_html

    traces = [Trace.from_json(data) for data in answer["traces"]]
    parts = [(trace, ask_for.timed(trace)) for trace in traces]
    notes = answer.get("notes", [])
    if ask_for.picture not in (None, "timeline", "traffic"):
        for trace in traces:
            _call(trace, ask_for.picture)  # a number that there is not is refused before all else
    title = script or traces[0].program
    outputs = {
        "--json": (ask_for.json, lambda: json_text(_json(parts, script, notes))),
        "--html": (ask_for.html, lambda: page(title, (trace_html(*part) for part in parts))),
        "--svg": (ask_for.svg, lambda: _svg(parts, ask_for.picture)),
    }
    if write_all(outputs):
        return
    for i, (trace, estimate) in enumerate(parts):
        click.echo("\n" if i else "", nl=False)
        _show(trace, estimate, ask_for.picture)
    if not traces:
        click.echo(f"{script} ran no shard_map and no jit with shardings: nothing to trace")
    for note in notes:
        click.echo(f"note: {note}")


def _show(trace: Trace, estimate: Estimate | None, picture: str | None) -> None:
    from shardlab.cli.outputs import show
    from shardlab.tracing.trace_text import trace_rich, trace_text

    show(
        lambda width: trace_text(trace, width, estimate),
        lambda width: trace_rich(trace, width, estimate),
    )
    if picture == "timeline":
        click.echo("\n" + trace.timeline_text(estimate=estimate))
    elif picture == "traffic":
        click.echo("\n" + trace.traffic_text())
    elif picture is not None:
        click.echo("\n" + trace.steps_text(_call(trace, picture)))


def _svg(parts: list[tuple[Trace, Estimate | None]], picture: str | None) -> str:
    if len(parts) != 1:
        raise click.UsageError(
            f"--svg draws one program, and this script ran {len(parts)}: use --html, or name a "
            "function."
        )
    trace, estimate = parts[0]
    if picture in (None, "timeline"):
        return trace.timeline_svg(estimate)
    return trace.traffic_svg() if picture == "traffic" else trace.steps_svg(_call(trace, picture))


def _call(trace: Trace, picture: str | None) -> int:
    """Return the place of the call that a person numbers from 1."""
    number, n_calls = int(picture or 0), len(trace.collectives)
    if not 1 <= number <= n_calls:
        have = {0: "no calls", 1: "one call, number 1"}.get(n_calls, f"calls 1 to {n_calls}")
        raise click.UsageError(f"--picture {number}: {trace.program} has {have}.")
    return number - 1


def _json(parts: list[tuple[Trace, Estimate | None]], script: str, notes: list[str]) -> Any:
    """Return one trace as its own data, those of a script as a list."""
    data = []
    for trace, estimate in parts:
        data.append(trace.to_json())
        if estimate is not None:
            data[-1]["estimate"] = estimate.to_json()
    return {"program": script, "traces": data, "notes": notes} if script else data[0]


def _check_picture(picture: str | None) -> None:
    if picture not in (None, "timeline", "traffic") and not str(picture).isdecimal():
        raise click.UsageError(
            f"--picture {picture}: timeline, traffic, or the number of a call from 1."
        )
