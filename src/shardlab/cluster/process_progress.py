"""Where this process is: set by the main thread, sampled and sent by a thread of its own."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from shardlab.cluster.activity import is_active, sample_activity
from shardlab.cluster.messages import Phase, Status

_SAMPLE_SECONDS = 0.5
_MIN_SECONDS_BETWEEN = 0.05


class ProcessProgress:
    """The phase of this process, and since when nothing has changed."""

    def __init__(self, send: Callable[[Status], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._phase: Phase = "starting"
        self._program = ""
        self._n_executed = 0
        self._active_at = time.monotonic()
        self._sent_at = 0.0
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._thread = threading.main_thread().ident
        # Prefixes of files whose lines are not the user's.
        self.hidden_paths: tuple[str, ...] = ("<frozen ", "<string>", sys.prefix, sys.base_prefix)

    def start(self) -> None:
        self._watcher.start()

    def stop(self) -> None:
        """Send no more, and wait for the thread.

        The interpreter must not exit while it is in jaxlib: that aborts the process.
        """
        self._stopped.set()
        self._watcher.join()

    def enter(self, phase: Phase, program: str = "") -> None:
        with self._lock:
            self._phase, self._program = phase, program
            self._active_at = time.monotonic()

    def finish(self) -> None:
        """Send the last status, with all executions: others may still wait in one of them."""
        self.enter("finished")
        self._send_status()

    @contextlib.contextmanager
    def entered(self, phase: Phase, program: str) -> Iterator[None]:
        """Be in a phase within this block, and in the one before after it, unless it raises.

        After an exception the phase stays: it says where the process was when it failed.
        """
        before = self._phase, self._program
        self.enter(phase, program)
        yield
        self.enter(*before)
        # So that the last position of a process that dies is a recent one.
        if time.monotonic() - self._sent_at > _MIN_SECONDS_BETWEEN:
            self._send_status()

    def count_execution(self) -> None:
        """Count a completed execution on several processes."""
        with self._lock:
            self._n_executed += 1

    def status(self) -> Status:
        line = self._user_line()
        with self._lock:
            return Status(
                phase=self._phase,
                program=self._program,
                n_executed=self._n_executed,
                line=line,
                idle_seconds=round(time.monotonic() - self._active_at, 3),
            )

    def _watch(self) -> None:
        own_thread = threading.get_native_id()
        before = sample_activity(without_thread=own_thread)
        while not self._stopped.wait(_SAMPLE_SECONDS):
            after = sample_activity(without_thread=own_thread)
            # In an execution the main thread wakes up now and then, only to wait again.
            if is_active(before, after, with_waits=self._phase not in ("executing", "connecting")):
                with self._lock:
                    self._active_at = after.seconds
            before = after
            self._send_status()

    def _send_status(self) -> None:
        # The launcher is gone, or the store: this process is about to be ended.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._send(self.status())
            self._sent_at = time.monotonic()

    def _user_line(self) -> str:
        frame: FrameType | None = sys._current_frames().get(self._thread or 0)
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(self.hidden_paths):
                return f"{code.co_filename}:{frame.f_lineno} ({code.co_name})"
            frame = frame.f_back
        return ""
