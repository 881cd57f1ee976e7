"""Mesh: read from anything that names axes and sizes; knows its devices."""

from __future__ import annotations

import pickle

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from shardlab.errors import (
    DuplicateMeshAxis,
    InvalidSize,
    InvalidSyntax,
    InvalidType,
    TooManyDevices,
    UnknownDevice,
)
from shardlab.sharding.mesh import Mesh, parse_mesh

TWO_BY_THREE = Mesh(data=2, model=3)


@pytest.mark.parametrize(
    "spelled",
    [
        "data=2,model=3",
        " data = 2 , model = 3 ",
        "data:2,model:3",
        "'data'=2,\"model\"=3,",
        {"data": 2, "model": 3},
        {"data": np.int64(2), "model": np.int32(3)},
        [("data", 2), ("model", 3)],
        (("data", 2), ["model", 3]),
        AbstractMesh((2, 3), ("data", "model"), axis_types=(AxisType.Auto,) * 2),
        TWO_BY_THREE,
    ],
)
def test_a_mesh_is_read_from_text_mapping_pairs_and_jax(spelled):
    assert parse_mesh(spelled) == TWO_BY_THREE


@pytest.mark.parametrize("spelled", ["()", {}, (), AbstractMesh((), ())])
def test_a_mesh_without_axes_has_one_device(spelled):
    mesh = parse_mesh(spelled)
    assert (mesh.n_devices, mesh.devices, mesh.coordinate(0)) == (1, (0,), ())
    assert str(mesh) == "()"


def test_the_axis_type_of_a_jax_mesh_is_kept():
    mesh = parse_mesh(AbstractMesh((2,), ("data",), axis_types=(AxisType.Explicit,)))
    assert mesh.axis_types == ("Explicit",)
    assert parse_mesh("data=2").axis_types == ("Auto",)


def test_a_jax_mesh_of_the_one_real_device_is_read():
    devices = np.array(jax.devices()[:1]).reshape(1, 1)
    assert parse_mesh(jax.sharding.Mesh(devices, ("a", "b"))) == Mesh(a=1, b=1)


class Device:
    """Enough of a device for Mesh to be read; JAX's own Mesh takes such objects too."""

    def __init__(self, number):
        self.id = number


def test_the_order_of_devices_is_the_meshs_own():
    devices = np.array([Device(i) for i in (5, 0, 3, 1, 2, 4)], dtype=object).reshape(2, 3)
    jax_like = type("Mesh", (), {"axis_names": ("data", "model"), "axis_types": None})()
    jax_like.devices = devices
    mesh = parse_mesh(jax_like)
    assert mesh.device_ids == (5, 0, 3, 1, 2, 4)
    assert mesh.coordinate(1) == (1, 0)
    assert mesh.device_at((0, 2)) == 3
    assert mesh != TWO_BY_THREE
    assert repr(mesh) == "Mesh(data=2, model=3, device_ids=(5, 0, 3, 1, 2, 4))"


def test_the_last_mesh_axis_runs_fastest():
    assert [TWO_BY_THREE.coordinate(i) for i in range(4)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert list(TWO_BY_THREE.coordinates()) == [TWO_BY_THREE.coordinate(i) for i in range(6)]


def test_a_mesh_is_frozen_hashable_and_survives_pickle_and_json():
    mesh = Mesh({"data": 2, "model": 3}, device_ids=(5, 0, 3, 1, 2, 4), axis_types=("Manual",) * 2)
    assert pickle.loads(pickle.dumps(mesh)) == mesh == Mesh.from_json(mesh.to_json())
    assert hash(mesh) == hash(Mesh.from_json(mesh.to_json()))
    with pytest.raises(AttributeError, match="cannot assign to field 'axis_names'"):
        mesh.axis_names = ()


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("data=2,model=", "             ^", "The size of mesh axis 'model' was expected here."),
        ("data", "    ^", "'=' was expected after 'data'."),
        ("data=2 model=3", "       ^^^^^", "',' was expected here."),
        ("data=2,data=3", "       ^^^^", "Mesh axis 'data' is here a second time."),
        ("=2", "^", "A mesh axis name was expected here."),
        ("", "^", "A mesh axis name was expected here."),
        ("data=2x4", "      ^^", "',' was expected here."),
    ],
)
def test_bad_mesh_text_is_pointed_at(text, place, what):
    with pytest.raises(InvalidSyntax) as caught:
        parse_mesh(text)
    assert caught.value.what == what
    assert caught.value.where == f"the mesh text\n         {text}\n         {place}"
    assert caught.value.fix == "write name=size pairs, such as data=2,model=4."


