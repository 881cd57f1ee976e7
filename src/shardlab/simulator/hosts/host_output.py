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
        # Whether the first host has printed a line without its end, such as a prompt.
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
        elif host == 0:
            self._is_inside_line = bool(data) and not data.endswith(b"\n")
            _print(stream, data)
        elif self._output == "all":
            before = self._unfinished.get((host, stream), b"")
            lines, end, rest = (before + data).rpartition(b"\n")
            self._unfinished[host, stream] = rest
            if end:
                self._print_lines(host, stream, lines + end)

    def _print_lines(self, host: int, stream: str, lines: bytes) -> None:
        prefix = f"[host {host}] ".encode()
        start = b"\n" if self._is_inside_line else b""
        self._is_inside_line = False
        _print(stream, start + b"".join(prefix + line for line in lines.splitlines(keepends=True)))


def _print(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.buffer.write(data)
    target.flush()
