"""News between the processes of a server on PostgreSQL: LISTEN and NOTIFY.

Notifications are a hint only: one that was missed, because the connection was cut, costs a second,
after which everybody looks at the database anyway.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy.engine import URL

JOB_CHANNEL = "shardlab_job"  # the payload is the id of a job that has changed
QUEUE_CHANNEL = "ch_pgqueuer"  # PgQueuer's trigger: its table has changed
_WAIT_SECONDS = 1.0  # until the thread looks whether it should end
_RECONNECT_SECONDS = 1.0
_LOG = logging.getLogger("shardlab.server")


class ChangeListener:
    """Calls a function for every notification, in a thread with a connection of its own."""

    def __init__(
        self, url: URL, channels: Sequence[str], on_change: Callable[[str, str], None]
    ) -> None:
        self._url, self._channels, self._on_change = url, tuple(channels), on_change
        self._is_ending = threading.Event()
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        """Listen in the background."""
        self._thread.start()

    def wait_until_listening(self, seconds: float) -> bool:
        """Return whether the connection is there; it is opened again whenever it was cut."""
        return self._is_listening.wait(seconds)

    def stop(self) -> None:
        """End the thread."""
        self._is_ending.set()
        if self._thread.is_alive():
            self._thread.join(10 * _WAIT_SECONDS)

    def _run(self) -> None:
        import psycopg

        while not self._is_ending.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                lines = str(error).strip().splitlines()
                _LOG.warning("no news from the database: %s", lines[0] if lines else "cut off")
            self._is_listening.clear()
            self._is_ending.wait(_RECONNECT_SECONDS)

    def _listen(self) -> None:
        import psycopg
        from psycopg import sql

        with psycopg.connect(**connect_arguments(self._url), autocommit=True) as connection:
            for channel in self._channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self._is_listening.set()
            for channel in self._channels:  # what has changed meanwhile is not known
                self._on_change(channel, "")
            while not self._is_ending.is_set():
                for note in connection.notifies(timeout=_WAIT_SECONDS, stop_after=1):
                    self._on_change(note.channel, note.payload)
                # A connection whose other end is gone is noticed by the first thing sent.
                connection.execute("SELECT 1")


def connect_arguments(url: URL) -> dict[str, Any]:
    """Return what psycopg takes, without the time limits of transactions."""
    arguments = url.translate_connect_args(username="user", database="dbname")
    return {
        **arguments,
        **url.query,
        "connect_timeout": 10,
        "application_name": "shardlab listener",
        "keepalives_idle": 5,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "tcp_user_timeout": 15000,
    }
