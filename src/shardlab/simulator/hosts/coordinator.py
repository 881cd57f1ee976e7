"""Decides who waits for whom: the meetings of virtual hosts, their key-value store, deadlocks.

A state machine without input or output: `receive` takes a message of one host and returns the
messages that go out. It finds a deadlock exactly, without a time limit: every live host has a
thread that waits, nothing that they wait for is complete, and each host says that none of its other
threads can do anything. Where a time limit of the program would end the waiting (a barrier, a key),
the shortest one expires at once: nothing else can happen until then.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shardlab.errors import (
    HostFailed,
    HostsDeadlock,
    HostsDiffer,
    LabError,
    SimulationError,
)
from shardlab.simulator.hosts.messages import (
    Failure,
    Finished,
    GetKey,
    Meet,
    Message,
    Probe,
    ProbeAnswer,
    Reply,
    Request,
    StoreCall,
)

Outbox = list[tuple[int, Message]]


@dataclass
class Host:
    """What the coordinator knows about one host."""

    waiting: dict[int, Meet | GetKey] = field(default_factory=dict)
    finished: Finished | None = None
    has_ended: bool = False
    exit_code: int | None = None  # of its process
    is_blocked: bool = False  # its answer to the current probe


class RunEnded(Exception):
    """The run cannot go on; `error` says why."""

    def __init__(self, error: LabError) -> None:
        super().__init__(str(error))
        self.error = error


class Coordinator:
    """The state of all hosts of one run."""

    def __init__(self, n_hosts: int) -> None:
        self.hosts = [Host() for _ in range(n_hosts)]
        self._store: dict[str, str] = {}
        self._probe = 0
        self._probe_answers: set[int] = set()
        self.needs_probe = False

    def receive(self, host: int, message: Message) -> Outbox:
        """Return the messages to send after this one; raise `RunEnded` if the run cannot go on."""
        if isinstance(message, ProbeAnswer):
            return self._receive_probe_answer(host, message)
        # A host that does something makes every answer to the current probe out of date.
        self._cancel_probe()
        out: Outbox = []
        if isinstance(message, Meet):
            self.hosts[host].waiting[message.request] = message
            out += self._complete_meeting(message)
        elif isinstance(message, GetKey):
            self.hosts[host].waiting[message.request] = message
            out += self._serve_keys()
        elif isinstance(message, StoreCall):
            out.append((host, self._call_store(message)))
            out += self._serve_keys()
        elif isinstance(message, Failure):
            raise RunEnded(_failure_error(message))
        elif isinstance(message, Finished):
            self.hosts[host].finished = message
        return out

    def end_host(self, host: int, exit_code: int) -> None:
        """Note that the process of a host has ended."""
        self._cancel_probe()
        self.hosts[host].has_ended = True
        self.hosts[host].exit_code = exit_code
        self.hosts[host].waiting.clear()

    def start_probe(self) -> Outbox:
        """Ask all live hosts whether they are blocked, if it looks like a deadlock."""
        live = self._live_hosts()
        if not live or not all(self.hosts[host].waiting for host in live):
            self.needs_probe = False
            return []
        self._probe += 1
        self._probe_answers = set()
        self.needs_probe = False
        return [(host, Probe(number=self._probe)) for host in live]

    def may_be_blocked(self) -> bool:
        """Return whether every live host has a thread that waits."""
        live = self._live_hosts()
        return bool(live) and all(self.hosts[host].waiting for host in live)

    def _live_hosts(self) -> list[int]:
        return [index for index, host in enumerate(self.hosts) if not host.has_ended]

    def _cancel_probe(self) -> None:
        self._probe += 1
        self._probe_answers = set()
        self.needs_probe = True

    # ------------------------------------------------------------------------------- meetings

    def _complete_meeting(self, message: Meet) -> Outbox:
        """Answer a meeting if all its hosts wait in it, with the first meeting of each host."""
        meetings: list[tuple[int, Meet]] = []
        for host in message.group:
            first = self._first_meeting(host, message.channel)
            if first is None:
                return []
            meetings.append((host, first))
        self._check_agreement(meetings)
        values = tuple(meeting.value for _, meeting in meetings)
        out: Outbox = []
        for host, meeting in meetings:
            del self.hosts[host].waiting[meeting.request]
            out.append((host, Reply(request=meeting.request, values=values)))
        return out

    def _first_meeting(self, host: int, channel: str) -> Meet | None:
        # Of several threads that wait in one channel, the first that came.
        for waiting in self.hosts[host].waiting.values():
            if isinstance(waiting, Meet) and waiting.channel == channel:
                return waiting
        return None

    def _check_agreement(self, meetings: list[tuple[int, Meet]]) -> None:
        if len({(m.agreement, m.group) for _, m in meetings}) == 1:
            return
        places: dict[str, list[int]] = {}
        for host, meeting in meetings:
            places.setdefault(_at(meeting), []).append(host)
        raise RunEnded(
            HostsDiffer(
                "The hosts run different computations at the same time. On real hosts they block "
                "forever, or mix up values.",
                where=_lines(f"{hosts_text(hosts)}: {at}" for at, hosts in places.items()),
                fix="all hosts must call the same computations on the same shapes in the same "
                "order; branch on jax.process_index() only around code of one host.",
            )
        )

    # --------------------------------------------------------------------------------- store

    def _call_store(self, message: StoreCall) -> Reply:
        key, value = message.key, message.value
        if message.call == "live":
            live = (str(i) for i, host in enumerate(self.hosts) if not host.has_ended)
            return Reply(request=message.request, values=tuple(live))
        if message.call == "set" and key in self._store:
            return _error_reply(message, f"ALREADY_EXISTS: Config key {key} already exists.")
        if message.call in ("set", "replace"):
            self._store[key] = value
            return Reply(request=message.request)
        if message.call == "try_get" and key not in self._store:
            return _error_reply(message, f"NOT_FOUND: Config key {key} not found.")
        if message.call == "try_get":
            return Reply(request=message.request, values=(self._store[key],))
        if message.call == "dir_get":
            return Reply(request=message.request, values=tuple(self._entries_below(key)))
        if message.call == "delete":
            for name in [k for k in self._store if k == key or k.startswith(_folder(key))]:
                del self._store[name]
            return Reply(request=message.request)
        return self._increment(message)

    def _increment(self, message: StoreCall) -> Reply:
        stored = base64.b64decode(self._store.get(message.key, ""))
        total = str(int(stored or b"0") + int(message.value))
        self._store[message.key] = base64.b64encode(total.encode()).decode()
        return Reply(request=message.request, values=(total,))

    def _entries_below(self, key: str) -> Iterator[str]:
        for name in sorted(self._store):
            if name.startswith(_folder(key)):
                yield from (name, self._store[name])

    def _serve_keys(self) -> Outbox:
        out: Outbox = []
        for index, host in enumerate(self.hosts):
            for request, waiting in list(host.waiting.items()):
                if isinstance(waiting, GetKey) and waiting.key in self._store:
                    del host.waiting[request]
                    values = (self._store[waiting.key],)
                    out.append((index, Reply(request=request, values=values)))
        return out

    # ------------------------------------------------------------------------------ deadlocks

    def _receive_probe_answer(self, host: int, message: ProbeAnswer) -> Outbox:
        if message.number != self._probe:
            return []
        self.hosts[host].is_blocked = message.is_blocked
        self._probe_answers.add(host)
        live = self._live_hosts()
        if self._probe_answers < set(live):
            return []
        if not all(self.hosts[index].is_blocked for index in live):
            self.needs_probe = True  # a thread works: ask again later
            return []
        return self._expire_or_end(live)

    def _expire_or_end(self, live: list[int]) -> Outbox:
        """All hosts are blocked: let the shortest time limit expire, or end the run."""
        limited = [
            (waiting.deadline, index, request)
            for index in live
            for request, waiting in self.hosts[index].waiting.items()
            if waiting.deadline is not None
        ]
        failed = [index for index, host in enumerate(self.hosts) if host.exit_code]
        # A barrier with a time limit would fail as well, but only after what it waits for has.
        if not limited or failed:
            raise RunEnded(self._deadlock_error(live, failed))
        _, index, request = min(limited)
        expired = self.hosts[index].waiting.pop(request)
        # The clocks of the others have advanced by as much; all limits are relative and long.
        self._cancel_probe()
        return [(index, _error_reply(expired, _deadline_text(expired)))]

    def _deadlock_error(self, live: list[int], failed: list[int]) -> SimulationError:
        hosts_by_place: dict[str, list[int]] = {}
        for index in live:
            for waiting in itertools.islice(self.hosts[index].waiting.values(), 1):
                place = f"{_at(waiting)}{self._missing(waiting)}"
                hosts_by_place.setdefault(place, []).append(index)
        places = [
            f"{hosts_text(hosts)}: {'waits' if len(hosts) == 1 else 'wait'} in {place}"
            for place, hosts in hosts_by_place.items()
        ]
        ended = [index for index, host in enumerate(self.hosts) if host.has_ended]
        for code in sorted({self.hosts[index].exit_code for index in ended}, key=str):
            with_code = [index for index in ended if self.hosts[index].exit_code == code]
            verb = "has" if len(with_code) == 1 else "have"
            places.append(f"{hosts_text(with_code)}: {verb} ended with exit code {code}")
        where = _lines(places)
        if failed:
            return HostFailed(
                f"{hosts_text(failed).capitalize()} failed, and {hosts_text(live)} would wait "
                "forever.",
                where=where,
                fix=f"read what host {failed[0]} printed.",
            )
        return HostsDeadlock(
            f"The program would hang forever: {hosts_text(live)} "
            f"{'waits' if len(live) == 1 else 'wait'} for "
            + (f"{hosts_text(ended)}, which ended." if ended else "each other."),
            where=where,
            fix="let all hosts make the same calls in the same order: keep a jit on global arrays, "
            "a barrier or a function of multihost_utils out of `if jax.process_index() == 0`.",
        )

    def _missing(self, waiting: Meet | GetKey) -> str:
        if isinstance(waiting, GetKey):
            return f" for the key {waiting.key!r}, which nobody sets"
        missing = [
            host for host in waiting.group if self._first_meeting(host, waiting.channel) is None
        ]
        return f", which {hosts_text(missing)} never called" if missing else ""


def _lines(places: Iterable[str]) -> str:
    """Return places as lines below each other in the `where` of an error."""
    return "\n         ".join(places)


def _folder(key: str) -> str:
    return key if key.endswith("/") else key + "/"


def _at(request: Request) -> str:
    return f"{request.operation} at {request.line}" if request.line else request.operation


def hosts_text(hosts: list[int]) -> str:
    """Return hosts as text.

    >>> hosts_text([2]), hosts_text([0, 1, 3])
    ('host 2', 'hosts 0, 1 and 3')
    """
    names = [str(host) for host in hosts]
    if len(names) == 1:
        return f"host {names[0]}"
    return f"hosts {', '.join(names[:-1])} and {names[-1]}"


def _error_reply(message: Request, text: str) -> Reply:
    return Reply(request=message.request, error=text)


def _deadline_text(expired: Meet | GetKey) -> str:
    if isinstance(expired, GetKey):
        return (
            f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {expired.key} and duration: "
            f"{expired.deadline:g}s"
        )
    return (
        f"DEADLINE_EXCEEDED: Barrier timed out. Id: {expired.channel.removeprefix('barrier ')}. "
        f"Timeout: {expired.deadline:g}s."
    )


def _failure_error(failure: Failure) -> LabError:
    for error_class in (HostsDiffer, SimulationError):
        if error_class.code == failure.code:
            break
    return error_class(failure.what, where=failure.where, fix=failure.fix)
