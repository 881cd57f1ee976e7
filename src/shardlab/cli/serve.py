"""`shardlab serve`: the lab in the browser."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from shardlab.server.operations.log_format import LOG_FORMATS, LogFormat
from shardlab.server.settings import DEFAULT_PORT

_HELP = """Start shardlab's pages and open them in the browser.

    Only this machine can reach them, and there is no sign-in. Ctrl-C stops the server.

    With --accounts people sign up and sign in, teachers have classes, and other machines can be
    served. That needs a secret, and a machine that confines submissions at level A:

    \b
    python3 -c 'import secrets; print(secrets.token_urlsafe(48))' > secret
    shardlab people add Ada --role admin
    shardlab serve --accounts --secret-file secret --https --public-host lab.example.org

    With --database several servers share a PostgreSQL database, and workers on other machines run
    the programs (shardlab worker --help).
    """


@click.command("serve", help=_HELP)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="TCP port; 0 picks a free one.",
)
@click.option("--open/--no-open", "opens_browser", default=None, help="Open the page in a browser.")
@click.option("--accounts", is_flag=True, help="People sign in; one database for everybody.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="With --accounts: the address to listen on.",
)
@click.option(
    "--public-host",
    "public_hosts",
    multiple=True,
    help="With --accounts: a host name in the browser's address bar; can be repeated.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --accounts: a file with the secret; otherwise SHARDLAB_SECRET.",
)
@click.option(
    "--https",
    "is_https",
    is_flag=True,
    help="With --accounts: a reverse proxy in front speaks HTTPS.",
)
@click.option(
    "--workers",
    "n_workers",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    help="Processes that run programs and judge submissions; 0 with `shardlab worker` elsewhere.",
)
@click.option(
    "--database",
    "database_url",
    envvar="SHARDLAB_DATABASE",
    metavar="URL",
    default="",
    help="With --accounts: postgresql://USER@HOST/NAME in place of SQLite in the data folder; "
    "otherwise SHARDLAB_DATABASE.",
)
@click.option(
    "--data",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the database; otherwise SHARDLAB_DATA or the user's data folder.",
)
@click.option(
    "--limits",
    "limits_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with quotas of a person and limits of the disk.",
)
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    help="json: one object per line on standard error, with every request and job.",
)
@click.option(
    "--metrics-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the token that /metrics asks for; otherwise only this machine can read it.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(0, 600),
    default=0,
    show_default=True,
    help="After SIGTERM, serve on for this time while /readyz says that no more should come.",
)
def command(
    port: int,
    opens_browser: bool | None,
    accounts: bool,
    host: str,
    public_hosts: tuple[str, ...],
    secret_file: Path | None,
    is_https: bool,
    n_workers: int,
    database_url: str,
    folder: Path | None,
    limits_file: Path | None,
    log_format: LogFormat,
    metrics_token_file: Path | None,
    drain_seconds: float,
) -> None:
    from shardlab.course.database import data_folder
    from shardlab.server.operations.quotas import ServerLimits, read_limits
    from shardlab.server.serve import serve_accounts, serve_pages
    from shardlab.server.server_mode import read_metrics_token
    from shardlab.server.settings import ServerSettings

    settings = ServerSettings(
        data_folder=folder.absolute() if folder else data_folder(),
        mode="accounts" if accounts else "local",
        host=host,
        port=port,
        public_hosts=public_hosts,
        is_https=is_https,
        n_workers=n_workers,
        database_url=database_url if accounts else "",
        limits=read_limits(limits_file) if limits_file else ServerLimits(),
        log_format=log_format,
        metrics_token=read_metrics_token(metrics_token_file) if metrics_token_file else "",
        drain_seconds=drain_seconds,
    )
    _check_database(database_url, accounts=accounts, n_workers=n_workers)
    if accounts:
        serve_accounts(settings, secret_file)
        return
    if host != "127.0.0.1" or public_hosts or secret_file or is_https:
        raise click.UsageError(
            "--host, --public-host, --secret-file and --https need --accounts: without sign-in "
            "only this machine is served."
        )
    serve_pages(settings, opens_browser=opens_browser is not False)


def _check_database(url: str, *, accounts: bool, n_workers: int) -> None:
    context = click.get_current_context()
    is_typed = context.get_parameter_source("database_url") == ParameterSource.COMMANDLINE
    if url and is_typed and not accounts:
        raise click.UsageError(
            "--database needs --accounts: without sign-in your progress is the terminal's file."
        )
    if n_workers == 0 and not (url and accounts):
        raise click.UsageError(
            "--workers 0 needs --accounts and --database: nothing else would run the programs."
        )
