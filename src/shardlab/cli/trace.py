"""`shardlab trace`: what a program communicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from shardlab.cli.completion import complete_mesh, complete_mesh_axis, complete_path
from shardlab.cli.options import (
    PROGRAM_ARGUMENTS_HELP,
    hardware_option,
    output_option,
    program_options,
)

if TYPE_CHECKING:
    from shardlab.execution.messages import WorkerResult
    from shardlab.hardware.estimate import Estimate
    from shardlab.tracing.trace import Trace

_PICTURES = ("timeline", "traffic")

_HELP = f"""List the collectives of a program: bytes, and time on named hardware.

    PROGRAM is file.py:function, module:function, or a script, of which every shard_map and every
    sharded jit that it runs is traced. The program that sends most is shown, the others are listed.

    \b
    shardlab trace train.py:step --mesh data=16,model=32 --hardware tpu-v5p
    shardlab trace mypackage.model:loss 'f32[1024,4096]' 'bf16[4096,4096]' --mesh data=8
    shardlab trace train.py --json trace.json -- --steps 2
{PROGRAM_ARGUMENTS_HELP}
    \b
    Exit codes
      0    traced; findings are listed but are not an error (see shardlab check)
      2    JAX rejects the program, it could not be analyzed, or the command is invalid
      124  the time limit was reached
      130  interrupted

    What the program prints goes to standard error; standard output holds the trace.
    """


@click.command("trace", help=_HELP, short_help="List the collectives, bytes and time.")
@program_options
@click.option(
    "--mesh",
    metavar="AXES",
    shell_complete=complete_mesh,
    help="Mesh axes, such as data=16,model=32.",
)
@hardware_option
@click.option(
    "--topology",
    metavar="NAME",
    help="Use the TPU compiler, for v5e:16x16 for example. Needs shardlab[tpu], but no TPU.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Do not compile: inserted collectives are those of Shardy's passes, in milliseconds.",
)
@click.option(
    "--dcn",
    multiple=True,
    metavar="AXIS",
    shell_complete=complete_mesh_axis,
    help="A mesh axis that crosses slices over the data center network; may be repeated.",
)
@click.option(
    "--efficiency",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    metavar="SHARE",
    help="Share of the hardware's peak figures that is reached.",
)
@click.option(
    "--calibration",
    metavar="FILE",
    shell_complete=complete_path,
    help="Use the efficiency that `shardlab launch --calibration` measured, instead of "
    "--efficiency.",
)
@click.option(
    "--dtype", default="bf16", show_default=True, help="Dtype whose peak FLOP/s are used."
)
@click.option(
    "--picture",
    metavar="KIND",
    help="Also draw: timeline, traffic, or the number of a call for its ring steps.",
)
@click.option("--all", "show_all", is_flag=True, help="Show every program of a script in full.")
@output_option("--svg", "svg_file", "that picture (by default the timeline) as SVG")
def command(
    program: str,
    args: tuple[str, ...],
    args_from: str | None,
    mesh: str | None,
    devices: int | None,
    hardware: str | None,
    topology: str | None,
    quick: bool,
    dcn: tuple[str, ...],
    efficiency: float,
    calibration: str | None,
    dtype: str,
    json_file: str | None,
    html_file: str | None,
    picture: str | None,
    svg_file: str | None,
    show_all: bool,
    time_limit: float,
    memory_limit: str | None,
    quiet: bool,
) -> None:
    from shardlab.cli.jobs import raise_failure, run_job
    from shardlab.cli.outputs import check_destinations
    from shardlab.execution.messages import Job
    from shardlab.execution.target import check_arguments, parse_target
    from shardlab.sharding.mesh import parse_mesh

    check_destinations(json=json_file, html=html_file, svg=svg_file)
    _check_picture(picture)
    target = parse_target(program)
    check_arguments(target, args, args_from)
    meshes = () if mesh is None else (str(parse_mesh(mesh)),)
    # Before the program runs, so that a wrong chip name fails at once.
    if calibration is not None:
        from shardlab.hardware.calibration import read_calibration

        efficiency = read_calibration(calibration).efficiency
    estimate_time = _make_estimator(hardware, dcn, efficiency, dtype)
    if topology and target.kind == "script":
        raise click.UsageError("--topology needs a function: file.py:function or module:function.")
    if quick and (topology or target.kind == "script"):
        raise click.UsageError(
            "--quick needs a function (file.py:function or module:function), and no --topology."
        )
    job = Job(
        command="trace",
        target=target,
        args=args,
        args_from=args_from,
        meshes=meshes,
        devices=devices,
        topology=topology,
        quick=quick,
    )
    result = run_job(job, time_limit=time_limit, memory_limit=memory_limit, quiet=quiet)
    outputs = TraceOutputs(
        script=target.location if target.kind == "script" else "",
        json_file=json_file,
        html_file=html_file,
        svg_file=svg_file,
        picture=picture,
        show_all=show_all,
    )
    timed_traces = [(trace, estimate_time(trace)) for trace in result.traces]
    _write_traces(timed_traces, result, outputs)
    raise_failure(result)


TimedTrace = tuple["Trace", "Estimate | None"]


@dataclass(frozen=True, kw_only=True)
class TraceOutputs:
    """The outputs that the user requested."""

    script: str  # path of the script; empty for a function
    json_file: str | None
    html_file: str | None
    svg_file: str | None
    picture: str | None
    show_all: bool


def _make_estimator(
    hardware: str | None, dcn: tuple[str, ...], efficiency: float, dtype: str
) -> Callable[[Trace], Estimate | None]:
    """Return a function that estimates times; unknown hardware is rejected before the long work."""
    if hardware is None:
        if dcn:
            raise click.UsageError("--dcn changes the estimated time: it needs --hardware.")
        return lambda trace: None
    from shardlab.hardware.chips import parse_hardware

    chip = parse_hardware(hardware)
    return lambda trace: trace.estimate(chip, dcn=dcn, efficiency=efficiency, dtype=dtype)


def _write_traces(
    timed_traces: Sequence[TimedTrace], result: WorkerResult, outputs: TraceOutputs
) -> None:
    from shardlab.cli.outputs import html_page, to_json_text, write_outputs
    from shardlab.tracing.trace_text import trace_html

    if outputs.picture not in (None, *_PICTURES):
        for trace, _ in timed_traces:
            _call_index(trace, outputs.picture)  # an invalid number is rejected before any output

    def render_json() -> str:
        return to_json_text(_traces_json(timed_traces, outputs.script, result.notes))

    def render_page() -> str:
        title = outputs.script or timed_traces[0][0].program
        return html_page(title, (trace_html(*pair) for pair in timed_traces))

    requests = {
        "--json": (outputs.json_file, render_json),
        "--html": (outputs.html_file, render_page),
        "--svg": (outputs.svg_file, lambda: _render_svg(timed_traces, outputs.picture)),
    }
    if not write_outputs(requests):
        n_shown = len(timed_traces) if outputs.show_all else 1
        for number, (trace, estimate) in enumerate(timed_traces[:n_shown]):
            click.echo("\n" if number else "", nl=False)
            _show_trace(trace, estimate, outputs.picture)
        _list_programs([trace for trace, _ in timed_traces[n_shown:]])
    if not timed_traces:
        message = f"{outputs.script} ran no shard_map and no jit with shardings: nothing to trace"
        click.echo(message, err=True)
    for note in result.notes:
        click.echo(f"note: {note}", err=True)


def _list_programs(traces: Sequence[Trace]) -> None:
    """List the other programs of a script, one line each."""
    from shardlab.tracing.trace_text import trace_line

    if traces:
        click.echo("\nOther programs of this script (--all shows them in full)")
    for trace in traces:
        click.echo(f"  {trace_line(trace)}")


def _show_trace(trace: Trace, estimate: Estimate | None, picture: str | None) -> None:
    from shardlab.cli.outputs import show_report
    from shardlab.tracing.trace_text import trace_rich, trace_text

    show_report(
        lambda width: trace_text(trace, width, estimate),
        lambda width: trace_rich(trace, width, estimate),
    )
    if picture == "timeline":
        click.echo("\n" + trace.timeline_text(estimate=estimate))
    elif picture == "traffic":
        click.echo("\n" + trace.traffic_text())
    elif picture is not None:
        click.echo("\n" + trace.steps_text(_call_index(trace, picture)))


def _render_svg(timed_traces: Sequence[TimedTrace], picture: str | None) -> str:
    if len(timed_traces) != 1:
        raise click.UsageError(
            f"--svg draws one program, and this script ran {len(timed_traces)}: use --html, or "
            "name a function."
        )
    trace, estimate = timed_traces[0]
    if picture in (None, "timeline"):
        return trace.timeline_svg(estimate)
    if picture == "traffic":
        return trace.traffic_svg()
    return trace.steps_svg(_call_index(trace, picture))


def _call_index(trace: Trace, picture: str | None) -> int:
    """Return the index of a call that the user numbers from 1."""
    number, n_calls = int(picture or 0), len(trace.collectives)
    if not 1 <= number <= n_calls:
        calls = {0: "no calls", 1: "one call, number 1"}.get(n_calls, f"calls 1 to {n_calls}")
        raise click.UsageError(f"--picture {number}: {trace.program} has {calls}.")
    return number - 1


def _traces_json(timed_traces: Sequence[TimedTrace], script: str, notes: tuple[str, ...]) -> Any:
    """Return the trace of a function as its own data, those of a script as a list."""
    data = []
    for trace, estimate in timed_traces:
        data.append(trace.to_json())
        if estimate is not None:
            data[-1]["estimate"] = estimate.to_json()
    if not script:
        return data[0]
    return {"program": script, "traces": data, "notes": list(notes)}


def _check_picture(picture: str | None) -> None:
    if picture not in (None, *_PICTURES) and not str(picture).isdecimal():
        raise click.UsageError(
            f"--picture {picture}: expected timeline, traffic, or the number of a call from 1."
        )
