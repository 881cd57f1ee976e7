"""`shardlab serve`: the lab in the browser."""

from __future__ import annotations

import click

from shardlab.server.settings import DEFAULT_PORT


@click.command("serve")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="TCP port; 0 picks a free one.",
)
@click.option("--open/--no-open", "opens_browser", default=True, help="Open the page in a browser.")
def command(port: int, opens_browser: bool) -> None:
    """Start shardlab's pages on this machine and open them in the browser.

    Only this machine can reach them. Ctrl-C ends the server.
    """
    from shardlab.server.serve import serve_pages

    serve_pages(port=port, opens_browser=opens_browser)
