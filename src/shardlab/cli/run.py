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
@click.option(
    "--hosts",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run the program once on each of N virtual hosts, which share the devices: "
    "jax.process_index() differs. Without --devices each host has as many devices as the program "
    "requests, or 8.",
)
@click.option(
    "--output",
    metavar="all|first|FOLDER",
    shell_complete=complete_path,
    help="With --hosts: print what all hosts print, lines of hosts 1 and up with [host N]; what "
    "the first host prints; or write FOLDER/host-N.txt.  [default: all]",
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
    hosts: int | None,
    output: str | None,
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
    shardlab run --hosts 4 --devices 16 train.py

    The exit code is that of the program.
    """
    # `--` is optional here, and required by check and trace.
    program_args = args[1:] if args[:1] == ("--",) else args
    # In this process: the program may read standard input and use the terminal.
    options: dict[str, Any] = {"is_module": is_module, "devices": devices, "strict": strict}
    if output is not None and hosts is None:
        raise click.UsageError("--output is for the output of several hosts: give --hosts N.")
    if hosts is not None:
        if record_file is not None:
            raise click.UsageError("--record records a run of one host: leave --hosts out.")
        code, summary = _run_on_hosts(program, program_args, hosts, output or "all", options)
    elif record_file is None:
        from shardlab.simulator.script_runner import run_script_file

        code, summary = run_script_file(program, program_args, **options)
    else:
        code, summary = _run_and_record(program, program_args, record_file, target, options)
    if not quiet and summary:
        click.echo(summary, err=True)
    click.get_current_context().exit(code)


def _run_on_hosts(
    program: str, args: tuple[str, ...], hosts: int, output: str, options: dict[str, Any]
) -> tuple[int, str]:
    """Run the program on virtual hosts, and print the error that ended it early."""
    from shardlab.cli import error_text
    from shardlab.simulator.hosts.host_process import HostProgram
    from shardlab.simulator.hosts.run_hosts import run_on_hosts

    host_program = HostProgram(program=program, args=args, n_hosts=hosts, output=output, **options)
    result = run_on_hosts(host_program)
    if result.error is not None:
        click.echo(error_text(result.error), err=True)
    return result.exit_code, result.summary


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