@pytest.mark.parametrize("text", ["data=64_", "data=6__4", "data=6_4_,model=2"])
def test_an_underscore_that_separates_no_digits_is_pointed_at(text):
    with pytest.raises(InvalidSyntax, match="',' was expected here"):
        parse_mesh(text)


def test_a_number_of_two_hundred_digits_is_refused_at_once():
    with pytest.raises(InvalidSyntax, match=r"The number has 200 digits\."):
        parse_mesh("data=" + "9" * 200)


@pytest.mark.parametrize("mesh", ["data=0,model=3", {"data": 0, "model": 3}])
def test_a_mesh_axis_of_size_zero_is_refused(mesh):
    # JAX makes such a mesh and then kills the process with a floating point exception.
    with pytest.raises(InvalidSize, match=r"The size of mesh axis 'data' is 0\.") as caught:
        parse_mesh(mesh)
    assert caught.value.where == "mesh data=0,model=3"
    assert "1" in caught.value.fix


@pytest.mark.parametrize("size", [-2, -(2**80)])
def test_a_negative_mesh_axis_is_refused(size):
    with pytest.raises(InvalidSize, match=rf"The size of mesh axis 'data' is {size}\."):
        parse_mesh({"data": size})
    with pytest.raises(InvalidSize, match=rf"The size of mesh axis 'data' is {size}\."):
        parse_mesh(f"data={size}")


def test_more_devices_than_xla_counts_are_refused():
    # JAX answers std::bad_cast for these.
    with pytest.raises(InvalidSize, match=r"The mesh has 1,099,511,627,776 devices\.") as caught:
        parse_mesh({"a": 2**20, "b": 2**20})
    assert caught.value.fix == "at most 2,147,483,647 devices, the most that XLA can count."
    with pytest.raises(InvalidSize, match="The size of mesh axis 'a' is a number of 5,001 bits"):
        parse_mesh({"a": 2**5000})


def test_the_same_name_twice_is_refused():
    with pytest.raises(DuplicateMeshAxis, match="The mesh has two axes named 'data'"):
        parse_mesh([("data", 2), ("data", 3)])


def test_the_same_device_twice_is_refused():
    # JAX takes it, and its devices_indices_map then forgets one of the two places.
    with pytest.raises(DuplicateMeshAxis, match="The mesh holds a device more than once"):
        Mesh({"x": 2}, device_ids=(5, 5))
    with pytest.raises(InvalidSize, match="The mesh has 2 places and 3 devices"):
        Mesh({"x": 2}, device_ids=(5, 6, 7))


@pytest.mark.parametrize("mesh", [3, None, [1, 2], [("data", 2, 3)], ["data"]])
def test_what_is_not_a_mesh_is_refused_with_what_would_be(mesh):
    with pytest.raises(InvalidType, match="is not a mesh") as caught:
        parse_mesh(mesh)
    assert caught.value.fix.startswith('text such as "data=2,model=4"')


@pytest.mark.parametrize(
    ("axes", "what"),
    [
        ({3: 2}, "The mesh axis name 3 is not a name."),  # JAX takes any hashable name
        ({"": 2}, "The mesh axis name '' is not a name."),
        ({"data": 2.0}, "The size of mesh axis 'data' is 2.0, a float."),
        ({"data": "2"}, "The size of mesh axis 'data' is '2', a str."),
    ],
)
def test_names_are_text_and_sizes_are_whole(axes, what):
    with pytest.raises(InvalidType) as caught:
        parse_mesh(axes)
    assert caught.value.what == what


@pytest.mark.parametrize("place", [6, -1, 2**80])
def test_a_device_outside_the_mesh_is_named(place):
    with pytest.raises(UnknownDevice, match=f"The mesh has no device {place}") as caught:
        TWO_BY_THREE.coordinate(place)
    assert caught.value.fix == ("a device id (0 to 5) or a coordinate (data 0 to 1, model 0 to 2).")


@pytest.mark.parametrize("place", [(0,), (0, 3), (-1, 0), (0, 0, 0), ("a", "b")])
def test_a_coordinate_outside_the_mesh_is_named(place):
    with pytest.raises(UnknownDevice, match="The mesh has no coordinate"):
        TWO_BY_THREE.device_at(place)


def test_a_mesh_too_large_to_list_says_so_and_still_answers_for_one_device():
    mesh = parse_mesh("a=65536,b=32")
    assert mesh.coordinate(65) == (2, 1)
    with pytest.raises(TooManyDevices, match="2,097,152 devices, too many to list one by one"):
        mesh.coordinates()
