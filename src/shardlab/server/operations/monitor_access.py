"""Who may read the metrics: this machine, or who has the token.

Without `--metrics-token-file` only a program on this machine: the connection comes from loopback,
asks for a loopback name, and has no header of a proxy. A reverse proxy on the same machine passes
on the public name, so what it forwards is refused. With the file, everybody needs its token.
"""

from __future__ import annotations

import hmac
import ipaddress

from starlette.exceptions import HTTPException
from starlette.requests import Request

from shardlab.server.settings import LOOPBACK_HOSTS, ServerSettings

# Served under every host name: a probe asks for an address. They show nothing about people.
MONITORING_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


def check_monitor(request: Request) -> None:
    """Raise unless the metrics may be read."""
    settings: ServerSettings = request.app.state.settings
    if settings.metrics_token:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        is_known = hmac.compare_digest(
            token.strip().encode("utf-8", "surrogatepass"), settings.metrics_token.encode()
        )
        if scheme.lower() != "bearer" or not is_known:
            headers = {"www-authenticate": "Bearer"}
            raise HTTPException(401, "The token of the metrics is missing or wrong.", headers)
    elif not _is_direct_from_loopback(request):
        raise HTTPException(
            403,
            "The metrics are for programs on the server's own machine. Start the server with "
            "--metrics-token-file to read them from another one.",
        )


def _is_direct_from_loopback(request: Request) -> bool:
    if any(name in request.headers for name in _PROXY_HEADERS):
        return False
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name in LOOPBACK_HOSTS and _is_loopback(request.client.host if request.client else "")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
