"""What `--on` names: processes of this machine, hosts by ssh, or the cluster this process is in."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardlab._files.bounded_read import read_regular_file
from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidLaunchTarget

MAX_PROCESSES = 1024
_MAX_HOSTS_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class RemoteHost:
    """One line of a hosts file: where to ssh, how many processes, which Python."""

    name: str
    n_processes: int = 1
    python: str = "python3"

    @property
    def address(self) -> str:
        """The name without the user: what the other processes connect to."""
        return self.name.rpartition("@")[2]


@dataclass(frozen=True, kw_only=True)
class LaunchTarget:
    """Where the processes run. `auto` is a cluster that started this process too."""

    kind: str  # local, ssh, auto
    n_processes: int = 0
    hosts: tuple[RemoteHost, ...] = ()
    text: str = ""


def parse_launch_target(text: str) -> LaunchTarget:
    """Return the target of `--on`.

    >>> parse_launch_target("local:4").n_processes
    4
    """
    kind, colon, rest = text.partition(":")
    if kind == "auto" and not colon:
        return LaunchTarget(kind="auto", text=text)
    if kind == "local" and rest.isdecimal() and 1 <= int(rest) <= MAX_PROCESSES:
        return LaunchTarget(kind="local", n_processes=int(rest), text=text)
    if kind == "ssh" and rest:
        hosts = read_hosts(rest)
        n_processes = sum(host.n_processes for host in hosts)
        return LaunchTarget(kind="ssh", n_processes=n_processes, hosts=hosts, text=text)
    match = nearest_name(kind, ["local", "ssh", "auto"])
    raise InvalidLaunchTarget(
        f"{text!r} does not name where to launch.",
        where=f"--on {text}",
        fix=f"Did you mean '{match}{':4' if match == 'local' else ''}'?"
        if match and match != kind
        else f"write local:N with N from 1 to {MAX_PROCESSES}, ssh:FILE of hosts, or auto.",
    )


def read_hosts(file: str) -> tuple[RemoteHost, ...]:
    """Return the hosts of a file: one a line, with `processes=N` and `python=PATH` after it."""
    path = Path(file)
    if not path.is_file():
        raise InvalidLaunchTarget(
            f"No such file: {file!r}.",
            where=f"--on ssh:{file}",
            fix="write a file with one host a line, such as 'node1' or 'me@node2 processes=4'.",
        )
    try:
        text = read_regular_file(path, _MAX_HOSTS_BYTES).decode()
    except (OSError, ValueError) as error:
        raise InvalidLaunchTarget(
            f"{file!r} cannot be read: {error}.",
            where=f"--on ssh:{file}",
            fix="write it as UTF-8 text with one host a line.",
        ) from None
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_parse_host(words, f"{file}:{number}"))
    if not hosts:
        raise InvalidLaunchTarget(
            f"{file!r} names no host.",
            where=f"--on ssh:{file}",
            fix="write one host a line, such as 'node1' or 'me@node2 processes=4'.",
        )
    return tuple(hosts)


def _parse_host(words: list[str], where: str) -> RemoteHost:
    name, options = words[0], dict(word.partition("=")[::2] for word in words[1:])
    unknown = [key for key in options if key not in ("processes", "python")]
    count = options.get("processes", "1")
    is_count = count.isdecimal() and 1 <= int(count) <= MAX_PROCESSES
    # A name that begins with a dash would be an option of ssh, such as -oProxyCommand.
    if name.startswith("-") or unknown or not is_count:
        problem = (
            f"the host name {name!r} begins with a dash"
            if name.startswith("-")
            else f"unknown option {unknown[0]!r}"
            if unknown
            else f"processes={count}"
        )
        raise InvalidLaunchTarget(
            f"A line of the hosts file is invalid: {problem}.",
            where=where,
            fix="write a host, and after it processes=4 or python=/opt/venv/bin/python.",
        )
    return RemoteHost(
        name=name, n_processes=int(count), python=options.get("python", sys.executable)
    )


@dataclass(frozen=True, kw_only=True)
class ProcessCommand:
    """How one process is started."""

    host: str  # "this machine", or the name of a remote host
    command: tuple[str, ...]


_START_CODE = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from shardlab.cluster.{module} import main; main()"
)
# Without questions for passwords; keys must be known.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


def worker_arguments(module: str) -> tuple[str, ...]:
    """Return the arguments of Python that start a worker of this package."""
    # -P: otherwise the current folder would come before the standard library.
    source_root = str(Path(__file__).parents[2])
    return ("-P", "-c", _START_CODE.format(module=module), source_root)


def process_commands(
    target: LaunchTarget, folder: str, environment: Mapping[str, str]
) -> list[ProcessCommand]:
    """Return the command of each process, in the order of their numbers.

    On a remote host the program must be in the same folder, as on a shared file system, and
    shardlab be installed there.
    """
    arguments = worker_arguments("process_worker")
    if target.kind == "local":
        command = (sys.executable, *arguments)
        return [ProcessCommand(host="this machine", command=command)] * target.n_processes
    settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    commands = []
    for host in target.hosts:
        line = shlex.join((host.python, *arguments))
        remote = f"cd {shlex.quote(folder)} && exec env {' '.join([*settings, line])}"
        # `--` ends the options of ssh: a host is never read as one.
        command = (*_SSH, "--", host.name, remote)
        commands += [ProcessCommand(host=host.name, command=command)] * host.n_processes
    return commands
