"""Layout: shard shapes, slices, replicas and bytes, and its refusals in words."""

from __future__ import annotations

import json
import pickle
import timeit

import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab.errors import (
    DuplicateSpecAxis,
    IndivisibleAxis,
    InvalidSize,
    InvalidType,
    LabError,
    SpecTooLong,
    TooManyDevices,
    UnknownMeshAxis,
    UnreducedNotAllowed,
)
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.mesh import parse_mesh
from shardlab.sharding.spec import parse_spec

MESH = "data=2,model=4"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (P(), (16, 12)),
        (P("data", "model"), (8, 3)),
        (P("model", "data"), (4, 6)),
        (P(("data", "model")), (2, 12)),
        (P(None, "model"), (16, 3)),
    ],
)
def test_shard_shape_divides_each_array_axis(spec, expected):
    assert layout((16, 12), spec, MESH).shard_shape == expected
    # JAX decides what the right answer is; it answers shapes for a mesh that is not there.
    jax_mesh = AbstractMesh((2, 4), ("data", "model"))
    assert NamedSharding(jax_mesh, spec).shard_shape((16, 12)) == expected


def test_the_figures_of_a_layout():
    one = layout((16, 12), "None,model", MESH, "bf16")
    assert (one.n_devices, one.n_shards, one.n_replicas) == (8, 4, 2)
    assert (one.bytes_per_device, one.array_bytes, one.total_bytes) == (96, 384, 768)
    assert one.shard_counts == (1, 4)


def test_the_first_name_of_a_tuple_is_the_major_one():
    rows = [layout((8,), "(data,model)", MESH).index(d)[0].start for d in range(8)]
    assert rows == [0, 1, 2, 3, 4, 5, 6, 7]
    rows = [layout((8,), "(model,data)", MESH).index(d)[0].start for d in range(8)]
    assert rows == [0, 2, 4, 6, 1, 3, 5, 7]


def test_a_slice_is_found_by_id_and_by_coordinate():
    one = layout((16, 12), "data,model", MESH)
    assert one.index(6) == one.index((1, 2)) == (slice(8, 16), slice(6, 9))
    assert one.part(6) == (1, 2)
    assert one.indices()[6] == one.index(6)


def test_devices_that_share_a_slice_are_listed():
    one = layout((16, 12), "None,data", MESH)
    assert one.groups() == {(0, 0): (0, 1, 2, 3), (0, 1): (4, 5, 6, 7)}
    assert one.replicas_of(5) == one.replicas_of((1, 1)) == (4, 5, 6, 7)


def test_a_mesh_in_another_device_order_moves_the_slices_with_it():
    mesh = parse_mesh({"x": 4})
    turned = type(mesh)({"x": 4}, device_ids=(3, 2, 1, 0))
    assert layout((8,), "x", mesh).index(3) == layout((8,), "x", turned).index(0)
    assert layout((8,), "x", turned).groups() == {(0,): (3,), (1,): (2,), (2,): (1,), (3,): (0,)}


@pytest.mark.parametrize("shape", [(0, 8), (0, 0)])
def test_an_empty_array_axis_is_cut_into_empty_pieces_as_in_jax(shape):
    one = layout(shape, "data,model", MESH)
    jax_mesh = AbstractMesh((2, 4), ("data", "model"))
    assert one.shard_shape == NamedSharding(jax_mesh, P("data", "model")).shard_shape(shape)
    assert one.bytes_per_device == 0


def test_a_scalar_is_held_whole_by_every_device():
    one = layout((), "", MESH)
    assert (one.shard_shape, one.index(7), one.n_replicas, one.total_bytes) == ((), (), 8, 32)


def test_huge_sizes_are_exact():
    one = layout((2**70, 8), "data,model", MESH)
    assert one.shard_shape == (2**69, 2)
    assert one.bytes_per_device == 2**72
    assert one.index(7) == (slice(2**69, 2**70), slice(6, 8))
    with pytest.raises(InvalidSize, match="array axis 0"):
        layout((2**200,), "", MESH)


def test_a_huge_mesh_answers_for_one_device_and_refuses_to_list():
    one = layout((2**30,), "a", "a=1048576,b=1024")
    assert one.index(2**30 - 1) == (slice(2**30 - 1024, 2**30),)
    for listing in (one.groups, one.indices):
        with pytest.raises(TooManyDevices, match="1,073,741,824 devices"):
            listing()


def test_a_layout_survives_json_and_pickle():
    one = layout((16, 12), "(data,model),None", MESH, "int4")
    assert Layout.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.to_json() == {
        "shape": [16, 12],
        "dtype": "int4",
        "spec": [["data", "model"], None],
        "mesh": {"axes": {"data": 2, "model": 4}},
        "shard_shape": [2, 12],
        "bytes_per_device": 12,
        "array_bytes": 96,
        "total_bytes": 96,
        "n_devices": 8,
        "n_shards": 8,
        "n_replicas": 1,
    }


