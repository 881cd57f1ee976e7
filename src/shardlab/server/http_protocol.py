"""HTTP/1.1 of uvicorn, with a time limit for the head of a request.

uvicorn closes a connection that is idle after a response, but waits forever for the rest of a head
that a client sends byte by byte. The time for a body is limited in `request_guard`.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
MIN_COMPRESSED_BYTES = 1000  # below it gzip saves no packet


class TimedProtocol(H11Protocol):
    """One connection."""

    head_seconds = HEAD_SECONDS
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # uvicorn narrows the type of asyncio.Protocol in the same way.
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # uvicorn creates a cycle when a head is complete.
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_head_timer()
        elif self._head_timer is None:
            self._start_head_timer()  # the next request on the same connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        super().connection_lost(exc)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._close_slow_client)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_slow_client(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.abort()
