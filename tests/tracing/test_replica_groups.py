"""Groups of devices: four spellings, one meaning; and the mesh axes they run along."""

from __future__ import annotations

import pytest

from shardlab.tracing.hlo.replica_groups import (
    find_replica_groups,
    match_groups,
    match_pairs,
    parse_groups,
    parse_pairs,
)

# Of data=2, model=4, devices counted along 'model' first.
ALONG_DATA = ((0, 4), (1, 5), (2, 6), (3, 7))
ALONG_MODEL = ((0, 1, 2, 3), (4, 5, 6, 7))
MESH = (("data", 2), ("model", 4))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,4},{1,5},{2,6},{3,7}}", ALONG_DATA),
        ("[4,2]<=[2,4]T(1,0)", ALONG_DATA),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", ALONG_DATA),
        ("mesh['a'=2,'b'=1,'c'=4] {'a'}", ALONG_DATA),
        ("mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'c'}", ALONG_DATA),
        ("{{0,1,2,3},{4,5,6,7}}", ALONG_MODEL),
        ("[2,4]<=[8]", ALONG_MODEL),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ALONG_MODEL),
        ("mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}", ALONG_MODEL),
        ("{}", (tuple(range(8)),)),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("mesh['a'=2,'b'=4] {'a','b'}", (tuple(range(8)),)),
        # A part of an axis: 8 = 2 x 4, the second part; and the first.
        ("mesh['model'=8] {'model':(2)4}", ALONG_MODEL),
        ("mesh['model'=8] {'model':(1)2}", ALONG_DATA),
        # Both parts of one, and the devices listed one by one.
        ("mesh['a'=4], device_ids=(0,2,1,3) {'a':(1)2}", ((0, 1), (2, 3))),
    ],
)
def test_every_spelling_gives_its_devices(text, groups):
    around = f"channel_id=3, replica_groups={text}, use_global_device_ids=true, to_apply=%add"
    assert find_replica_groups(around) == text
    assert parse_groups(text, 8) == groups


def test_pairs_are_read_and_their_axis_is_found():
    pairs = parse_pairs("channel_id=1, source_target_pairs={{0,1},{1,0},{2,3},{3,2}}, metadata={}")
    assert pairs == ((0, 1), (1, 0), (2, 3), (3, 2))
    assert match_pairs(pairs, (("data", 2), ("model", 2))).names == ("model",)
    assert match_pairs(((0, 0), (1, 4), (4, 1)), MESH).names == ("data", "model")


@pytest.mark.parametrize(
    ("groups", "names", "size", "deviation"),
    [
        (ALONG_DATA, ("data",), 2, ""),
        (ALONG_MODEL, ("model",), 4, ""),
        ((tuple(range(8)),), ("data", "model"), 8, ""),
        (((0, 2), (1, 3), (4, 6), (5, 7)), ("model",), 2, "2 of the 4 devices along 'model'"),
        (
            ((0, 5), (1, 4), (2, 7), (3, 6)),
            ("data", "model"),
            2,
            "groups of 2 devices that are not a product of 'data' x 'model'",
        ),
        (tuple((i,) for i in range(8)), (), 1, ""),
    ],
)
def test_groups_span_mesh_axes_or_say_how_they_deviate(groups, names, size, deviation):
    group_axes = match_groups(groups, MESH)
    assert (group_axes.names, group_axes.size, group_axes.deviation) == (names, size, deviation)
