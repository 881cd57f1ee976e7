"""Prints what virtual hosts print: the first host as it is, the others with their number.

Lines stay whole: a line of one host never ends up inside a line of another.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO


class HostOutput:
    """Where the output of each host goes: the terminal, or a file for each."""

    def __init__(self, n_hosts: int, output: str) -> None:
        self._output = output
        self._unfinished: dict[tuple[int, str], bytes] = {}
        # Whether an unfinished line of the first host, such as a prompt, was printed last.
        self._is_inside_line = False
        self._files: list[IO[bytes]] = []
        if output not in ("all", "first"):
            folder = Path(output)
            folder.mkdir(parents=True, exist_ok=True)
            self._files = [(folder / f"host-{i}.txt").open("wb") for i in range(n_hosts)]

    def __enter__(self) -> HostOutput:
        return self

    def __exit__(self, *exception: object) -> None:
        for (host, stream), rest in self._unfinished.items():
            if rest:
                self._print_lines(host, stream, rest + b"\n")
        for file in self._files:
            file.close()

    def write(self, host: int, stream: str, data: bytes) -> None:
        """Print what a host has written to "stdout" or "stderr"."""
        if self._files:
            self._files[host].write(data)
            self._files[host].flush()
        elif host == 0 or self._output == "all":
            before = self._unfinished.get((host, stream), b"")
            lines, end, rest = (before + data).rpartition(b"\n")
            self._unfinished[host, stream] = rest
            if end:
                self._print_lines(host, stream, lines + end)

    @property
    def has_prompt(self) -> bool:
        """Return whether the first host has written a line without its end."""
        return any(self._unfinished.get((0, stream)) for stream in ("stdout", "stderr"))

    def print_prompt(self) -> None:
        """Print the unfinished line of the first host: it may wait for input."""
        for stream in ("stdout", "stderr"):
            if text := self._unfinished.pop((0, stream), b""):
                _print(stream, text)
                self._is_inside_line = True

    def _print_lines(self, host: int, stream: str, lines: bytes) -> None:
        prefix = f"[host {host}] ".encode() if host else b""
        start = b"\n" if self._is_inside_line and host else b""
        self._is_inside_line = False
        _print(stream, start + b"".join(prefix + line + b"\n" for line in lines.split(b"\n")[:-1]))


def _print(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.buffer.write(data)
    target.flush()
