"""`shardlab backup`: the databases of a server, copied while it runs."""

from __future__ import annotations

from pathlib import Path

import click

from shardlab._text.units import bytes_text


@click.command("backup")
@click.argument("target", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--data",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data folder of the server; otherwise SHARDLAB_DATA or the user's data folder.",
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    help="Then delete all complete backups in TARGET but the newest ones.",
)
def command(target: Path, folder: Path | None, keep: int | None) -> None:
    """Copy the databases of a server into a new folder below TARGET.

    The server may run: it is not stopped and people do not notice. The copy is checked before it
    gets its name, so an interrupted backup leaves none. It has everything that people have stored,
    readable for whoever can read the folder, and not the secret of --secret-file: store that
    elsewhere. A server on PostgreSQL is copied with pg_dump (docs/deploy/backup.md).
    """
    from shardlab.course.database import data_folder
    from shardlab.server.operations.backup import create_backup, delete_old_backups

    backup = create_backup(folder.absolute() if folder else data_folder(), target.absolute())
    names = ", ".join(file.name for file in backup.files)
    click.echo(f"{backup.folder}: {names}, {bytes_text(backup.n_bytes)}, checked")
    for path in delete_old_backups(target.absolute(), keep) if keep else ():
        click.echo(f"deleted {path}")
