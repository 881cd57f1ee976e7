"""The options of `shardlab serve` as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shardlab.sandbox.process import Level
from shardlab.server.operations.log_format import LogFormat
from shardlab.server.operations.quotas import ServerLimits

DEFAULT_PORT = 8765
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")

Mode = Literal["local", "accounts"]


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How the server runs.

    In mode `local` there is one person, no sign-in, and only loopback is served. In mode `accounts`
    people sign up and sign in, and `secret` must be set.
    """

    data_folder: Path
    mode: Mode = "local"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    secret: str = field(default="", repr=False)  # signs sessions and CSRF tokens
    public_hosts: tuple[str, ...] = ()  # Host headers that mode `accounts` serves
    is_https: bool = False  # behind a reverse proxy that speaks HTTPS: Secure cookies
    n_workers: int = 1
    catalogue: str | None = None  # folder of another catalogue than shardlab's own
    database_url: str = field(default="", repr=False)  # of PostgreSQL; empty: SQLite in the folder
    minimum_level: Level | None = None  # of the sandbox
    limits: ServerLimits = field(default_factory=ServerLimits)
    log_format: LogFormat = "text"
    metrics_token: str = field(default="", repr=False)  # empty: the metrics are for loopback only
    drain_seconds: float = 0.0  # between SIGTERM and the end, while /readyz says "not ready"

    @property
    def is_local(self) -> bool:
        return self.mode == "local"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"

    @property
    def public_url(self) -> str:
        """The address that people open: the first public host, or the one that is listened on."""
        if not self.public_hosts:
            return self.url
        return f"{'https' if self.is_https else 'http'}://{self.public_hosts[0]}/"

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """Return the Host headers that are served; any other is refused.

        A page of another site can point a name of its own at 127.0.0.1 (DNS rebinding). The
        browser then sends that name as Host, and only this check tells the request apart.
        """
        names = LOOPBACK_HOSTS if self.is_local else (*LOOPBACK_HOSTS, *self.public_hosts)
        with_port = {f"{name}:{self.port}" for name in names}
        # Browsers leave the port out if it is the one of the scheme.
        without_port = set(LOOPBACK_HOSTS) if self.port == 80 else set()
        return frozenset(with_port | without_port | set(self.public_hosts))
