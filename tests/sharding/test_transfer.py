"""Transfers between two meshes: every element arrives once, from a device that holds it."""

from __future__ import annotations

from itertools import product
from math import lcm, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.errors import LayoutMismatch, TooManyDevices
from shardlab.sharding.layout import layout
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.transfer import (
    Piece,
    check_arrival,
    separate_mesh,
    transfer,
    transfer_pieces,
)

TRAINER = layout((8, 6), "fsdp", "fsdp=4")
SERVER = layout((8, 6), "None,tensor", Mesh(tensor=2, device_ids=(4, 5)))


def test_each_receiver_gets_its_columns_from_every_row_shard():
    moved = transfer(TRAINER, SERVER)
    assert moved.received_bytes == {4: 96, 5: 96}
    assert moved.sent_bytes == {0: 48, 1: 48, 2: 48, 3: 48}
    assert (moved.senders_per_receiver, moved.receivers_per_sender) == ((4, 4), (2, 2))
    assert (moved.total_bytes, moved.largest_piece_bytes, moved.copied_bytes) == (192, 24, {})


def test_a_device_of_both_meshes_copies_what_it_holds():
    moved = transfer(TRAINER, layout((8, 6), "tensor", "tensor=2"))
    # Device 0 holds half of its new shard; device 1 holds nothing of its own.
    assert moved.copied_bytes == {0: 48}
    assert moved.received_bytes == {0: 48, 1: 96}


def test_replicas_of_the_source_share_the_sending():
    source = layout((8,), "", Mesh(data=4))
    moved = transfer(source, layout((8,), "", Mesh(data=4, device_ids=(4, 5, 6, 7))))
    assert moved.sent_bytes == {0: 32, 1: 32, 2: 32, 3: 32}


def test_the_same_layout_on_the_same_devices_sends_nothing():
    assert transfer(TRAINER, TRAINER).total_bytes == 0


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        (lambda pieces: pieces[1:], "do not join|gap"),
        (lambda pieces: (*pieces, pieces[0]), "overlap"),
        (lambda pieces: (Piece(3, 4, pieces[0].block), *pieces[1:]), "does not hold"),
    ],
)
def test_the_check_finds_a_missing_a_double_and_a_misattributed_piece(pieces, reason):
    right = tuple(transfer_pieces(TRAINER, SERVER))
    check_arrival(TRAINER, SERVER, right)
    with pytest.raises(AssertionError, match=reason):
        check_arrival(TRAINER, SERVER, pieces(right))


def test_two_arrays_are_rejected():
    with pytest.raises(LayoutMismatch, match="different dtype"):
        transfer(TRAINER, layout((8, 6), "", "tensor=2", "bf16"))


def test_more_pieces_than_can_be_listed_are_rejected():
    source = layout((4096, 8192), "fsdp", "fsdp=4096")
    with pytest.raises(TooManyDevices, match="too many to check one by one"):
        transfer(source, layout((4096, 8192), "", "data=512"))


@st.composite
def layouts_on_two_meshes(draw):
    rank = draw(st.integers(1, 3))
    specs, meshes = [], []
    for _ in range(2):
        sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=3))
        mesh = {f"m{i}": size for i, size in enumerate(sizes)}
        entries = [()] * rank
        for name in draw(st.permutations(sorted(mesh))):
            dim = draw(st.integers(-1, rank - 1))
            if dim >= 0:
                entries[dim] += (name,)
        specs.append(tuple(entries))
        meshes.append(Mesh(mesh))
    counts = [
        [prod(mesh.shape[n] for n in spec[dim]) for spec, mesh in zip(specs, meshes, strict=True)]
        for dim in range(rank)
    ]
    shape = tuple(lcm(*pair) for pair in counts)
    first_id = draw(st.integers(0, meshes[0].n_devices))  # from fully shared to disjoint
    target = separate_mesh(meshes[1], first_id)
    return layout(shape, specs[0], meshes[0]), layout(shape, specs[1], target)


@settings(max_examples=60, deadline=None)
@given(layouts_on_two_meshes())
def test_replayed_pieces_give_each_device_exactly_its_elements(ends):
    before, after = ends
    arrived = {device: [] for device in after.mesh.devices}
    for piece in transfer_pieces(before, after):
        cells = list(product(*(range(*interval) for interval in piece.block)))
        held = before.index(piece.sender)
        assert all(
            part.start <= at < part.stop
            for cell in cells
            for at, part in zip(cell, held, strict=True)
        )
        arrived[piece.receiver] += cells
    for device, cells in arrived.items():
        expected = product(*(range(part.start, part.stop) for part in after.index(device)))
        assert sorted(cells) == list(expected)
    moved = transfer(before, after)
    for device in after.mesh.devices:
        n_bytes = moved.received_bytes.get(device, 0) + moved.copied_bytes.get(device, 0)
        assert n_bytes == after.bytes_per_device
