"""Runs the application under uvicorn until it is interrupted."""

from __future__ import annotations

import socket
import threading
import webbrowser

import click
import uvicorn

from shardlab.course.database import data_folder
from shardlab.errors import PortInUse
from shardlab.server.application import create_app
from shardlab.server.settings import ServerSettings


def serve_pages(*, port: int, opens_browser: bool) -> None:
    """Serve the pages on loopback until Ctrl-C."""
    listener = listen_on(port)
    settings = ServerSettings(data_folder=data_folder(), port=listener.getsockname()[1])
    config = uvicorn.Config(
        create_app(settings), log_level="warning", access_log=False, timeout_graceful_shutdown=5
    )
    click.echo(f"shardlab is at {settings.url} (Ctrl-C ends it)")
    if opens_browser:
        # A browser that does not start must not delay the server.
        threading.Thread(target=webbrowser.open, args=(settings.url,), daemon=True).start()
    uvicorn.Server(config).run(sockets=[listener])


def listen_on(port: int) -> socket.socket:
    """Return a listening socket on loopback. Raises `PortInUse`."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        # Before the address is printed: a connection made while the application loads is queued.
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise PortInUse(
            f"Port {port} cannot be used: {error.strerror}.",
            where=f"127.0.0.1:{port}",
            fix="end the other server, or pick another port: shardlab serve --port 0",
        ) from None
    return listener
