"""`shardlab people`: the accounts of a server, from its own command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from shardlab.errors import AccountRefused

if TYPE_CHECKING:
    from shardlab.server.people.accounts import Accounts
    from shardlab.server.person import Person, Role

_ROLES = click.Choice(["learner", "teacher", "admin"])


def _folder_option(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option(
        "--database",
        "url",
        envvar="SHARDLAB_DATABASE",
        metavar="URL",
        default="",
        help="The PostgreSQL database of the server; otherwise SHARDLAB_DATABASE, or SQLite.",
    )(function)
    return click.option(
        "--data",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of the database; otherwise SHARDLAB_DATA or the user's data folder.",
    )(function)


@click.group("people")
def command() -> None:
    """Manage the accounts of `shardlab serve --accounts`.

    Run it on the server's machine, as the user that runs the server: whoever can write the database
    is trusted. The first admin is made this way.
    """


@command.command("add")
@click.argument("name")
@click.option("--role", type=_ROLES, default="learner", show_default=True)
@_folder_option
def add_person(name: str, role: str, folder: Path | None, url: str) -> None:
    """Create an account with a random password, and print the password once."""
    from shardlab.server.people.accounts import random_password

    with _open_accounts(folder, url) as accounts:
        person = accounts.create(name, random_password(), role=cast("Role", role))
        password = accounts.reset_password(person.id)
    click.echo(
        f"{person.name} ({role}) can sign in with this password, and then chooses their own:"
    )
    click.echo(password)


@command.command("list")
@_folder_option
def list_people(folder: Path | None, url: str) -> None:
    """List the accounts: name and role."""
    with _open_accounts(folder, url) as accounts:
        for account in accounts.list_people(limit=1_000_000):
            click.echo(f"{account.role:8} {account.name}")


@command.command("set-role")
@click.argument("name")
@click.argument("role", type=_ROLES)
@_folder_option
def set_role(name: str, role: str, folder: Path | None, url: str) -> None:
    """Change the role of an account."""
    with _open_accounts(folder, url) as accounts:
        accounts.set_role(_find(accounts, name).id, role)


@command.command("reset-password")
@click.argument("name")
@_folder_option
def reset_password(name: str, folder: Path | None, url: str) -> None:
    """Set a random password and print it once; sessions, passkeys and tokens end."""
    with _open_accounts(folder, url) as accounts:
        click.echo(accounts.reset_password(_find(accounts, name).id))


@contextmanager
def _open_accounts(folder: Path | None, url: str) -> Iterator[Accounts]:
    """Yield the accounts in the database of a folder; what they refuse is an error here."""
    from shardlab.course.database import data_folder
    from shardlab.server.database.engine import open_database
    from shardlab.server.people.accounts import Accounts
    from shardlab.server.people.passwords import PasswordHashing
    from shardlab.server.people.rate_limits import RateLimits
    from shardlab.server.people.refusals import Refusal

    path = folder.absolute() if folder else data_folder()
    database = open_database(path, url)
    try:
        yield Accounts(database, RateLimits(database), PasswordHashing())
    except Refusal as refusal:
        raise AccountRefused(
            refusal.message,
            where=str(path) if not url else "the PostgreSQL database",
            fix="choose another name or role; `shardlab people list` shows the accounts.",
        ) from None
    finally:
        database.close()


def _find(accounts: Accounts, name: str) -> Person:
    from shardlab.server.people.refusals import Refusal

    person = accounts.find(name)
    if person is None:
        raise Refusal(f"There is no account with the name {name!r}.")
    return person
