"""A real terminal for a program under test: a pty with a size, keys in, screen out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

# Takes the terminal for its own, then becomes the program. Not in a `preexec_fn`: JAX, which other
# tests may have loaded here, warns of every fork.
_TAKE = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """Runs a program in a terminal of its own."""

    def __init__(self, command, *, columns=100, env=None, cwd=None):
        self._ours, self._theirs = pty.openpty()
        self.resize(columns)
        self.before = termios.tcgetattr(self._theirs)
        self._bytes = b""
        self._at = 0  # in what is shown: the end of what `until` has returned
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, *command],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            env=env,
            cwd=cwd,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def resize(self, columns, rows=40):
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def press(self, keys):
        os.write(self._ours, keys.encode())

    def until(self, text, seconds=90):
        """Return what is shown up to `text`, without colours; it must come."""
        end = time.monotonic() + seconds
        while text not in self.shown[self._at :]:
            if not self._read(max(end - time.monotonic(), 0)):
                raise AssertionError(f"{text!r} did not come; shown: {self.shown[-3000:]}")
        began, self._at = self._at, self.shown.index(text, self._at) + len(text)
        return self.shown[began : self._at]

    @property
    def raw(self):
        return self._bytes.decode("utf-8", "ignore")

    @property
    def shown(self):
        return _COLOURS.sub("", self.raw).replace("\r\n", "\n")

    def ended(self, seconds=30):
        """Return the exit code, and read what was said last."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.wait(1)

    @property
    def is_as_before(self):
        return termios.tcgetattr(self._theirs) == self.before

    def _read(self, seconds):
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if not ready:
            return False
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self._ours, 1 << 16)
        self._bytes += data
        return bool(data)
