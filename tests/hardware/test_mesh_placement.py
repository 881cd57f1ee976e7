"""Mesh placements: which links a collective has, and which groups share them."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.peak_hardware import peak_hardware
from shardlab.hardware.mesh_placement import even_sides, mesh_placements, n_slices
from shardlab.hardware.step_timer import StepCollective, StepTimer

V5P, V5E, H100, TPU7X = map(peak_hardware, ("tpu-v5p", "tpu-v5e", "h100", "tpu-7x"))


def seconds(op, axes, mesh, chip, payload=2**26):
    timer = StepTimer(hardware=chip)
    collective = StepCollective(what="", axes=axes, op=op, payload_bytes=payload, count=1)
    return timer.fastest_placement(mesh, [collective])[1][0].seconds


def descriptions(mesh, chip=V5P):
    return [placement.description for placement in mesh_placements(mesh, chip)]


def test_one_mesh_axis_uses_all_torus_axes():
    assert descriptions((("fsdp", 512),)) == ["fsdp 8x8x8"]


def test_two_mesh_axes_divide_three_torus_axes_in_both_ways():
    assert descriptions((("fsdp", 16), ("tensor", 8))) == [
        "fsdp 16, tensor 2x4",
        "fsdp 4x4, tensor 8",
    ]


def test_no_side_is_longer_than_the_hardware_has():
    assert descriptions((("fsdp", 64), ("tensor", 8))) == ["fsdp 8x8, tensor 8"]
    unknown = replace(V5P, longest_side=None)
    assert len(descriptions((("fsdp", 64), ("tensor", 8)), unknown)) == 2


def test_next_to_a_folded_axis_the_others_have_no_ring():
    # 4,096 chips of v5p are 16x16x16: there is no 8x16x32
    folded, even = (("fsdp", 512), ("tensor", 8)), (("fsdp", 256), ("tensor", 16))
    assert descriptions(folded) == ["fsdp 16x32 (folded), tensor 8 (part of a side)"]
    assert descriptions(even) == ["fsdp 16x16, tensor 16"]
    ring, line = (
        seconds("all_gather", ("tensor",), mesh, V5P)
        for mesh in ((("fsdp", 64), ("tensor", 8)), folded)
    )
    assert line == pytest.approx(7 / 8 * 2 * ring, rel=0.01)


def test_four_mesh_axes_on_three_torus_axes_share_one():
    mesh = (("data", 2), ("fsdp", 8), ("expert", 4), ("tensor", 8))
    assert all("on one torus axis" in description for description in descriptions(mesh))
    assert len(descriptions(mesh, replace(V5P, longest_side=None))) == 6  # pairs of four


def test_beyond_a_pod_the_outermost_axes_use_dcn():
    assert descriptions((("data", 4), ("fsdp", 1024)), V5E) == [
        "fsdp 16x16, data 4 over DCN, fsdp 4 over DCN"
    ]
    assert n_slices(4096, V5E) == 16
    assert n_slices(8961, V5P) == 3  # 2 does not divide it
    assert n_slices(2**31 - 1, V5P) == 2**31 - 1


def test_an_axis_over_three_rings_has_three_times_the_links_of_one():
    single_axis = replace(V5P, torus_axes=1, longest_side=None)
    gather = ("all_gather", ("fsdp",), (("fsdp", 64),))
    assert seconds(*gather, single_axis) == pytest.approx(3 * seconds(*gather, V5P))


def test_an_outer_axis_on_a_shared_torus_axis_shares_its_links():
    single_axis = replace(V5P, torus_axes=1, longest_side=None)
    mesh = (("outer", 4), ("inner", 4))
    inner = seconds("all_gather", ("inner",), mesh, single_axis)
    outer = seconds("all_gather", ("outer",), mesh, single_axis)
    assert outer == pytest.approx(4 * inner)
    # a part of an axis is a line: 3/4 V over one link
    assert inner == pytest.approx(3 * 2**26 / 9e10)


def test_a_collective_over_two_mesh_axes_uses_the_links_of_both():
    mesh = (("data", 8), ("fsdp", 8), ("tensor", 8))
    combined = seconds("psum", ("data", "fsdp"), mesh, V5P)
    assert combined == pytest.approx(seconds("psum", ("data",), mesh, V5P) / 2)


def test_in_a_switched_network_mesh_order_decides_what_shares_a_node():
    mesh = (("data", 4), ("tensor", 8))
    assert descriptions(mesh, H100) == ["data 4 between nodes, tensor 8 in a node"]
    assert descriptions((("fsdp", 16), ("tensor", 2)), H100) == [
        "fsdp 16 across nodes, 4 in each, tensor 2 in a node"
    ]
    # 7/8 of V over NVLink
    assert seconds("all_gather", ("tensor",), mesh, H100) == pytest.approx(7 * 2**26 / 4.5e11)
    # eight groups share the egress of a node: 3/4 of 8 V
    assert seconds("psum_scatter", ("data",), mesh, H100) == pytest.approx(8 * 0.75 * 2**26 / 4e11)


def test_adjacent_axes_are_placed_like_one_axis():
    separate = (("data", 4), ("fsdp", 16), ("tensor", 8))
    merged = (("batch", 64), ("tensor", 8))
    assert seconds("psum", ("data", "fsdp"), separate, H100) == seconds(
        "psum", ("batch",), merged, H100
    )


@given(st.integers(1, 10_000), st.integers(1, 3))
def test_sides_multiply_to_the_size(size, n_sides):
    sides = even_sides(size, n_sides)
    assert (len(sides), prod(sides)) == (n_sides, size)


@given(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1, max_size=5))
def test_every_placement_has_every_device_once(sizes):
    mesh = tuple((f"a{index}", size) for index, size in enumerate(sizes))
    placements = mesh_placements(mesh, V5E)
    assert placements
    for placement in placements:
        inside = prod(size for block in placement.blocks for _, size in block.axes)
        assert inside * prod(placement.slices.values()) == prod(sizes)
        assert inside <= V5E.pod


# --- two devices of a chip (TPU7x) ---


def test_the_devices_of_a_chip_are_innermost_and_the_torus_has_chips():
    assert descriptions((("fsdp", 128),), TPU7X) == ["fsdp 4x4x4, fsdp 2 in a chip"]
    assert descriptions((("fsdp", 64), ("tensor", 2)), TPU7X) == ["fsdp 4x4x4, tensor 2 in a chip"]


def test_devices_of_a_chip_send_over_the_link_between_them():
    mesh = (("fsdp", 64), ("tensor", 2))
    assert seconds("all_gather", ("tensor",), mesh, TPU7X) == pytest.approx(2**26 / 5.4e11)


def test_a_group_with_both_devices_of_each_chip_receives_each_byte_once():
    # 64 chips with six links of 90 GB/s: as 64 devices of v5p gather the same array
    gathered = 2**33
    both = seconds("all_gather", ("fsdp",), (("fsdp", 128),), TPU7X, gathered // 128)
    assert both == seconds("all_gather", ("fsdp",), (("fsdp", 64),), V5P, gathered // 64)
    reduced = seconds("psum", ("fsdp",), (("fsdp", 128),), TPU7X, gathered)
    assert reduced == seconds("psum", ("fsdp",), (("fsdp", 64),), V5P, gathered)


def test_the_groups_of_two_devices_of_a_chip_share_its_links():
    """Measured all-gathers of four TPU7x chips in a 2x2x1 slice, one group per TensorCore.

    AI-Hypercomputer/accelerator-microbenchmarks 63b035b, Ironwood/guides/collectives/all_gather.md:
    f32[16384, 8, 128] per device, 178.8 GB/s for 0.4027 GB into both devices of a chip.
    """
    measured = 0.402653184 / 178.7714158
    estimated = seconds("all_gather", ("x",), (("x", 4), ("core", 2)), TPU7X, 16384 * 8 * 128 * 4)
    assert estimated == pytest.approx(measured, rel=0.01)


# --- slices without rings ---


SLICES = [
    *((name, shape) for name in ("tpu-v5e", "tpu-v6e") for shape in [(2, 2), (2, 4), (4, 4)]),
    *(
        (name, shape)
        for name in ("tpu-v4", "tpu-v5p", "tpu-7x")
        for shape in [(2, 2), (2, 2, 2), (4, 4, 4)]
    ),
]


@pytest.mark.parametrize(("name", "shape"), SLICES)
@pytest.mark.parametrize("op", ["all_gather", "psum_scatter", "psum"])
@pytest.mark.parametrize("is_one_axis", [True, False])
def test_no_gather_beats_the_links_into_a_corner_chip(name, shape, op, is_one_axis):
    chip = peak_hardware(name)
    n_in_chip = chip.devices_per_chip
    mesh = tuple(zip("xyz", shape, strict=False))
    if is_one_axis:
        mesh = (("x", prod(shape)),)
    if n_in_chip > 1:
        mesh = (*mesh, ("core", n_in_chip))
    n_chips, payload = prod(shape), 2**28
    time = seconds(op, tuple(name for name, _ in mesh), mesh, chip, payload)
    gathered = payload * n_chips * n_in_chip if op == "all_gather" else payload
    received = gathered * (n_chips - 1) / n_chips * (2 if op == "psum" else 1)
    n_links = sum(2 if chip.makes_ring(side, n_chips * n_in_chip) else 1 for side in shape)
    link = chip.figure("link_bandwidth").value * n_in_chip  # of the chip
    assert time >= received / (n_links * link) * (1 - 1e-9)
    assert time <= 1.35 * received / (n_links * link)  # the book's V for rings, without (X-1)/X
