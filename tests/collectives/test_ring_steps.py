"""Steps: carried out on lists, each device ends with the right thing for the bytes told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.collectives.ring_steps import chunk_share, ring_steps
from shardlab.collectives.wire import wire_bytes

SIZES = st.integers(2, 9)
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)


def operands(n):
    """Each device's operand in n parts, all numbers different."""
    return [[PRIMES[device] * 100 + part for part in range(n)] for device in range(n)]


def carried_out(op, n, pairs=None):
    """What each device holds after all steps: its parts by number, and a log of what it got."""
    held = [dict(enumerate(parts)) for parts in operands(n)]
    if op == "all_gather":
        held = [{device: operands(n)[device]} for device in range(n)]
    got = [[] for _ in range(n)]
    for step in ring_steps(op, n, pairs):
        # All send at once: what is sent is what was held before the step.
        sent = [
            (send, operands(n)[send.sender] if send.part is None else held[send.sender][send.part])
            for send in step
        ]
        for send, value in sent:
            got[send.receiver].append((send.sender, value))
            if op == "all_to_all" or send.part is None:
                continue  # goes to another place than the operand's
            held[send.receiver][send.part] = (
                held[send.receiver][send.part] + value if send.is_added else value
            )
    return held, got


def sums(n):
    return [sum(parts) for parts in zip(*operands(n), strict=True)]


@given(SIZES)
def test_after_a_psum_every_device_has_every_sum(n):
    held, _ = carried_out("psum", n)
    assert [list(parts.values()) for parts in held] == [sums(n)] * n


@given(SIZES)
def test_after_a_psum_scatter_each_device_has_the_sum_of_its_part(n):
    held, _ = carried_out("psum_scatter", n)
    assert [held[device][device] for device in range(n)] == sums(n)


@given(SIZES)
def test_after_an_all_gather_every_device_has_every_operand(n):
    held, _ = carried_out("all_gather", n)
    assert all([parts[at] for at in range(n)] == operands(n) for parts in held)


@given(SIZES)
def test_after_an_all_to_all_each_device_has_its_part_of_every_other(n):
    _, got = carried_out("all_to_all", n)
    for device in range(n):
        expected = [(other, operands(n)[other][device]) for other in range(n) if other != device]
        assert sorted(got[device]) == expected


@given(SIZES, st.randoms(use_true_random=False))
def test_a_ppermute_sends_by_its_pairs(n, random):
    order = list(range(n))
    random.shuffle(order)
    _, got = carried_out("ppermute", n, list(enumerate(order)))
    assert all(got[to] == [(at, operands(n)[at])] for at, to in enumerate(order))


@pytest.mark.parametrize("op", ["psum", "pmax", "all_gather", "psum_scatter", "all_to_all"])
@given(n=SIZES)
def test_each_device_sends_the_bytes_that_are_told(op, n):
    payload = 16 * n  # divides evenly: no broken bytes
    n_sent = [0] * n
    for step in ring_steps(op, n):
        for send in step:
            n_sent[send.sender] += payload * chunk_share(op, n)
    assert n_sent == [wire_bytes(op, payload, n)] * n


@given(SIZES)
def test_in_a_step_each_device_sends_once_and_gets_once(n):
    for op in ("psum", "all_gather", "all_to_all"):
        for step in ring_steps(op, n):
            assert sorted(send.sender for send in step) == list(range(n))
            assert sorted(send.receiver for send in step) == list(range(n))


def test_a_broadcast_goes_down_the_line():
    assert [str(step[0]) for step in ring_steps("pbroadcast", 3)] == ["0→1 all", "1→2 all"]


def test_a_device_alone_exchanges_nothing():
    assert ring_steps("psum", 1) == ()
