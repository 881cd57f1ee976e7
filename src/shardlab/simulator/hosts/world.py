"""Which virtual host this process is; a process is one for good, from its start."""

from __future__ import annotations

from shardlab.simulator.hosts.host_link import HostLink
from shardlab.simulator.virtual_devices.devices import CLIENT

_links: list[HostLink] = []


def join_world(link: HostLink) -> None:
    """Connect this process to the other hosts."""
    _links[:] = [link]


def has_hosts() -> bool:
    """Return whether this process is one of several virtual hosts."""
    return bool(_links)


def host_link() -> HostLink:
    return _links[0]


def this_host() -> int:
    return CLIENT.host.index


def n_hosts() -> int:
    return CLIENT.host.n_hosts
