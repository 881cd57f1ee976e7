"""`shardlab rejudge`: judges stored submissions of a server with the installed judge."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("rejudge")
@click.option("--problem", default="", help="Only submissions to this problem.")
@click.option(
    "--submission",
    "numbers",
    type=click.IntRange(1),
    multiple=True,
    help="Only this submission; can be repeated.",
)
@click.option(
    "--database",
    "url",
    envvar="SHARDLAB_DATABASE",
    metavar="URL",
    default="",
    help="The PostgreSQL database of the server; otherwise SHARDLAB_DATABASE, or SQLite.",
)
@click.option(
    "--data",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the database; otherwise SHARDLAB_DATA or the user's data folder.",
)
def command(problem: str, numbers: tuple[int, ...], url: str, folder: Path | None) -> None:
    """Judge submissions of a server once more, after an upgrade of shardlab or JAX.

    Queues each submission whose verdict is of another version of the judge. The workers of the
    server judge them, between the submissions that people make. The earlier verdict stays stored;
    people see the newer one.
    """
    from shardlab.course.database import data_folder
    from shardlab.judge.judge_version import judge_version
    from shardlab.server.database.engine import open_database
    from shardlab.server.jobs.rejudging import RejudgeRequest, queue_rejudgements

    database = open_database(folder.absolute() if folder else data_folder(), url)
    try:
        request = RejudgeRequest(problem=problem, numbers=numbers)
        n_queued = queue_rejudgements(database, request)
    finally:
        database.close()
    noun = "submission is" if n_queued == 1 else "submissions are"
    click.echo(f"{n_queued} {noun} queued for judge {judge_version()}")
