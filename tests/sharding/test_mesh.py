"""Mesh: parsed from text, mappings, pairs and JAX meshes; device ids and coordinates."""

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
def test_a_mesh_is_parsed_from_text_mapping_pairs_and_jax(spelled):
    assert parse_mesh(spelled) == TWO_BY_THREE


@pytest.mark.parametrize("spelled", ["()", {}, (), AbstractMesh((), ())])
def test_a_mesh_without_axes_has_one_device(spelled):
    mesh = parse_mesh(spelled)
    assert (mesh.n_devices, mesh.devices, mesh.coordinate(0)) == (1, (0,), ())
    assert str(mesh) == "()"


def test_the_axis_types_of_a_jax_mesh_are_preserved():
    mesh = parse_mesh(AbstractMesh((2,), ("data",), axis_types=(AxisType.Explicit,)))
    assert mesh.axis_types == ("Explicit",)
    assert parse_mesh("data=2").axis_types == ("Auto",)


def test_a_jax_mesh_of_one_real_device_is_parsed():
    devices = np.array(jax.devices()[:1]).reshape(1, 1)
    assert parse_mesh(jax.sharding.Mesh(devices, ("a", "b"))) == Mesh(a=1, b=1)


class Device:
    """A device with nothing but an id; JAX's own Mesh accepts such objects too."""

    def __init__(self, number):
        self.id = number


def test_the_device_order_of_a_jax_mesh_is_preserved():
    devices = np.array([Device(i) for i in (5, 0, 3, 1, 2, 4)], dtype=object).reshape(2, 3)
    jax_like = type("Mesh", (), {"axis_names": ("data", "model"), "axis_types": None})()
    jax_like.devices = devices
    mesh = parse_mesh(jax_like)
    assert mesh.device_ids == (5, 0, 3, 1, 2, 4)
    assert mesh.coordinate(1) == (1, 0)
    assert mesh.device_at((0, 2)) == 3
    assert mesh != TWO_BY_THREE
    assert repr(mesh) == "Mesh(data=2, model=3, device_ids=(5, 0, 3, 1, 2, 4))"


