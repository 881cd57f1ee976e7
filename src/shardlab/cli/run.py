"""`shardlab run`: an unchanged JAX program on devices that do not exist."""

from __future__ import annotations

from typing import Any

import click

from shardlab.cli.completion import complete_path


@click.command(
    "run",
    # Everything after the program belongs to the program, options too.
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--devices",
    "-n",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of devices that the program sees.  [default: as many as the program requests "
    "(XLA_FLAGS, jax_num_cpu_devices), or 8]",
)
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 3 if an output declared replicated differs between devices.",
)
@click.option(
    "--record",
    "record_file",
    metavar="FILE",
    shell_complete=complete_path,
    help="Record the program that computes most, step by step, to FILE: a page (.html) or data "
    "(.json, .json.gz).",
)
@click.option("--target", metavar="NAME", help="With --record: the program to record, by its name.")
@click.option("--quiet", "-q", is_flag=True, help="Do not print the summary of the simulation.")
@click.argument("program", shell_complete=complete_path)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    devices: int | None,
    is_module: bool,
    strict: bool,
    record_file: str | None,
    target: str | None,
    quiet: bool,
    program: str,
    args: tuple[str, ...],
) -> None:
    """Run PROGRAM as if this machine had many devices.

    \b
    shardlab run --devices 512 train.py --steps 10
    shardlab run train.py -- --steps 10
    shardlab run -m mypackage.train
    shardlab run --record step.html train.py

    The exit code is that of the program.
    """
    from shardlab.simulator.script_runner import run_script_file

    # `--` is optional here, and required by check and trace.
    program_args = args[1:] if args[:1] == ("--",) else args
    # In this process: the program may read standard input and use the terminal.
    options: dict[str, Any] = {"is_module": is_module, "devices": devices, "strict": strict}
    if record_file is None:
        code, summary = run_script_file(program, program_args, **options)
    else:
        code, summary = _run_and_record(program, program_args, record_file, target, options)
    if not quiet:
        click.echo(summary, err=True)
    click.get_current_context().exit(code)


def _run_and_record(
    program: str,
    args: tuple[str, ...],
    file: str,
    target: str | None,
    options: dict[str, Any],
) -> tuple[int, str]:
    """Run the program, then record one of the sharded programs that it ran."""
    from shardlab.cli.record import check_recording_file, write_recording
    from shardlab.recording.script_recording import collect_calls
    from shardlab.simulator.script_runner import run_script_file

    check_recording_file(file)
    with collect_calls() as record_observed:

        def record_now() -> None:
            write_recording(record_observed(target, where=program), file)

        return run_script_file(program, args, **options, after_run=record_now)