def refusal(kind: type[LabError], *args) -> LabError:
    with pytest.raises(kind) as caught:
        layout(*args)
    return caught.value


def test_an_unknown_mesh_axis_comes_with_the_nearest_name():
    error = refusal(UnknownMeshAxis, (6, 8), "None,modle", MESH)
    assert str(error) == (
        "[layout.unknown_axis] The mesh has no axis named 'modle'; it has 'data', 'model'.\n"
        "  where: spec P(None, 'modle'), mesh data=2,model=4\n"
        "  try:   'model', the nearest name."
    )
    assert refusal(UnknownMeshAxis, (6,), "Q", MESH).fix == (
        "one of the mesh's axes: 'data', 'model'."
    )
    assert refusal(UnknownMeshAxis, (6,), "MODEL", MESH).fix == "'model', the nearest name."
    assert "it has none." in refusal(UnknownMeshAxis, (6,), "x", {}).what


def test_a_mesh_axis_used_twice_is_named_with_both_places():
    error = refusal(DuplicateSpecAxis, (8, 8), "model,model", MESH)
    assert error.what == (
        "Mesh axis 'model' is used on array axes 0 and 1, and each device has one place along it."
    )
    assert error.where == "spec P('model', 'model'), mesh data=2,model=4"
    assert error.fix == ("keep 'model' once and write None in the other place, or cut with 'data'.")
    twice = refusal(DuplicateSpecAxis, (8, 8), "(model,model)", MESH)
    assert "is used twice on array axis 0" in twice.what


def test_a_spec_longer_than_the_rank_is_refused():
    error = refusal(SpecTooLong, (8,), "data,model", MESH)
    assert error.what == "The spec has 2 entries and the array has one axis."
    assert error.where == "shape (8,), spec P('data', 'model'), mesh data=2,model=4"
    assert error.fix == "at most one entry for each array axis, such as P('data')."
    # NamedSharding.shard_shape lets trailing Nones pass, device_put refuses them; so do we.
    assert refusal(SpecTooLong, (), "None", MESH).what == (
        "The spec has 1 entry and the array has no axes."
    )


def test_an_indivisible_axis_comes_with_sizes_names_and_what_would_fit():
    error = refusal(IndivisibleAxis, (6, 10), "None,model", MESH)
    assert str(error) == (
        "[layout.indivisible] Array axis 1 has size 10, which 4 shards cannot split evenly "
        "(mesh axis 'model' of size 4).\n"
        "  where: shape (6, 10), spec P(None, 'model'), mesh data=2,model=4\n"
        "  try:   size 8 or 12 on array axis 1, or leave it whole (None)."
    )
    both = refusal(IndivisibleAxis, (12, 16), "(data,model)", MESH)
    assert "(mesh axes 'data' of size 2 × 'model' of size 4)" in both.what
    assert both.fix == (
        "size 8 or 16 on array axis 0, cut array axis 1 instead, or leave it whole (None)."
    )
    assert refusal(IndivisibleAxis, (3,), "model", MESH).fix.startswith("size 4 on array axis 0")


def test_unreduced_axes_follow_the_rules_of_jax():
    explicit = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    spec = P("data", unreduced={"model"})
    assert layout((8,), spec, explicit).shard_shape == (4,)
    error = refusal(UnreducedNotAllowed, (8,), spec, MESH)
    assert error.what == "Mesh axis 'model' is marked unreduced and is not of type Explicit."
    overlap = parse_spec("data")
    overlap = type(overlap)("data", unreduced={"data"})
    error = refusal(UnreducedNotAllowed, (8,), overlap, explicit)
    assert error.what == "Mesh axis 'data' is marked unreduced and also cuts the array."


def test_a_device_is_an_id_or_a_coordinate():
    with pytest.raises(InvalidType, match=r"1\.5 is not a device"):
        layout((8,), "data", MESH).index(1.5)


def test_layouts_are_made_at_the_order_of_a_hundred_thousand_a_second():
    mesh, spec = parse_mesh(MESH), parse_spec("None,model")
    seconds = min(timeit.repeat(lambda: layout((8, 16), spec, mesh), number=2000, repeat=5))
    assert 2000 / seconds > 30_000  # about 250,000 on an idle core; room for a busy machine


def test_layout_takes_anything_with_a_shape_and_a_dtype():
    class Struct:
        shape, dtype = (8, 6), "bfloat16"

    assert layout(Struct(), "data", "data=2").bytes_per_device == 4 * 6 * 2
