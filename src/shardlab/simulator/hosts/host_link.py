"""The connection of a virtual host to the coordinator: calls that block until others arrive."""

from __future__ import annotations

import inspect
import itertools
import os
import shutil
import socket
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

import jax
from jax.experimental import multihost_utils

from shardlab.errors import LabError
from shardlab.simulator.hosts.blocked_threads import others_are_blocked
from shardlab.simulator.hosts.messages import (
    Failure,
    Finished,
    GetKey,
    Meet,
    Message,
    Probe,
    ProbeAnswer,
    Reply,
    StoreCall,
    decode_message,
    encode_message,
)

# Frames of these are not the program's.
_HIDDEN = (str(Path(jax.__file__).parent), str(Path(__file__).parents[2]), "<frozen ")
_DEVICE_PUT = inspect.unwrap(jax.device_put).__code__
_NOT_PROGRAM = (*_HIDDEN, sys.prefix, sys.base_prefix)


@dataclass
class _Call:
    """A thread that waits for a reply."""

    thread: int
    arrived: threading.Event = field(default_factory=threading.Event)
    reply: Reply | None = None


class HostLink:
    """One socket, shared by all threads of a host; a thread of its own reads the replies."""

    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self._socket = connection
        self.folder = folder  # where hosts exchange arrays
        self._send_lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        # Daemon threads count as able to act only once they have waited for another host: some
        # loop forever, such as a progress bar.
        self._threads_that_met: set[int] = set()
        threading.Thread(target=self._read, name="shardlab-host", daemon=True).start()

    def meet(
        self,
        channel: str,
        group: tuple[int, ...],
        operation: str,
        *,
        agreement: str = "",
        value: str = "",
        deadline: float | None = None,
    ) -> tuple[str, ...]:
        """Wait until all hosts of `group` meet, and return the values that they brought."""
        return self._call(
            Meet(
                request=next(self._numbers),
                operation=operation,
                line=program_line(),
                channel=channel,
                group=group,
                agreement=agreement,
                value=value,
                deadline=deadline,
            )
        )

    def get_key(self, key: str, deadline: float | None) -> str:
        """Wait until a key of the key-value store is set, and return its value."""
        request = GetKey(
            request=next(self._numbers),
            operation="blocking_key_value_get",
            line=program_line(),
            key=key,
            deadline=deadline,
        )
        return self._call(request)[0]

    def call_store(self, call: str, key: str = "", value: str = "") -> tuple[str, ...]:
        """Return what the key-value store answers at once."""
        request = StoreCall(request=next(self._numbers), call=call, key=key, value=value)
        return self._call(request)

    def fail(self, error: LabError) -> NoReturn:
        """End the run of all hosts with this error."""
        parts = {key: text for key, text in error.to_json().items() if key != "code"}
        self._send(Failure(code=error.code, **parts))
        while True:
            threading.Event().wait()  # until the coordinator ends this process

    def finish(self, finished: Finished) -> None:
        self._send(finished)

    def _call(self, request: Meet | GetKey | StoreCall) -> tuple[str, ...]:
        call = self._calls[request.request] = _Call(threading.get_ident())
        self._threads_that_met.add(call.thread)
        self._send(request)
        call.arrived.wait()
        del self._calls[request.request]
        assert call.reply is not None
        if call.reply.error:
            raise jax.errors.JaxRuntimeError(call.reply.error)
        return call.reply.values

    def _send(self, message: Message) -> None:
        with self._send_lock:
            self._socket.sendall(encode_message(message))

    def _read(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                message = decode_message(line)
                if isinstance(message, Reply):
                    call = self._calls[message.request]
                    call.reply = message
                    call.arrived.set()
                elif isinstance(message, Probe):
                    is_blocked = self._is_blocked()
                    self._send(ProbeAnswer(number=message.number, is_blocked=is_blocked))
        # The coordinator was killed, so nobody else removes the folder.
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(1)

    def _is_blocked(self) -> bool:
        calls = list(self._calls.values())
        if any(call.reply is not None for call in calls):
            return False  # a thread is about to go on
        ignored = {
            thread.ident
            for thread in threading.enumerate()
            if thread.daemon and thread.ident not in self._threads_that_met
        }
        return others_are_blocked(
            waiting={call.thread for call in calls},
            ignored={ident for ident in ignored if ident is not None},
        )


def program_line() -> str:
    """Return file, line and function of the program that calls, and the library function it called.

    Of a thread in which only a library runs: the line of the library.
    """
    frame: FrameType | None = sys._getframe(1)
    called = library = ""
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        line = f"{file}:{frame.f_lineno} ({function})"
        if not file.startswith(_NOT_PROGRAM):
            name = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
            return f"{name}:{frame.f_lineno} ({function}){called}"
        if frame.f_code is _DEVICE_PUT:
            called = ", in jax.device_put"
        is_jax = file.startswith(_HIDDEN)
        if not is_jax or file == multihost_utils.__file__:
            called = f", in {Path(file).stem}.{function}"
            library = library if is_jax else library or line
        frame = frame.f_back
    return library
