"""How many event streams may be open: of a person, of an address, and of all together.

A stream above a limit sends the present state and ends. Its client connects again after some
seconds, as the protocol of server-sent events says, so a page with too many tabs polls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from starlette.requests import Request

from shardlab.server.person import Person

Key = TypeVar("Key")

MAX_OF_PERSON = 12
MAX_OF_ADDRESS = 300  # a class behind one address, or all people behind a reverse proxy
MAX_STREAMS = 1000
RETRY_MS = 3000  # of a client that is above a limit


class EventStreams:
    """Counts the open streams of one application, in the thread of its event loop."""

    def __init__(self) -> None:
        self._of_person: Counter[int] = Counter()
        self._of_address: Counter[str] = Counter()

    @property
    def n_open(self) -> int:
        return self._of_person.total()

    @contextmanager
    def open(self, person: Person, request: Request) -> Iterator[str]:
        """Yield why the stream must end after its first event; empty if it may stay open."""
        address = request.client.host if request.client else ""
        refusal = self._explain_refusal(person, address)
        if refusal:
            yield refusal
            return
        self._of_person[person.id] += 1
        self._of_address[address] += 1
        try:
            yield ""
        finally:
            _subtract(self._of_person, person.id)
            _subtract(self._of_address, address)

    def _explain_refusal(self, person: Person, address: str) -> str:
        if self._of_person[person.id] >= MAX_OF_PERSON:
            return f"{MAX_OF_PERSON} event streams of this person are open"
        if self._of_address[address] >= MAX_OF_ADDRESS:
            return f"{MAX_OF_ADDRESS} event streams of this address are open"
        if self.n_open >= MAX_STREAMS:
            return f"{MAX_STREAMS} event streams are open"
        return ""


def refusal_lines(refusal: str) -> str:
    """Return what such a stream begins with: a comment for people, and when to ask again."""
    return f": {refusal}; this one ends, ask again\nretry: {RETRY_MS}\n"


def event_streams(request: Request) -> EventStreams:
    """Return the streams of this application."""
    streams: EventStreams = request.app.state.event_streams
    return streams


def _subtract(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
