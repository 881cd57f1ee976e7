"""For which host name passkeys of a request are made, if that is possible at all."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from shardlab.server.people.refusals import Refusal
from shardlab.server.settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class RelyingParty:
    """What WebAuthn binds a passkey to: a host name, and the origin of the pages that use it."""

    id: str  # the host name without its port
    origin: str


def split_port(host: str) -> tuple[str, str]:
    """Return a Host header as its name and its port, which can be empty.

    >>> split_port("lab.example.org:8443"), split_port("[::1]:8765"), split_port("[::1]")
    (('lab.example.org', '8443'), ('[::1]', '8765'), ('[::1]', ''))
    """
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not host.endswith("]") else (host, "")


def relying_party(settings: ServerSettings, host: str) -> RelyingParty:
    """Return the relying party of a Host header, which the guard has compared with the settings.

    Raises `Refusal` where browsers have no passkeys: under an IP address, and without HTTPS.
    """
    name, port = split_port(host)
    if _is_address(name):
        advice = "Open this server under its name"
        if ipaddress.ip_address(name.strip("[]")).is_loopback:
            advice = f"Open http://localhost{':' if port else ''}{port} instead"
        raise Refusal(f"A passkey belongs to a host name, and {name} is an address. {advice}.")
    is_this_machine = name == "localhost" or name.endswith(".localhost")
    if not settings.is_https and not is_this_machine:
        raise Refusal("Passkeys need HTTPS, and this server is reached without it.")
    scheme = "https" if settings.is_https else "http"
    return RelyingParty(id=name, origin=f"{scheme}://{host}")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
