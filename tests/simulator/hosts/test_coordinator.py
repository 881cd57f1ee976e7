"""Meetings of virtual hosts, their key-value store, and deadlocks, without processes."""

from __future__ import annotations

import pytest

from shardlab.errors import HostFailed, HostsDeadlock, HostsDiffer
from shardlab.simulator.hosts.coordinator import Coordinator, RunEnded
from shardlab.simulator.hosts.messages import (
    GetKey,
    Meet,
    Probe,
    ProbeAnswer,
    Reply,
    StoreCall,
)


def meet(request, group=(0, 1), channel="all", **fields):
    fields = {"operation": "jit(step)", "line": "train.py:3 (main)", **fields}
    return Meet(request=request, channel=channel, group=group, **fields)


def answer_probes(coordinator, blocked=(True, True)):
    """Let every live host answer the probe that it gets, and return the last messages."""
    out = []
    for host, probe in coordinator.start_probe():
        assert isinstance(probe, Probe)
        out = coordinator.receive(host, ProbeAnswer(number=probe.number, is_blocked=blocked[host]))
    return out


def test_a_meeting_ends_when_all_its_hosts_have_come():
    coordinator = Coordinator(3)
    assert coordinator.receive(0, meet(5, (0, 2), value="a")) == []
    assert coordinator.receive(1, meet(1, (0, 1, 2), channel="other")) == []
    assert coordinator.receive(2, meet(9, (0, 2), value="c")) == [
        (0, Reply(request=5, values=("a", "c"))),
        (2, Reply(request=9, values=("a", "c"))),
    ]


def test_meetings_of_one_channel_happen_in_order():
    coordinator = Coordinator(2)
    coordinator.receive(0, meet(1, value="first"))
    coordinator.receive(0, meet(2, value="second"))
    assert [reply.request for _, reply in coordinator.receive(1, meet(7))] == [1, 7]
    assert [reply.request for _, reply in coordinator.receive(1, meet(8))] == [2, 8]


def test_hosts_that_bring_other_programs_end_the_run():
    coordinator = Coordinator(3)
    everyone = (0, 1, 2)
    coordinator.receive(0, meet(1, everyone, agreement="x", operation="jit(f)", line="a.py:1 (f)"))
    coordinator.receive(1, meet(1, everyone, agreement="y", operation="jit(g)", line="a.py:2 (g)"))
    with pytest.raises(RunEnded) as caught:
        coordinator.receive(
            2, meet(1, everyone, agreement="y", operation="jit(g)", line="a.py:2 (g)")
        )
    assert isinstance(caught.value.error, HostsDiffer)
    assert caught.value.error.where.splitlines() == [
        "host 0: jit(f) at a.py:1 (f)",
        "         hosts 1 and 2: jit(g) at a.py:2 (g)",
    ]


def test_nobody_is_asked_while_a_host_works():
    coordinator = Coordinator(2)
    coordinator.receive(0, meet(1))
    assert not coordinator.may_be_blocked()
    assert coordinator.start_probe() == []


def test_hosts_that_wait_for_each_other_are_a_deadlock_with_the_place_of_each():
    coordinator = Coordinator(2)
    coordinator.receive(0, meet(1, channel="a", operation="barrier a", line="t.py:1 (f)"))
    coordinator.receive(1, meet(1, channel="b", operation="barrier b", line="t.py:2 (g)"))
    assert coordinator.may_be_blocked()
    with pytest.raises(RunEnded) as caught:
        answer_probes(coordinator)
    error = caught.value.error
    assert isinstance(error, HostsDeadlock)
    assert error.what == "The program would hang forever: hosts 0 and 1 wait for each other."
    assert error.where.splitlines() == [
        "host 0: waits in barrier a at t.py:1 (f), which host 1 never called",
        "         host 1: waits in barrier b at t.py:2 (g), which host 0 never called",
    ]


def test_a_thread_that_works_is_no_deadlock_and_the_hosts_are_asked_again():
    coordinator = Coordinator(2)
    coordinator.receive(0, meet(1, channel="a"))
    coordinator.receive(1, meet(1, channel="b"))
    assert answer_probes(coordinator, blocked=(True, False)) == []
    assert coordinator.needs_probe


def test_an_answer_is_out_of_date_once_a_host_has_done_something():
    coordinator = Coordinator(2)
    coordinator.receive(0, meet(1, channel="a"))
    coordinator.receive(1, meet(1, channel="b"))
    (_, probe), _ = coordinator.start_probe()
    coordinator.receive(1, StoreCall(request=2, call="set", key="k", value=""))
    for host in (0, 1):
        answer = ProbeAnswer(number=probe.number, is_blocked=True)
        assert coordinator.receive(host, answer) == []


def test_a_host_that_has_ended_is_missed():
    coordinator = Coordinator(2)
    coordinator.receive(0, meet(1))
    coordinator.end_host(1, 0)
    with pytest.raises(RunEnded) as caught:
        answer_probes(coordinator)
    assert isinstance(caught.value.error, HostsDeadlock)
    assert "host 0 waits for host 1, which ended" in caught.value.error.what
    assert "host 1: has ended with exit code 0" in caught.value.error.where


def test_waiting_for_a_failed_host_is_its_failure():
    coordinator = Coordinator(2)
    coordinator.receive(0, meet(1, deadline=600.0))
    coordinator.end_host(1, 3)
    with pytest.raises(RunEnded) as caught:
        answer_probes(coordinator)
    assert isinstance(caught.value.error, HostFailed)
    assert caught.value.error.what.startswith("Host 1 failed, and host 0 would wait")


def test_the_shortest_time_limit_expires_instead_of_a_deadlock():
    coordinator = Coordinator(2)
    coordinator.receive(0, meet(1, channel="barrier a", deadline=600.0))
    coordinator.receive(1, GetKey(request=4, key="k", deadline=5.0))
    ((host, reply),) = answer_probes(coordinator)
    assert (host, reply.request) == (1, 4)
    assert reply.error.startswith("DEADLINE_EXCEEDED")
    assert not coordinator.may_be_blocked()


def test_a_key_is_waited_for_until_it_is_set():
    coordinator = Coordinator(2)
    assert coordinator.receive(0, GetKey(request=1, key="dir/k", deadline=None)) == []
    out = coordinator.receive(1, StoreCall(request=8, call="set", key="dir/k", value="v"))
    assert out == [(1, Reply(request=8)), (0, Reply(request=1, values=("v",)))]


def test_the_store_answers_as_jax_does():
    coordinator = Coordinator(1)

    def call(name, key="dir/k", value=""):
        (_, reply), *_ = coordinator.receive(
            0, StoreCall(request=1, call=name, key=key, value=value)
        )
        return reply.error or reply.values

    assert call("try_get").startswith("NOT_FOUND")
    assert call("set", value="1") == ()
    assert call("set", value="2").startswith("ALREADY_EXISTS")
    assert call("replace", value="3") == ()
    assert call("dir_get", "dir") == ("dir/k", "3")
    assert call("dir_get", "di") == ()
    assert call("delete", "dir") == ()
    assert call("dir_get", "dir") == ()
    assert [call("increment", "n", "2"), call("increment", "n", "3")] == [("2",), ("5",)]
    assert call("live") == ("0",)
