"""Threads that wait for other threads are blocked; threads that may go on by themselves are not."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import sys
import threading
import time

import pytest

from shardlab.simulator.hosts.blocked_threads import others_are_blocked

HANG_S = 60


def is_blocked(thread):
    # Also threads that `threading` does not know, such as those of pytest-xdist.
    ignored = sys._current_frames().keys() - {thread.ident}
    return others_are_blocked(waiting=(), ignored=ignored)


def becomes_blocked(thread):
    """Return whether a thread is found blocked once it has had time to start waiting."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        if is_blocked(thread):
            return True
    return False


@pytest.fixture
def started():
    """Start threads, and end them at the end of the test."""
    ends = []

    def start(function, end):
        thread = threading.Thread(target=function, daemon=True)
        thread.start()
        ends.append((thread, end))
        return thread

    yield start
    for thread, end in ends:
        end()
        thread.join(HANG_S)
        assert not thread.is_alive()


def test_a_thread_that_waits_for_an_event_is_blocked_until_it_is_set(started):
    event = threading.Event()
    assert becomes_blocked(started(event.wait, event.set))


def test_a_thread_that_waits_for_a_queue_or_a_result_is_blocked(started):
    items, future = queue.Queue(), concurrent.futures.Future()
    assert becomes_blocked(started(items.get, lambda: items.put(None)))
    assert becomes_blocked(started(future.result, lambda: future.set_result(None)))


def test_a_thread_that_joins_a_blocked_thread_is_blocked(started):
    event = threading.Event()
    first = started(event.wait, event.set)
    assert becomes_blocked(started(first.join, event.set))


def test_an_idle_worker_of_a_pool_is_blocked():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        thread = pool.submit(threading.current_thread).result()
        assert becomes_blocked(thread)


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_an_event_loop_without_timers_is_blocked_and_one_with_a_timer_is_not(loop, started):
    thread = started(loop.run_forever, lambda: loop.call_soon_threadsafe(loop.stop))
    assert becomes_blocked(thread)
    loop.call_soon_threadsafe(loop.call_later, HANG_S, lambda: None)
    ready = threading.Event()
    loop.call_soon_threadsafe(ready.set)
    ready.wait(HANG_S)
    assert not is_blocked(thread)


def test_a_thread_that_sleeps_or_waits_with_a_time_limit_may_go_on(started):
    end = threading.Event()

    def poll():
        while not end.is_set():
            time.sleep(0.01)

    assert not is_blocked(started(poll, end.set))
    limited = threading.Event()
    assert not is_blocked(started(lambda: limited.wait(HANG_S), limited.set))
