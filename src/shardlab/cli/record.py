"""`shardlab record`: every step of a program on every device, as a page or as data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardlab.cli.completion import complete_mesh, complete_path
from shardlab.cli.options import (
    PROGRAM_ARGUMENTS_HELP,
    add_options,
    hardware_option,
    limit_options,
)

if TYPE_CHECKING:
    from shardlab.recording.recording import Recording

_SUFFIXES = (".html", ".json", ".json.gz")

_HELP = f"""Record a program step by step, with the values of every device.

    PROGRAM is file.py:function, module:function, or a script, of which the program that computes
    most is recorded.

    \b
    shardlab record train.py:step --mesh data=4 -o step.html
    shardlab record train.py:step --mesh data=2,model=4 -o step.shardlab.json.gz
    shardlab record train.py --target train_step -o step.html -- --steps 1
{PROGRAM_ARGUMENTS_HELP}
    The page (.html) is one file that needs no server and no network. Without -o a summary is
    printed.

    \b
    Exit codes
      0    recorded, also if the recording ends in a deadlock
      2    the program could not be recorded, or the command is invalid
      124  the time limit was reached
      130  interrupted
    """


@click.command("record", help=_HELP, short_help="Record every step on every device.")
@click.argument("program", shell_complete=complete_path)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--args",
    "args_from",
    metavar="NAME",
    help="Name of a tuple or function in the same file that gives the arguments.",
)
@click.option(
    "--mesh",
    metavar="AXES",
    shell_complete=complete_mesh,
    help="Mesh axes, such as data=2,model=4.",
)
@click.option(
    "--devices",
    "-n",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of devices that the program sees while it is imported.",
)
@hardware_option
@click.option("--target", metavar="NAME", help="Of a script: the program to record, by its name.")
@click.option(
    "--output",
    "-o",
    "output_file",
    metavar="FILE",
    shell_complete=complete_path,
    help="Write a page (.html) or data (.json, .json.gz) to FILE.",
)
@add_options(limit_options)
def command(
    program: str,
    args: tuple[str, ...],
    args_from: str | None,
    mesh: str | None,
    devices: int | None,
    hardware: str | None,
    target: str | None,
    output_file: str | None,
    time_limit: float,
    memory_limit: str | None,
    quiet: bool,
) -> None:
    from shardlab.cli.jobs import raise_failure, run_job
    from shardlab.execution.messages import Job
    from shardlab.execution.target import check_arguments, parse_target
    from shardlab.hardware.chips import parse_hardware
    from shardlab.sharding.mesh import parse_mesh

    if output_file is not None:
        check_recording_file(output_file)
    parsed_target = parse_target(program)
    check_arguments(parsed_target, args, args_from)
    if hardware is not None:
        parse_hardware(hardware)  # before the program runs, so that a wrong name fails at once
    if target is not None and parsed_target.kind != "script":
        raise click.UsageError("--target names a program of a script; this is a function.")
    job = Job(
        command="record",
        target=parsed_target,
        args=args,
        args_from=args_from,
        meshes=() if mesh is None else (str(parse_mesh(mesh)),),
        devices=devices,
        hardware=hardware,
        program=target,
    )
    result = run_job(job, time_limit=time_limit, memory_limit=memory_limit, quiet=quiet)
    if result.recording is not None:
        if output_file is not None:
            write_recording(result.recording, output_file)
        click.echo(str(result.recording))
    raise_failure(result)


def check_recording_file(file: str) -> None:
    """Reject a file name that says no format, or a folder that does not exist."""
    if not file.endswith(_SUFFIXES):
        raise click.UsageError(f"{file}: end the name with {', '.join(_SUFFIXES)}.")
    folder = Path(file).parent
    if not folder.is_dir():
        raise click.UsageError(f"{file}: the folder {str(folder)!r} does not exist.")


def write_recording(recording: Recording, file: str) -> None:
    """Write a recording in the format that the name of the file says."""
    if file.endswith(".html"):
        recording.save_html(file)
    else:
        recording.save(file)
