"""`shardlab restore`: the way back from a backup."""

from __future__ import annotations

from pathlib import Path

import click

from shardlab._text.units import bytes_text


@click.command("restore")
@click.argument("backup", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--data",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data folder to create; otherwise SHARDLAB_DATA or the user's data folder.",
)
@click.option("--check", is_flag=True, help="Only check the backup; write nothing.")
def command(backup: Path, folder: Path | None, check: bool) -> None:
    """Copy a BACKUP into a data folder that has no databases yet.

    Every file is compared with the manifest and checked by SQLite first. Existing databases are
    never overwritten. Jobs that ran when the backup was made go on when the server starts.
    """
    from shardlab.course.database import data_folder
    from shardlab.server.operations.backup import read_backup, restore_backup

    if check:
        complete = read_backup(backup.absolute())
        click.echo(f"complete and intact: {bytes_text(complete.n_bytes)} of {complete.created}")
        return
    target = folder.absolute() if folder else data_folder()
    restored = restore_backup(backup.absolute(), target)
    click.echo(f"{target}: restored as of {restored.created}; start the server on it")
