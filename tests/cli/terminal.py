"""A real terminal for a program under test: a pty with a size, keys in, output back."""

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

# Makes the pty its controlling terminal, then execs the program. Not in a `preexec_fn`: JAX, which
# other tests may have loaded here, warns of every fork.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """Runs a program in a terminal of its own.

    Waits end as soon as the text arrives; their limits are generous for a loaded machine.
    """

    def __init__(self, command, *, columns=100, env=None, cwd=None):
        self._ours, self._theirs = pty.openpty()
        self.resize(columns)
        self.settings = termios.tcgetattr(self._theirs)
        self._bytes = b""
        self._position = 0  # end of what `until` has returned
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            # Not None: readline, once loaded here, sets LINES and COLUMNS past os.environ.
            env=dict(os.environ) if env is None else env,
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

    def resize(self, columns, rows=60):
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def press(self, keys):
        os.write(self._ours, keys.encode())

    def until(self, text, seconds=600):
        """Return the output up to `text`, without colors; fail if it does not arrive."""
        deadline = time.monotonic() + seconds
        while text not in self.output[self._position :]:
            if not self._read(max(deadline - time.monotonic(), 0)):
                raise AssertionError(f"{text!r} did not arrive; output: {self.output[-3000:]}")
        start = self._position
        self._position = self.output.index(text, start) + len(text)
        return self.output[start : self._position]

    @property
    def raw(self):
        return self._bytes.decode("utf-8", "ignore")

    @property
    def output(self):
        return _COLORS.sub("", self.raw).replace("\r\n", "\n")

    def exit_code(self, seconds=600):
        """Return the exit code, and read the rest of the output."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.wait(1)

    @property
    def is_restored(self):
        return termios.tcgetattr(self._theirs) == self.settings

    def _read(self, seconds):
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if not ready:
            return False
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(self._ours, 1 << 16)
        self._bytes += data
        return bool(data)
