"""Ends a user's program as the interpreter ends it, while simulated mode is still on.

Before it exits, `python` first runs the functions that end the workers of thread pools, then joins
all threads that are not daemons, then calls the `atexit` callbacks, the last one first. A library
may still use arrays in any of these (asynchronous checkpoints do), so all of it happens before JAX
is restored. Only what the program started is ended: the process may be a test's.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import thread as thread_pools
from typing import Any

_Callback = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


# Their callbacks clean up after the process, not after the program.
_PROCESS_PACKAGES = frozenset({"weakref", "multiprocessing", "logging"})


class ProgramExit:
    """What the program leaves running or registers for its exit, from when this is made."""

    def __init__(self) -> None:
        self._threads_before = set(threading.enumerate())
        self._n_exit_calls = len(_thread_exit_calls())
        self._callbacks: list[_Callback] = []

    def join_threads(self) -> None:
        """Join the program's threads, after their thread pools were told to end.

        The workers of a `ThreadPoolExecutor` that nobody shuts down wait for work forever, and they
        are not daemons: joining them without that would block forever.
        """
        for exit_call in reversed(_thread_exit_calls()[self._n_exit_calls :]):
            exit_call()
        with _ending_thread_pools(self._threads_before):
            # A thread that ends may have started others.
            while threads := [t for t in threading.enumerate() if self._must_join(t)]:
                for thread in threads:
                    # Not `thread.join()`: a library may override it to raise what the thread
                    # raised (Orbax does), and the interpreter does not call it.
                    threading.Thread.join(thread)

    def _must_join(self, thread: threading.Thread) -> bool:
        is_own = thread is threading.main_thread() or thread is threading.current_thread()
        return not (is_own or thread.daemon or thread in self._threads_before)

    @contextlib.contextmanager
    def collect_callbacks(self) -> Iterator[None]:
        """Within this block, `atexit` callbacks are collected here, to be called in the mode."""
        module: Any = atexit  # mypy requires the exact type of the functions it replaces
        original_register, original_unregister = atexit.register, atexit.unregister

        def register(function: Any, *args: Any, **kwargs: Any) -> Any:
            package = str(getattr(function, "__module__", "")).partition(".")[0]
            if package in _PROCESS_PACKAGES:
                return original_register(function, *args, **kwargs)
            self._callbacks.append((function, args, kwargs))
            return function

        def unregister(function: Any) -> None:
            self._callbacks[:] = [entry for entry in self._callbacks if entry[0] != function]
            original_unregister(function)

        module.register, module.unregister = register, unregister
        try:
            yield
        finally:
            module.register, module.unregister = original_register, original_unregister

    def call_callbacks(self) -> None:
        """Call the collected callbacks, the last one first; like `python`, go on after errors."""
        while self._callbacks:
            function, args, kwargs = self._callbacks.pop()
            try:
                function(*args, **kwargs)
            except BaseException as error:
                print(f"Exception ignored in atexit callback: {function!r}", file=sys.stderr)
                own_frame = error.__traceback__
                error.__traceback__ = own_frame.tb_next if own_frame is not None else None
                traceback.print_exception(error)


def _thread_exit_calls() -> list[Callable[[], Any]]:
    """Return what the interpreter calls before it joins threads; CPython has no public name."""
    return list(getattr(threading, "_threading_atexits", ()))


@contextlib.contextmanager
def _ending_thread_pools(threads_before: set[threading.Thread]) -> Iterator[None]:
    """Within this block thread pools take no more work, and their idle workers end.

    This is `concurrent.futures.thread._python_exit`, which the interpreter calls, for the pools of
    the program, and with its flag restored at the end.
    """
    pools: Any = thread_pools
    with pools._global_shutdown_lock:
        was_shut_down, pools._shutdown = pools._shutdown, True
    try:
        for thread, queue in list(pools._threads_queues.items()):
            if thread not in threads_before:
                queue.put(None)
        yield
    finally:
        pools._shutdown = was_shut_down
