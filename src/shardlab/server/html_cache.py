"""HTML that is the same for everybody who sees the same: rendered once, found by its content.

A key has everything that the HTML depends on, so that nobody can see what another person's page
shows: two people share an entry only if their HTML is equal to the last byte.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from markupsafe import Markup
from starlette.requests import Request

_MAX_BYTES = 32 * 2**20
_MAX_ENTRY_BYTES = 2**20  # a plan of a large model; a larger one is rendered each time
_ENTRY_OVERHEAD = 500  # of the key and of the dictionary, estimated


class HtmlCache:
    """Holds the entries that were used last, up to a number of bytes. Threads share it."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._entries: OrderedDict[Hashable, Markup] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Hashable) -> Markup | None:
        """Return an entry; None if it is not there."""
        with self._lock:
            html = self._entries.get(key)
            if html is not None:
                self._entries.move_to_end(key)
            return html

    def store(self, key: Hashable, html: Markup) -> None:
        """Store an entry, and drop those that were not used for the longest time."""
        size = _entry_bytes(html)
        if size > min(_MAX_ENTRY_BYTES, self._max_bytes):
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = html
            self._n_bytes += size
            while self._n_bytes > self._max_bytes:
                self._n_bytes -= _entry_bytes(self._entries.popitem(last=False)[1])

    def find_or_render(self, key: Hashable, render: Callable[[], Markup]) -> Markup:
        """Return an entry, rendered now if it is not there."""
        html = self.find(key)
        if html is None:
            # Without the lock: two requests may render the same, and neither waits.
            html = render()
            self.store(key, html)
        return html


def _entry_bytes(html: Markup) -> int:
    # Python stores a text with a character above U+00FF in two or four bytes each.
    return html.__sizeof__() + _ENTRY_OVERHEAD


def html_cache(request: Request) -> HtmlCache:
    """Return the cache of an application; its catalogue does not change while it runs."""
    cache: HtmlCache = request.app.state.html_cache
    return cache
