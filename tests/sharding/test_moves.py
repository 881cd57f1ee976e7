"""Moves: the right collectives, the right bytes, and pieces that really arrive."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import lcm, prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardlab.errors import LayoutMismatch
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.reshard import ReshardStep, reshard

MESH = "data=2,model=4"


def steps(shape, before, after, mesh=MESH, dtype="float32"):
    found = reshard(layout(shape, before, mesh, dtype), layout(shape, after, mesh, dtype))
    return [(move.kind, move.mesh_axes, move.sent_bytes) for move in found]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "data", [("slice", ("data",), 0)]),
        # 8x16 f32 is 512 bytes; of the gathered 512, three quarters come from elsewhere.
        ("None,model", "", [("all_gather", ("model",), 384)]),
        # of the local 128 bytes three quarters go elsewhere.
        ("None,model", "model", [("all_to_all", ("model",), 96)]),
        ("(data,model)", "(model,data)", [("collective_permute", ("data", "model"), 64)]),
        ("(data,model)", "data", [("all_gather", ("model",), 64 * 3)]),
        ("data", "data,model", [("slice", ("model",), 0)]),
        ("data,model", "", [("all_gather", ("data",), 64), ("all_gather", ("model",), 384)]),
        ("data,None", "data", []),
        ("", "", []),
    ],
)
def test_each_step_is_the_collective_and_the_bytes_that_a_ring_sends(before, after, expected):
    assert steps((8, 16), before, after) == expected


def test_gathering_two_mesh_axes_of_one_array_axis_is_one_step():
    assert steps((8, 16), "(data,model)", "") == [("all_gather", ("data", "model"), 64 * 7)]


def test_swapping_mesh_axes_of_equal_size_permutes_whole_pieces():
    assert steps((8, 6), "a", "b", "a=2,b=2") == [("collective_permute", ("a", "b"), 96)]


def test_slicing_first_makes_a_change_of_mesh_axis_cheaper():
    # Through (a,b) -> (b,a) each device sends half of what gathering 'a' first would cost.
    found = steps((8,), "a", "b", "a=2,b=4")
    assert [kind for kind, _, _ in found] == ["slice", "collective_permute", "all_gather"]
    assert sum(sent for _, _, sent in found) == 8
    assert layout((8,), "a", "a=2,b=4").bytes_per_device == 16  # what the gather would send


def test_mesh_axes_of_size_one_need_no_move():
    assert steps((8, 6), "one", "None,one", "one=1,two=2") == []


def test_an_all_to_all_is_not_used_where_the_new_array_axis_does_not_divide():
    kinds = [kind for kind, _, _ in steps((4, 6), "(a,b)", "a,b", "a=2,b=2")]
    assert kinds == ["all_to_all"]
    assert [kind for kind, _, _ in steps((4, 3), "a", "", "a=4")] == ["all_gather"]


def test_packed_int4_sends_half_a_byte_for_each_element():
    assert steps((8, 16), "None,model", "", dtype="int4") == [("all_gather", ("model",), 48)]


def test_many_changing_mesh_axes_take_the_plain_way_and_do_not_hang():
    mesh = "a=2,b=2,c=2,d=2,e=2,f=2"
    before = layout((64, 64), "(a,b,c,d,e,f)", mesh)
    after = layout((64, 64), "None,(f,e,d,c,b,a)", mesh)
    found = reshard(before, after)
    assert [move.kind for move in found] == ["all_gather", "slice"]
    replay(before, found, after)


def test_a_move_prints_what_it_does():
    (move,) = reshard(layout((8, 16), "None,model", MESH), layout((8, 16), "model", MESH))
    assert str(move) == (
        "all_to_all over 'model', array axis 1 to 0: each device sends 96 bytes; "
        "P(None, 'model') -> P('model')"
    )
    assert move.to_json()["group_size"] == 4


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (layout((8, 8), "", MESH), "shape"),
        (layout((8, 16), "", "data=8"), "mesh"),
        (layout((8, 16), "", MESH, "bf16"), "dtype"),
    ],
)
def test_moves_are_between_layouts_of_one_array(other, word):
    with pytest.raises(LayoutMismatch, match=f"The layouts have different {word}: ") as caught:
        reshard(layout((8, 16), "", MESH), other)
    assert caught.value.fix == f"two layouts of one array on one mesh, with the same {word}."


# --- the proof: move index sets about and see what every device holds -----------------------


def cells(one: Layout, device: int) -> frozenset[tuple[int, ...]]:
    ranges = [range(s.start, s.stop) for s in one.index(device)]
    return frozenset(product(*ranges))


def group(move: ReshardStep, device: int) -> list[int]:
    """The devices that differ from `device` only along the move's mesh axes."""
    mesh = move.before.mesh
    place = mesh.coordinate(device)
    choices = [
        range(mesh.shape[name]) if name in move.mesh_axes else (at,)
        for name, at in zip(mesh.axis_names, place, strict=True)
    ]
    return [mesh.device_at(each) for each in product(*choices)]


def replay(before: Layout, found: tuple[ReshardStep, ...], after: Layout) -> None:
    devices = before.mesh.devices
    held = {device: cells(before, device) for device in devices}
    for move in found:
        assert held == {device: cells(move.before, device) for device in devices}
        held = {device: arrive(move, device, held) for device in devices}
    assert held == {device: cells(after, device) for device in devices}


def arrive(move: ReshardStep, device: int, held: dict[int, frozenset[tuple[int, ...]]]):
    wanted = cells(move.after, device)
    senders = group(move, device)
    if move.kind == "slice":
        assert wanted <= held[device]
        return wanted
    everything = frozenset().union(*(held[sender] for sender in senders))
    if move.kind == "all_gather":
        assert len(everything) == sum(len(held[sender]) for sender in senders)
        return everything
    if move.kind == "all_to_all":
        share = len(held[device]) // move.group_size
        assert all(len(wanted & held[sender]) == share for sender in senders)
        return wanted & everything
    assert move.kind == "collective_permute"
    # each piece leaves as many devices as it arrives at, so that one permutation does it
    assert Counter(held[each] for each in senders) == Counter(
        cells(move.after, each) for each in senders
    )
    return wanted


@st.composite
def two_layouts(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=4))
    mesh = {f"m{i}": size for i, size in enumerate(sizes)}
    rank = draw(st.integers(1, 3))
    specs = []
    for _ in range(2):
        entries: list[tuple[str, ...]] = [() for _ in range(rank)]
        for name in draw(st.permutations(sorted(mesh))):
            at = draw(st.integers(-1, rank - 1))
            if at >= 0:
                entries[at] += (name,)
        specs.append(tuple(entries))
    parts = [[prod(mesh[n] for n in spec[at]) for spec in specs] for at in range(rank)]
    shape = tuple(lcm(*both) * draw(st.sampled_from([1, 1, 2])) for both in parts)
    return layout(shape, specs[0], mesh), layout(shape, specs[1], mesh)


@settings(max_examples=200, deadline=None)
@given(two_layouts())
def test_after_the_moves_each_device_holds_exactly_its_new_slice(pair):
    before, after = pair
    assume(prod(before.shape) * before.n_devices < 100_000)  # index sets that stay quick
    found = reshard(before, after)
    replay(before, found, after)
    gathered = before.array_bytes - before.bytes_per_device
    assert sum(move.sent_bytes for move in found) <= gathered
