"""`shardlab launch`: the same program and the same report on real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardlab.cli.completion import complete_mesh, complete_path
from shardlab.cli.options import (
    PROGRAM_ARGUMENTS_HELP,
    hardware_option,
    json_option,
    output_option,
    quiet_option,
)

if TYPE_CHECKING:
    from shardlab.cluster.launch import LaunchRequest, LaunchResult

_HELP = f"""Run a program on real processes, and report what every device computed.

    PROGRAM is a script, file.py:function or module:function. The processes are connected by
    jax.distributed before it starts; a program's own jax.distributed.initialize() does nothing.

    \b
    shardlab launch --on local:4 train.py -- --steps 2
    shardlab launch --on local:2 --devices-per-process 4 --verify train.py:step --mesh data=8
    shardlab launch --on ssh:hosts.txt --verify train.py
    srun -n 4 shardlab launch train.py          # also mpirun, and Kubernetes indexed jobs

    A file of hosts has one a line: HOST, with processes=N and python=PATH if they differ from 1 and
    this Python. The program must be in the same folder there.
{PROGRAM_ARGUMENTS_HELP}
    The program is not confined: it runs with your rights, as `python` would run it.

    \b
    Exit codes
      0    the program ran; with --verify, the simulation agrees
      1    the simulation differs, or a process died, raised, or was not reached by the others
      2    the launch could not start, or the command is invalid
      124  the time limit was reached
      130  interrupted

    What the program prints goes to standard error, each line with the number of its process.
    """


@click.command(
    "launch",
    help=_HELP,
    short_help="Run on real processes, and compare with the simulation.",
    context_settings={"allow_interspersed_args": True},
)
@click.argument("program", shell_complete=complete_path)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--on",
    "launched_on",
    metavar="WHERE",
    default="auto",
    show_default=True,
    help="local:N for N processes on this machine, ssh:FILE for the hosts of a file, or auto: the "
    "cluster that started this process (SLURM, Open MPI, Kubernetes).",
)
@click.option(
    "--devices-per-process",
    type=click.IntRange(min=1, max=1024),
    metavar="N",
    help="CPU devices of each process.  [default: 1]",
)
@click.option(
    "--platform",
    metavar="NAME",
    help="JAX's platform: cpu, cuda, tpu.  [default: cpu with local:N, else JAX's own choice]",
)
@click.option(
    "--mesh",
    metavar="AXES",
    shell_complete=complete_mesh,
    help="For a function: mesh axes over all devices, such as data=2,model=4.",
)
@click.option(
    "--args",
    "args_from",
    metavar="NAME",
    help="Name of a tuple or function in the same file that gives the arguments.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="For a function: how often to call it. The first call is not counted as a step.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Also simulate the program, and compare values, shardings and collectives.",
)
@hardware_option
@output_option("--calibration", "calibration_file", "the step beside its estimate, as JSON,")
@json_option
@click.option(
    "--stall-limit",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Report a hang when no process was active for this long and one waits for the others.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop the program after this time, with exit code 124.",
)
@click.option(
    "--coordinator",
    metavar="HOST:PORT",
    help="With --on auto, where JAX detects no cluster: the address of process 0.",
)
@click.option("--processes", type=click.IntRange(min=1), metavar="N", help="With --coordinator.")
@click.option("--process-id", type=click.IntRange(min=0), metavar="I", help="With --coordinator.")
@quiet_option
def command(
    program: str,
    args: tuple[str, ...],
    launched_on: str,
    devices_per_process: int | None,
    platform: str | None,
    mesh: str | None,
    args_from: str | None,
    steps: int,
    verify: bool,
    hardware: str | None,
    calibration_file: str | None,
    json_file: str | None,
    stall_limit: float,
    time_limit: float | None,
    coordinator: str | None,
    processes: int | None,
    process_id: int | None,
    quiet: bool,
) -> None:
    from shardlab.cli.outputs import check_destinations
    from shardlab.cluster.launch import LaunchRequest
    from shardlab.cluster.launch_target import parse_launch_target
    from shardlab.cluster.launcher import LaunchLimits
    from shardlab.cluster.messages import LaunchJob
    from shardlab.execution.target import check_arguments, parse_target
    from shardlab.hardware.chips import parse_hardware
    from shardlab.sharding.mesh import parse_mesh

    check_destinations(json=json_file, calibration=calibration_file)
    target = parse_launch_target(launched_on)
    program_target = parse_target(program)
    check_arguments(program_target, args, args_from)
    if calibration_file and not hardware:
        raise click.UsageError("--calibration compares with an estimate: it needs --hardware.")
    is_local = target.kind == "local"
    job = LaunchJob(
        target=program_target,
        args=args,
        args_from=args_from,
        mesh=None if mesh is None else str(parse_mesh(mesh)),
        steps=steps,
        n_processes=target.n_processes or processes or 1,
        process=process_id or 0,
        coordinator=coordinator,
        devices_per_process=devices_per_process or (1 if is_local else None),
        platform=platform or ("cpu" if is_local else None),
    )
    request = LaunchRequest(
        job=job,
        target=target,
        limits=LaunchLimits(stall_seconds=stall_limit, total_seconds=time_limit),
        verify=verify,
        # Before the program runs, so that a wrong chip name fails at once.
        hardware=None if hardware is None else parse_hardware(hardware),
    )
    result = _run(request, quiet)
    if result is not None:
        _write(result, json_file, calibration_file)


def _run(request: LaunchRequest, quiet: bool) -> LaunchResult | None:
    """Return the result; None in the processes of a cluster that do not report it."""
    from shardlab.cli.outputs import show_progress
    from shardlab.cluster.launch import launch

    if request.target.kind == "auto":
        from shardlab.cluster.joined_cluster import launch_here

        return launch_here(request)
    with show_progress(quiet=quiet) as report_step:
        return launch(request, report_step)


def _write(result: LaunchResult, json_file: str | None, calibration_file: str | None) -> None:
    from shardlab.cli.outputs import print_result, to_json_text, write_outputs
    from shardlab.cluster.report_text import report_text

    report, point = result.report, result.calibration
    if calibration_file and point is None:
        raise click.UsageError("--calibration: no step was traced, so there is no estimate.")
    outputs = {
        "--json": (json_file, lambda: to_json_text(report.to_json())),
        "--calibration": (calibration_file, lambda: to_json_text(point and point.to_json())),
    }
    if not write_outputs(outputs):
        print_result(report_text(report))
    if report.verification is not None and not report.verification.agrees:
        click.get_current_context().exit(1)
