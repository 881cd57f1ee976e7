"""Ring steps: executed on lists, every device gets the right result and sends the right bytes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.collectives.ring_steps import chunk_fraction, count_chunks, ring_steps
from shardlab.collectives.wire import wire_bytes

SIZES = st.integers(2, 9)
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)


def operands(n):
    """Return each device's operand in n chunks, all numbers different."""
    return [[PRIMES[device] * 100 + chunk for chunk in range(n)] for device in range(n)]


def execute_steps(op, n, pairs=None):
    """Return the chunks of each device after all steps by number, and a log of what it received."""
    contents = [dict(enumerate(chunks)) for chunks in operands(n)]
    if op == "all_gather":
        contents = [{device: operands(n)[device]} for device in range(n)]
    received = [[] for _ in range(n)]
    for step in ring_steps(op, n, pairs):
        # All devices send at once: what they held before the step.
        sent = [
            (
                send,
                operands(n)[send.sender]
                if send.chunk is None
                else contents[send.sender][send.chunk],
            )
            for send in step
        ]
        for send, value in sent:
            received[send.receiver].append((send.sender, value))
            if op == "all_to_all" or send.chunk is None:
                continue  # is stored in the output, not in the operand
            contents[send.receiver][send.chunk] = (
                contents[send.receiver][send.chunk] + value if send.is_added else value
            )
    return contents, received


def sums(n):
    return [sum(chunks) for chunks in zip(*operands(n), strict=True)]


@given(SIZES)
def test_after_a_psum_every_device_has_every_sum(n):
    contents, _ = execute_steps("psum", n)
    assert [list(chunks.values()) for chunks in contents] == [sums(n)] * n


@given(SIZES)
def test_after_a_psum_scatter_each_device_has_the_sum_of_its_chunk(n):
    contents, _ = execute_steps("psum_scatter", n)
    assert [contents[device][device] for device in range(n)] == sums(n)


@given(SIZES)
def test_after_an_all_gather_every_device_has_every_operand(n):
    contents, _ = execute_steps("all_gather", n)
    assert all([chunks[device] for device in range(n)] == operands(n) for chunks in contents)


@given(SIZES)
def test_after_an_all_to_all_each_device_has_its_chunk_of_every_other(n):
    _, received = execute_steps("all_to_all", n)
    for device in range(n):
        expected = [
            (sender, operands(n)[sender][device]) for sender in range(n) if sender != device
        ]
        assert sorted(received[device]) == expected


@given(SIZES, st.randoms(use_true_random=False))
def test_a_ppermute_sends_by_its_pairs(n, random):
    order = list(range(n))
    random.shuffle(order)
    _, received = execute_steps("ppermute", n, list(enumerate(order)))
    assert all(
        received[receiver] == [(sender, operands(n)[sender])]
        for sender, receiver in enumerate(order)
    )


@pytest.mark.parametrize("op", ["psum", "pmax", "all_gather", "psum_scatter", "all_to_all"])
@given(n=SIZES)
def test_each_device_sends_the_bytes_of_the_formula(op, n):
    payload = 16 * n  # divisible: no fractions of a byte
    n_sent = [0] * n
    for step in ring_steps(op, n):
        for send in step:
            n_sent[send.sender] += payload * chunk_fraction(op, n)
    assert n_sent == [wire_bytes(op, payload, n)] * n


@given(n=SIZES, n_elements=st.integers(1, 12))
def test_an_all_reduce_of_few_elements_never_sends_less_than_one(n, n_elements):
    n_chunks = count_chunks("all_reduce", n, n_elements)
    assert n_chunks == min(n, n_elements)
    steps = ring_steps("psum", n, n_elements=n_elements)
    sums = [[Counter({device: 1}) for _ in range(n_chunks)] for device in range(n)]
    for step in steps:
        sent = [(send, sums[send.sender][send.chunk]) for send in step]
        for send, chunk in sent:
            own = sums[send.receiver][send.chunk]
            sums[send.receiver][send.chunk] = own + chunk if send.is_added else chunk
    assert all(chunk == Counter(range(n)) for chunks in sums for chunk in chunks)
    # The formula is the mean over the devices.
    n_sends = sum(map(len, steps))
    assert n_sends == 2 * (n - 1) * n_chunks


@given(SIZES)
def test_in_a_step_each_device_sends_once_and_receives_once(n):
    for op in ("psum", "all_gather", "all_to_all"):
        for step in ring_steps(op, n):
            assert sorted(send.sender for send in step) == list(range(n))
            assert sorted(send.receiver for send in step) == list(range(n))


def test_a_broadcast_passes_from_device_to_device():
    assert [str(step[0]) for step in ring_steps("pbroadcast", 3)] == ["0→1 all", "1→2 all"]


def test_a_single_device_sends_nothing():
    assert ring_steps("psum", 1) == ()
