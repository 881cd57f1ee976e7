"""`shardlab run`: a JAX program, unchanged, on devices that do not exist."""

from __future__ import annotations

import click


@click.command(
    "run",
    # What follows the program is the program's, options too.
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--devices",
    "-n",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many devices the program sees. Without it: as many as the program asks for "
    "(XLA_FLAGS, jax_num_cpu_devices), or 8.",
)
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 3 if an output declared replicated differed between devices.",
)
@click.option("--quiet", "-q", is_flag=True, help="Do not say at the end what was simulated.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    devices: int | None,
    is_module: bool,
    strict: bool,
    quiet: bool,
    program: str,
    args: tuple[str, ...],
) -> None:
    """Run PROGRAM as if this machine had many devices.

    \b
    shardlab run --devices 512 train.py --steps 10
    shardlab run train.py -- --steps 10
    shardlab run -m mypackage.train

    The exit code is the program's own.
    """
    from shardlab.simulator.script_runner import run_script_file

    own = args[1:] if args[:1] == ("--",) else args  # as for check and trace, where it is needed
    code, told = run_script_file(program, own, is_module=is_module, devices=devices, strict=strict)
    if not quiet:
        click.echo(told, err=True)
    click.get_current_context().exit(code)
