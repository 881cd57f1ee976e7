"""Layout: shard shapes, indices, replicas and bytes, and the texts of its errors."""

from __future__ import annotations

import json
import pickle

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
def test_shard_shape_divides_each_dimension(spec, expected):
    assert layout((16, 12), spec, MESH).shard_shape == expected
    # JAX is the reference; it computes shard shapes for an abstract mesh.
    jax_mesh = AbstractMesh((2, 4), ("data", "model"))
    assert NamedSharding(jax_mesh, spec).shard_shape((16, 12)) == expected


def test_the_figures_of_a_layout():
    array = layout((16, 12), "None,model", MESH, "bf16")
    assert (array.n_devices, array.n_shards, array.n_replicas) == (8, 4, 2)
    assert (array.bytes_per_device, array.array_bytes, array.total_bytes) == (96, 384, 768)
    assert array.shard_counts == (1, 4)


def test_the_first_name_of_a_tuple_is_the_major_one():
    rows = [layout((8,), "(data,model)", MESH).index(d)[0].start for d in range(8)]
    assert rows == [0, 1, 2, 3, 4, 5, 6, 7]
    rows = [layout((8,), "(model,data)", MESH).index(d)[0].start for d in range(8)]
    assert rows == [0, 2, 4, 6, 1, 3, 5, 7]


def test_a_device_is_addressed_by_id_or_coordinate():
    array = layout((16, 12), "data,model", MESH)
    assert array.index(6) == array.index((1, 2)) == (slice(8, 16), slice(6, 9))
    assert array.shard_coordinates(6) == (1, 2)
    assert array.indices()[6] == array.index(6)


def test_devices_that_hold_the_same_shard_are_listed():
    array = layout((16, 12), "None,data", MESH)
    assert array.groups() == {(0, 0): (0, 1, 2, 3), (0, 1): (4, 5, 6, 7)}
    assert array.replicas_of(5) == array.replicas_of((1, 1)) == (4, 5, 6, 7)


def test_a_mesh_in_another_device_order_moves_the_shards_with_it():
    mesh = parse_mesh({"x": 4})
    reversed_mesh = type(mesh)({"x": 4}, device_ids=(3, 2, 1, 0))
    assert layout((8,), "x", mesh).index(3) == layout((8,), "x", reversed_mesh).index(0)
    assert layout((8,), "x", reversed_mesh).groups() == {
        (0,): (3,),
        (1,): (2,),
        (2,): (1,),
        (3,): (0,),
    }


@pytest.mark.parametrize("shape", [(0, 8), (0, 0)])
def test_an_empty_dimension_has_empty_shards_as_in_jax(shape):
    array = layout(shape, "data,model", MESH)
    jax_mesh = AbstractMesh((2, 4), ("data", "model"))
    assert array.shard_shape == NamedSharding(jax_mesh, P("data", "model")).shard_shape(shape)
    assert array.bytes_per_device == 0


def test_a_scalar_is_replicated_on_every_device():
    array = layout((), "", MESH)
    assert (array.shard_shape, array.index(7), array.n_replicas, array.total_bytes) == (
        (),
        (),
        8,
        32,
    )


def test_huge_sizes_are_exact():
    array = layout((2**70, 8), "data,model", MESH)
    assert array.shard_shape == (2**69, 2)
    assert array.bytes_per_device == 2**72
    assert array.index(7) == (slice(2**69, 2**70), slice(6, 8))
    with pytest.raises(InvalidSize, match="dimension 0"):
        layout((2**200,), "", MESH)


def test_a_huge_mesh_supports_single_devices_but_no_listing():
    array = layout((2**30,), "a", "a=1048576,b=1024")
    assert array.index(2**30 - 1) == (slice(2**30 - 1024, 2**30),)
    for listing in (array.groups, array.indices):
        with pytest.raises(TooManyDevices, match="1,073,741,824 devices"):
            listing()


