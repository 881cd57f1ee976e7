"""Runs the application under uvicorn until it is interrupted."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click
import uvicorn
from starlette.types import ASGIApp

from shardlab.errors import PortInUse
from shardlab.server.http_protocol import TimedProtocol
from shardlab.server.operations.log_format import configure_logging
from shardlab.server.request_guard import MAX_HEAD_BYTES
from shardlab.server.server_mode import check_confinement, check_settings, read_secret
from shardlab.server.settings import ServerSettings
from shardlab.server.starting_application import StartingApplication

_SHUTDOWN_SECONDS = 3  # for responses that are being sent
_MAX_CONNECTIONS = 4000
_OTHER_DESCRIPTORS = 200


class PageServer(uvicorn.Server):
    """A uvicorn server that drains after SIGTERM, and ends the streams of events before it ends.

    While it drains it serves on, and /readyz says that it should get no more requests: a load
    balancer then sends them elsewhere. Ctrl-C and a second SIGTERM end it at once.

    uvicorn waits for every response before it ends the application. An event stream lasts as long
    as its job, and a request during the start waits for the complete application.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        begin_drain: Callable[[], None],
        end_waits: Callable[[], None],
        drain_seconds: float,
    ) -> None:
        super().__init__(config)
        self._begin_drain, self._end_waits = begin_drain, end_waits
        self._drain_seconds = drain_seconds
        self._is_draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        is_first = not self._is_draining
        self._is_draining = True
        self._begin_drain()
        if sig == signal.SIGTERM and is_first and self._drain_seconds > 0:
            timer = threading.Timer(self._drain_seconds, self._end, (sig,))
            timer.daemon = True
            timer.start()
            return
        self._end(sig, frame)

    def _end(self, sig: int, frame: FrameType | None = None) -> None:
        self._end_waits()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """End the server as soon as its responses are sent."""
        self.should_exit = True


def serve_pages(settings: ServerSettings, *, opens_browser: bool) -> None:
    """Serve the pages on loopback until Ctrl-C. Raises `PortInUse`, `DatabaseUnusable`."""
    listener = listen_on(settings.host, settings.port)
    settings = replace(settings, port=listener.getsockname()[1])
    configure_logging(settings.log_format)
    app = StartingApplication(settings)
    server = PageServer(
        _server_config(app),
        begin_drain=app.begin_drain,
        end_waits=app.end_waits,
        drain_seconds=settings.drain_seconds,
    )
    app.on_failure = server.stop
    _run_server(server, settings, listener, opens_browser=opens_browser)
    if app.failure is not None:
        raise app.failure


def serve_accounts(settings: ServerSettings, secret_file: Path | None) -> None:
    """Serve people who sign in, until the process is interrupted or terminated.

    Raises before anything listens: `SecretMissing`, `WeakSecret`, `InvalidServerOption`,
    `SandboxLevelUnavailable`, `PortInUse`.
    """
    settings = replace(settings, secret=read_secret(secret_file))
    check_settings(settings)
    check_confinement(settings.data_folder)
    listener = listen_on(settings.host, settings.port)
    settings = replace(settings, port=listener.getsockname()[1])
    if not settings.is_https and settings.public_hosts:
        click.echo(
            "warning: without --https passwords and sessions cross the network unencrypted.",
            err=True,
        )
    # Imported here: local mode loads it while it serves the first pages.
    from shardlab.server.application import create_app

    configure_logging(settings.log_format)
    app = create_app(settings)
    server = PageServer(
        _server_config(app),
        begin_drain=app.state.readiness.begin_drain,
        end_waits=app.state.jobs.end_watches,
        drain_seconds=settings.drain_seconds,
    )
    _run_server(server, settings, listener, opens_browser=False)


def _run_server(
    server: PageServer, settings: ServerSettings, listener: socket.socket, *, opens_browser: bool
) -> None:
    listening = "" if settings.public_url == settings.url else f", listening on {settings.url}"
    click.echo(f"shardlab is at {settings.public_url}{listening} (Ctrl-C stops it)")
    if opens_browser:
        threading.Thread(target=_open_browser, args=(settings.url,), daemon=True).start()
    # uvicorn raises the signal again after the orderly end; for a server Ctrl-C is no error.
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _server_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        # By name it would be another implementation where httptools is installed, which limits
        # neither the size of a head nor its time.
        http=TimedProtocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        limit_concurrency=_raise_connection_limit(),
        log_config=None,  # its lines go where ours go
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        server_header=False,
    )


def _raise_connection_limit() -> int:
    """Return the most connections at a time: above it the server answers with status 503.

    A connection is a file descriptor. Some are for the database, the workers and the planner.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_CONNECTIONS + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
        return max(soft - _OTHER_DESCRIPTORS, 50)
    return _MAX_CONNECTIONS


def _open_browser(url: str) -> None:
    # In a thread: a browser that does not start must not delay the server.
    if not webbrowser.open(url):
        click.echo(f"No browser could be opened; open {url} yourself.", err=True)


def listen_on(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `PortInUse`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Before the address is printed: a connection made while the application loads is queued.
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise PortInUse(
            f"Port {port} cannot be used: {error.strerror}.",
            where=f"{host}:{port}",
            fix="end the other server, or pick another port: shardlab serve --port 0",
        ) from None
    return listener