def test_the_last_mesh_axis_is_the_fastest():
    assert [TWO_BY_THREE.coordinate(i) for i in range(4)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert list(TWO_BY_THREE.coordinates()) == [TWO_BY_THREE.coordinate(i) for i in range(6)]


def test_a_mesh_is_frozen_hashable_and_survives_pickle_and_json():
    mesh = Mesh({"data": 2, "model": 3}, device_ids=(5, 0, 3, 1, 2, 4), axis_types=("Manual",) * 2)
    assert pickle.loads(pickle.dumps(mesh)) == mesh == Mesh.from_json(mesh.to_json())
    assert hash(mesh) == hash(Mesh.from_json(mesh.to_json()))
    with pytest.raises(AttributeError, match="cannot assign to field 'axis_names'"):
        mesh.axis_names = ()


@pytest.mark.parametrize(
    ("text", "marks", "what"),
    [
        ("data=2,model=", "             ^", "The size of mesh axis 'model' was expected here."),
        ("data", "    ^", "'=' was expected after 'data'."),
        ("data=2 model=3", "       ^^^^^", "',' was expected here."),
        ("data=2,data=3", "       ^^^^", "Mesh axis 'data' appears twice."),
        ("=2", "^", "A mesh axis name was expected here."),
        ("", "^", "A mesh axis name was expected here."),
        ("data=2x4", "      ^^", "',' was expected here."),
    ],
)
def test_an_error_marks_the_position_in_mesh_text(text, marks, what):
    with pytest.raises(InvalidSyntax) as caught:
        parse_mesh(text)
    assert caught.value.what == what
    assert caught.value.where == f"the mesh text\n         {text}\n         {marks}"
    assert caught.value.fix == "write name=size pairs, such as data=2,model=4."


@pytest.mark.parametrize("text", ["data=64_", "data=6__4", "data=6_4_,model=2"])
def test_a_misplaced_underscore_is_an_error(text):
    with pytest.raises(InvalidSyntax, match="',' was expected here"):
        parse_mesh(text)


def test_a_number_of_two_hundred_digits_is_rejected():
    with pytest.raises(InvalidSyntax, match=r"The number has 200 digits\."):
        parse_mesh("data=" + "9" * 200)


@pytest.mark.parametrize("mesh", ["data=0,model=3", {"data": 0, "model": 3}])
def test_a_mesh_axis_of_size_zero_is_rejected(mesh):
    # JAX makes such a mesh and then kills the process with a floating point exception.
    with pytest.raises(InvalidSize, match=r"The size of mesh axis 'data' is 0\.") as caught:
        parse_mesh(mesh)
    assert caught.value.where == "mesh data=0,model=3"
    assert "1" in caught.value.fix


@pytest.mark.parametrize("size", [-2, -(2**80)])
def test_a_negative_mesh_axis_is_rejected(size):
    with pytest.raises(InvalidSize, match=rf"The size of mesh axis 'data' is {size}\."):
        parse_mesh({"data": size})
    with pytest.raises(InvalidSize, match=rf"The size of mesh axis 'data' is {size}\."):
        parse_mesh(f"data={size}")


def test_more_devices_than_xla_can_count_are_rejected():
    # JAX raises std::bad_cast for these.
    with pytest.raises(InvalidSize, match=r"The mesh has 1,099,511,627,776 devices\.") as caught:
        parse_mesh({"a": 2**20, "b": 2**20})
    assert caught.value.fix == "at most 2,147,483,647 devices, the most that XLA can count."
    with pytest.raises(InvalidSize, match="The size of mesh axis 'a' is an integer of 5,001 bits"):
        parse_mesh({"a": 2**5000})


def test_a_duplicate_axis_name_is_rejected():
    with pytest.raises(DuplicateMeshAxis, match="The mesh has two axes named 'data'"):
        parse_mesh([("data", 2), ("data", 3)])


def test_a_duplicate_device_is_rejected():
    # JAX accepts it, and its devices_indices_map then loses one of the two positions.
    with pytest.raises(DuplicateMeshAxis, match="The mesh has the same device twice"):
        Mesh({"x": 2}, device_ids=(5, 5))
    with pytest.raises(InvalidSize, match="The mesh has 2 positions and 3 device ids"):
        Mesh({"x": 2}, device_ids=(5, 6, 7))


@pytest.mark.parametrize("mesh", [3, None, [1, 2], [("data", 2, 3)], ["data"]])
def test_an_object_that_is_no_mesh_is_rejected_with_an_example(mesh):
    with pytest.raises(InvalidType, match="is not a mesh") as caught:
        parse_mesh(mesh)
    assert caught.value.fix.startswith('text such as "data=2,model=4"')


@pytest.mark.parametrize(
    ("axes", "what"),
    [
        ({3: 2}, "3 is not a mesh axis name."),  # JAX accepts any hashable name
        ({"": 2}, "'' is not a mesh axis name."),
        ({"data": 2.0}, "The size of mesh axis 'data' is 2.0, a float."),
        ({"data": "2"}, "The size of mesh axis 'data' is '2', a str."),
    ],
)
def test_names_are_strings_and_sizes_are_integers(axes, what):
    with pytest.raises(InvalidType) as caught:
        parse_mesh(axes)
    assert caught.value.what == what


@pytest.mark.parametrize("device", [6, -1, 2**80])
def test_an_unknown_device_is_named_with_the_valid_range(device):
    with pytest.raises(UnknownDevice, match=f"Unknown device {device}") as caught:
        TWO_BY_THREE.coordinate(device)
    assert caught.value.fix == ("a device id (0 to 5) or a coordinate (data 0 to 1, model 0 to 2).")


@pytest.mark.parametrize("coordinate", [(0,), (0, 3), (-1, 0), (0, 0, 0), ("a", "b")])
def test_an_unknown_coordinate_is_an_error(coordinate):
    with pytest.raises(UnknownDevice, match="Unknown device coordinate"):
        TWO_BY_THREE.device_at(coordinate)


def test_a_mesh_too_large_to_list_still_supports_single_devices():
    mesh = parse_mesh("a=65536,b=32")
    assert mesh.coordinate(65) == (2, 1)
    with pytest.raises(TooManyDevices, match="2,097,152 devices, too many to list one by one"):
        mesh.coordinates()