def test_a_layout_survives_json_and_pickle():
    array = layout((16, 12), "(data,model),None", MESH, "int4")
    assert Layout.from_json(json.loads(json.dumps(array.to_json()))) == array
    assert pickle.loads(pickle.dumps(array)) == array
    assert array.to_json() == {
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


def raised_error(kind: type[LabError], *args) -> LabError:
    with pytest.raises(kind) as caught:
        layout(*args)
    return caught.value


def test_an_unknown_mesh_axis_comes_with_the_nearest_name():
    error = raised_error(UnknownMeshAxis, (6, 8), "None,modle", MESH)
    assert str(error) == (
        "[layout.unknown_axis] Unknown mesh axis 'modle'. Did you mean 'model'? "
        "Known: data, model.\n"
        "  where: spec P(None, 'modle'), mesh data=2,model=4\n"
        "  try:   use an axis of the mesh, or None to replicate the dimension."
    )
    assert raised_error(UnknownMeshAxis, (6,), "Q", MESH).what == (
        "Unknown mesh axis 'Q'. Known: data, model."
    )
    assert "Did you mean 'model'?" in raised_error(UnknownMeshAxis, (6,), "MODEL", MESH).what
    assert raised_error(UnknownMeshAxis, (6,), "x", {}).what.endswith("Known: none.")


def test_a_mesh_axis_used_twice_is_named_with_both_dimensions():
    error = raised_error(DuplicateSpecAxis, (8, 8), "model,model", MESH)
    assert error.what == (
        "Mesh axis 'model' is used for dimensions 0 and 1; "
        "a mesh axis can shard only one dimension, once."
    )
    assert error.where == "spec P('model', 'model'), mesh data=2,model=4"
    assert error.fix == (
        "use 'model' once and write None for the other entry, or shard over 'data'."
    )
    twice = raised_error(DuplicateSpecAxis, (8, 8), "(model,model)", MESH)
    assert "is used twice for dimension 0" in twice.what


def test_a_spec_longer_than_the_rank_is_rejected():
    error = raised_error(SpecTooLong, (8,), "data,model", MESH)
    assert error.what == "The spec has 2 entries and the array has 1 dimension."
    assert error.where == "shape (8,), spec P('data', 'model'), mesh data=2,model=4"
    assert error.fix == "at most one entry for each dimension, such as P('data')."
    # NamedSharding.shard_shape accepts trailing Nones, device_put rejects them; so do we.
    assert raised_error(SpecTooLong, (), "None", MESH).what == (
        "The spec has 1 entry and the array has no dimensions."
    )


def test_an_indivisible_dimension_names_sizes_axes_and_alternatives():
    error = raised_error(IndivisibleAxis, (6, 10), "None,model", MESH)
    assert str(error) == (
        "[layout.indivisible] Dimension 1 has size 10, which is not divisible by 4 "
        "(mesh axis 'model').\n"
        "  where: shape (6, 10), spec P(None, 'model'), mesh data=2,model=4\n"
        "  try:   change the size of dimension 1 to 8 or 12, or replicate it (None)."
    )
    both = raised_error(IndivisibleAxis, (12, 16), "(data,model)", MESH)
    assert "by 8 (mesh axes 'data'=2 × 'model'=4)" in both.what
    assert both.fix == (
        "change the size of dimension 0 to 8 or 16, shard dimension 1 instead, "
        "or replicate it (None)."
    )
    assert raised_error(IndivisibleAxis, (3,), "model", MESH).fix.startswith(
        "change the size of dimension 0 to 4, "
    )


def test_unreduced_axes_follow_the_rules_of_jax():
    explicit = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    spec = P("data", unreduced={"model"})
    assert layout((8,), spec, explicit).shard_shape == (4,)
    error = raised_error(UnreducedNotAllowed, (8,), spec, MESH)
    assert error.what == "Mesh axis 'model' is marked unreduced and is not of type Explicit."
    overlap = parse_spec("data")
    overlap = type(overlap)("data", unreduced={"data"})
    error = raised_error(UnreducedNotAllowed, (8,), overlap, explicit)
    assert error.what == "Mesh axis 'data' is marked unreduced and also shards the array."


def test_a_device_is_an_id_or_a_coordinate():
    with pytest.raises(InvalidType, match=r"1\.5 is not a device"):
        layout((8,), "data", MESH).index(1.5)


def test_layout_accepts_anything_with_a_shape_and_a_dtype():
    class Struct:
        shape, dtype = (8, 6), "bfloat16"

    assert layout(Struct(), "data", "data=2").bytes_per_device == 4 * 6 * 2
