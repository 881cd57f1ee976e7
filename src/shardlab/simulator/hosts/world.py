"""Which virtual host this process is; a process is one for good, from its start."""

from __future__ import annotations

from pathlib import Path

from shardlab.simulator.hosts.host_link import HostLink
from shardlab.simulator.virtual_devices.devices import CLIENT

_links: list[HostLink] = []
_folders: list[Path] = []


def join_world(link: HostLink, folder: Path) -> None:
    """Connect this process to the other hosts; `folder` is where they exchange arrays."""
    _links[:] = [link]
    _folders[:] = [folder]


def has_hosts() -> bool:
    """Return whether this process is one of several virtual hosts."""
    return bool(_links)


def host_link() -> HostLink:
    return _links[0]


def exchange_folder() -> Path:
    return _folders[0]


def this_host() -> int:
    return CLIENT.host.index


def n_hosts() -> int:
    return CLIENT.host.n_hosts
