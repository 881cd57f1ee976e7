"""Resharding: the right collectives, the right bytes, and shards that really arrive."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import lcm, prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardlab.errors import LayoutMismatch
from shardlab.sharding import reshard_search
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.reshard import ReshardStep, reshard

MESH = "data=2,model=4"
SIX = "a=2,b=2,c=2,d=2,e=2,f=2"


def steps(shape, before, after, mesh=MESH, dtype="float32"):
    path = reshard(layout(shape, before, mesh, dtype), layout(shape, after, mesh, dtype))
    return [(step.kind, step.mesh_axes, step.sent_bytes) for step in path]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "data", [("slice", ("data",), 0)]),
        # 8x16 f32 is 512 bytes; three quarters of the gathered 512 come from other devices.
        ("None,model", "", [("all_gather", ("model",), 384)]),
        # three quarters of the local 128 bytes go to other devices.
        ("None,model", "model", [("all_to_all", ("model",), 96)]),
        ("(data,model)", "(model,data)", [("collective_permute", ("data", "model"), 64)]),
        ("(data,model)", "data", [("all_gather", ("model",), 64 * 3)]),
        ("data", "data,model", [("slice", ("model",), 0)]),
        ("data,model", "", [("all_gather", ("data",), 64), ("all_gather", ("model",), 384)]),
        ("data,None", "data", []),
        ("", "", []),
    ],
)
def test_each_step_is_a_collective_with_the_bytes_of_a_ring(before, after, expected):
    assert steps((8, 16), before, after) == expected


def test_gathering_two_mesh_axes_of_one_dimension_is_one_step():
    assert steps((8, 16), "(data,model)", "") == [("all_gather", ("data", "model"), 64 * 7)]


def test_swapping_mesh_axes_of_equal_size_permutes_full_shards():
    assert steps((8, 6), "a", "b", "a=2,b=2") == [("collective_permute", ("a", "b"), 96)]


def test_slicing_over_a_sub_axis_first_makes_a_change_of_mesh_axis_cheaper():
    # 'b' is split into 2 x 2: its minor half slices for free, its major half swaps with 'a'.
    slicing, permuting = reshard(layout((8,), "a", "a=2,b=4"), layout((8,), "b", "a=2,b=4"))
    assert (slicing.kind, slicing.mesh_axes) == ("slice", ("b:(2)2",))
    assert (permuting.kind, permuting.mesh_axes) == ("collective_permute", ("a", "b:(1)2"))
    assert (permuting.sent_bytes, permuting.n_senders) == (8, 4)
    assert str(permuting.after.spec) == "P(('b:(1)2', 'b:(2)2'))"
    assert permuting.senders_text() == "4 of 8 devices send"
    assert layout((8,), "a", "a=2,b=4").bytes_per_device == 16  # what a gather would send


def test_a_mesh_axis_is_split_only_in_the_steps_that_need_it():
    # XLA sends 393,216 bytes per device here too; a search over full mesh axes finds 491,520.
    exchanging, permuting = reshard(
        layout((1024, 512), "a,b", "a=4,b=2"), layout((1024, 512), "b,a", "a=4,b=2")
    )
    assert (exchanging.kind, exchanging.mesh_axes) == ("all_to_all", ("a:(2)2",))
    assert (permuting.kind, permuting.mesh_axes) == ("collective_permute", ("a:(1)2", "b"))
    assert exchanging.sent_bytes + permuting.sent_bytes == 393_216


def test_mesh_axes_of_size_one_need_no_step():
    assert steps((8, 6), "one", "None,one", "one=1,two=2") == []


def test_an_all_to_all_is_not_used_if_the_new_dimension_is_not_divisible():
    kinds = [kind for kind, _, _ in steps((4, 6), "(a,b)", "a,b", "a=2,b=2")]
    assert kinds == ["all_to_all"]
    assert [kind for kind, _, _ in steps((4, 3), "a", "", "a=4")] == ["all_gather"]


def test_packed_int4_sends_half_a_byte_for_each_element():
    assert steps((8, 16), "None,model", "", dtype="int4") == [("all_gather", ("model",), 48)]


def test_six_mesh_axes_that_all_move_take_two_collectives():
    before, after = (
        layout((64, 64), "(a,b,c,d,e,f)", SIX),
        layout((64, 64), "None,(f,e,d,c,b,a)", SIX),
    )
    path = reshard(before, after)
    assert [step.kind for step in path] == ["all_to_all", "collective_permute"]
    replay(before, path, after)


def test_without_a_search_what_differs_is_gathered_then_sliced(monkeypatch):
    monkeypatch.setattr(reshard_search, "_MAX_EXPANSIONS", 0)
    before, after = (
        layout((64, 64), "(a,b,c,d,e,f)", SIX),
        layout((64, 64), "None,(f,e,d,c,b,a)", SIX),
    )
    path = reshard(before, after)
    assert [step.kind for step in path] == ["all_gather", "slice"]
    replay(before, path, after)


def test_a_step_prints_its_collective_and_bytes():
    (step,) = reshard(layout((8, 16), "None,model", MESH), layout((8, 16), "model", MESH))
    assert str(step) == (
        "all_to_all over 'model', dimension 1 to 0: each device sends 96 bytes; "
        "P(None, 'model') -> P('model')"
    )
    assert step.to_json()["group_size"] == 4


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (layout((8, 8), "", MESH), "shape"),
        (layout((8, 16), "", "data=8"), "mesh"),
        (layout((8, 16), "", MESH, "bf16"), "dtype"),
    ],
)
def test_resharding_needs_two_layouts_of_one_array(other, field):
    with pytest.raises(LayoutMismatch, match=f"The layouts have different {field}: ") as caught:
        reshard(layout((8, 16), "", MESH), other)
    assert caught.value.fix == f"two layouts of one array on one mesh, with the same {field}."


# --- the proof: replay the steps on index sets and compare what every device holds ----------


def cells(end: Layout, device: int) -> frozenset[tuple[int, ...]]:
    ranges = [range(range_.start, range_.stop) for range_ in end.index(device)]
    return frozenset(product(*ranges))


def group(step: ReshardStep, device: int) -> list[int]:
    """Return the devices that differ from `device` only along the mesh axes of the step."""
    mesh = step.before.mesh
    coordinate = mesh.coordinate(device)
    choices = [
        range(mesh.shape[name]) if name in step.mesh_axes else (position,)
        for name, position in zip(mesh.axis_names, coordinate, strict=True)
    ]
    return [mesh.device_at(member_coordinate) for member_coordinate in product(*choices)]


def replay(before: Layout, steps: tuple[ReshardStep, ...], after: Layout) -> None:
    devices = before.mesh.devices
    contents = {device: cells(before, device) for device in devices}
    for step in steps:
        assert contents == {device: cells(step.before, device) for device in devices}
        received = {device: receive(step, device, contents) for device in devices}
        # On a ring a device receives as much as it sends; all bytes that arrive are new to it.
        new_cells = sum(len(received[device] - contents[device]) for device in devices)
        assert step.total_sent_bytes == new_cells * step.before.dtype.bits // 8
        contents = received
    assert contents == {device: cells(after, device) for device in devices}


def receive(step: ReshardStep, device: int, contents: dict[int, frozenset[tuple[int, ...]]]):
    expected = cells(step.after, device)
    senders = group(step, device)
    if step.kind == "slice":
        assert expected <= contents[device]
        return expected
    everything = frozenset().union(*(contents[sender] for sender in senders))
    if step.kind == "all_gather":
        assert len(everything) == sum(len(contents[sender]) for sender in senders)
        return everything
    if step.kind == "all_to_all":
        share = len(contents[device]) // step.group_size
        assert all(len(expected & contents[sender]) == share for sender in senders)
        return expected & everything
    assert step.kind == "collective_permute"
    # Each shard leaves as many devices as it arrives at, so one permutation is enough.
    assert Counter(contents[member] for member in senders) == Counter(
        cells(step.after, member) for member in senders
    )
    return expected


@st.composite
def two_layouts(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=4))
    mesh = {f"m{i}": size for i, size in enumerate(sizes)}
    rank = draw(st.integers(1, 3))
    specs = []
    for _ in range(2):
        entries: list[tuple[str, ...]] = [() for _ in range(rank)]
        for name in draw(st.permutations(sorted(mesh))):
            dim = draw(st.integers(-1, rank - 1))
            if dim >= 0:
                entries[dim] += (name,)
        specs.append(tuple(entries))
    parts = [[prod(mesh[n] for n in spec[dim]) for spec in specs] for dim in range(rank)]
    shape = tuple(lcm(*counts) * draw(st.sampled_from([1, 1, 2])) for counts in parts)
    return layout(shape, specs[0], mesh), layout(shape, specs[1], mesh)


@settings(max_examples=200, deadline=None)
@given(two_layouts())
def test_after_the_steps_each_device_holds_exactly_its_new_shard(pair):
    before, after = pair
    assume(prod(before.shape) * before.n_devices < 100_000)  # keep index sets small
    path = reshard(before, after)
    replay(before, path, after)
    gathered = before.array_bytes - before.bytes_per_device
    assert sum(step.sent_bytes for step in path) <= gathered
