"""`shardlab worker`: runs programs and judges submissions for servers on other machines."""

from __future__ import annotations

from pathlib import Path

import click

from shardlab.server.operations.log_format import LOG_FORMATS, LogFormat

_HELP = """Run programs and judge submissions for `shardlab serve --database`.

    Takes jobs from the server's PostgreSQL database, on any machine that reaches it. This machine
    must confine submissions at level A, and have the server's release of shardlab and of JAX.

    SIGTERM or Ctrl-C: finish what runs, take nothing new, then exit. A second one returns what runs
    to the queue; so does --drain-seconds.

    \b
    shardlab worker --database postgresql://lab@db.example.org/shardlab --slots 2
    """


@click.command("worker", help=_HELP)
@click.option(
    "--database",
    "database_url",
    envvar="SHARDLAB_DATABASE",
    metavar="URL",
    default="",
    help="postgresql://USER@HOST/NAME; otherwise SHARDLAB_DATABASE.",
)
@click.option(
    "--slots",
    "n_slots",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Jobs at the same time.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(0, 86400),
    default=300.0,
    show_default=True,
    help="How long running jobs may go on after the first signal.",
)
@click.option(
    "--data",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for unpacked catalogues; otherwise SHARDLAB_DATA or the user's data folder.",
)
@click.option(
    "--limits",
    "limits_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The TOML file that the server has as --limits.",
)
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    help="json: one object per line on standard error, with every job.",
)
def command(
    database_url: str,
    n_slots: int,
    drain_seconds: float,
    folder: Path | None,
    limits_file: Path | None,
    log_format: LogFormat,
) -> None:
    from shardlab.course.database import data_folder
    from shardlab.server.jobs.standalone_worker import StandaloneOptions, run_standalone_worker
    from shardlab.server.operations.quotas import ServerLimits, read_limits

    run_standalone_worker(
        StandaloneOptions(
            database_url=database_url,
            data_folder=folder.absolute() if folder else data_folder(),
            n_slots=n_slots,
            drain_seconds=drain_seconds,
            limits=read_limits(limits_file) if limits_file else ServerLimits(),
            log_format=log_format,
        )
    )
