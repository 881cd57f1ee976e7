"""Meshes of plans: one -1, MaxText's names, slices by name; and invalid meshes."""

from __future__ import annotations

import contextlib
import re
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.errors import InvalidSize, InvalidSyntax, InvalidType, LabError, UnknownHardware
from shardlab.hardware.chips import parse_hardware
from shardlab.planner.plan_mesh import parse_plan_mesh
from shardlab.planner.tpu_slices import (
    is_tpu_slice,
    missing_slice_note,
    parse_tpu_slice,
    tpu_generations,
)
from shardlab.sharding.mesh import Mesh


@pytest.mark.parametrize(
    ("text", "n_devices", "hardware", "mesh", "dcn"),
    [
        ("fsdp=64,tensor=8", None, None, Mesh(fsdp=64, tensor=8), {}),
        ("fsdp=-1,tensor=8", 512, None, Mesh(fsdp=64, tensor=8), {}),
        ("tensor=8, fsdp = -1", 8, "tpu-v5p", Mesh(tensor=8, fsdp=1), {}),
        ("fsdp=-1,tensor=8", None, "v5p-1024", Mesh(fsdp=64, tensor=8), {}),
        ("v5p-1024,fsdp=-1,tensor=8", None, None, Mesh(fsdp=64, tensor=8), {}),
        ("fsdp=-1,v5e:16x16", None, None, Mesh(fsdp=256), {}),
        ("v5p-1024", None, None, Mesh(fsdp=512), {}),
        ("tpu7x-8", None, None, Mesh(fsdp=8), {}),
        (
            "ici_fsdp_parallelism=4,dcn_data_parallelism=2",
            None,
            None,
            Mesh(data=2, fsdp=4),
            {"data": 2},
        ),
        ("dcn_fsdp=2,ici_fsdp=4", 8, None, Mesh(fsdp=8), {"fsdp": 2}),
        (
            "ici_tensor=4,ici_pipeline=2,ici_fsdp=-1,dcn_data=3",
            None,
            "v5p-128",
            Mesh(data=3, stage=2, fsdp=8, tensor=4),
            {"data": 3},
        ),
        ("ici_fsdp=-1,dcn_data=-1", 1024, "v5p-1024", Mesh(data=2, fsdp=512), {"data": 2}),
        ("ici_fsdp=4,dcn_data=-1", 8, None, Mesh(data=2, fsdp=4), {"data": 2}),
        ("ici_fsdp=4,dcn_data=1", None, None, Mesh(data=1, fsdp=4), {}),
        ({"data": 2}, None, None, Mesh(data=2), {}),
    ],
)
def test_a_mesh_is_parsed(text, n_devices, hardware, mesh, dcn):
    parsed = parse_plan_mesh(text, n_devices, hardware)
    assert (parsed.mesh, parsed.dcn) == (mesh, dcn)


def test_a_slice_gives_the_hardware():
    assert parse_plan_mesh("fsdp=-1", hardware="v5p-8").hardware == "tpu-v5p"
    assert parse_plan_mesh("fsdp=-1,v5e-16").hardware == "tpu-v5e"
    assert parse_plan_mesh("fsdp=-1,v5e-16", hardware="v5e").hardware == "v5e"
    assert parse_plan_mesh("fsdp=2", hardware="h100").hardware == "h100"
    custom = parse_hardware("v5p")
    assert parse_plan_mesh("v5e-16", hardware=custom).hardware is custom


WRONG = [
    ("fsdp=-1,tensor=-1", 8, None, InvalidSyntax, "Only one size may be -1"),
    ("fsdp=-1,tensor=8", None, None, InvalidSyntax, "the number of devices is not known"),
    ("ici_fsdp=-1,dcn_data=-1", 8, None, InvalidSyntax, "Only one size may be -1"),
    (
        "fsdp=-1,tensor=3",
        512,
        None,
        InvalidSize,
        "512 devices are not divisible by 3, the product of the other sizes",
    ),
    ("fsdp=-1,tensor=8", 4, None, InvalidSize, "4 devices are not divisible by 8"),
    ("fsdp=64,tensor=8", 256, None, InvalidSize, "has 512 devices, but 256 were requested"),
    ({"data": 2}, 4, None, InvalidSize, "has 2 devices, but 4 were requested"),
    ("fsdp=64", None, "v5p-1024", InvalidSize, "has 64 devices, but v5p-1024 has 512"),
    ("fsdp=1024", None, "v5p-1024", InvalidSize, "has 1,024 devices, but v5p-1024 has 512"),
    ("ici_fsdp=4,dcn_data=2", None, "v5p-16", InvalidSize, "2 slices v5p-16 have 16"),
    ("fsdp=-1", 700, "v5p-1024", InvalidSize, "has 512 devices, but 700 were requested"),
    ("fsdp=-1,v5p-16", None, "v5e-16", InvalidSize, "slice v5p-16, but the hardware is tpu-v5e"),
    ("fsdp=-1,v5p-16", None, "h100", InvalidSize, "slice v5p-16, but the hardware is h100"),
    ("fsdp=-1", None, "v5p-1000", UnknownHardware, "no TPU slice 'v5p-1000'"),
    ("v5p-1000", None, None, UnknownHardware, "no TPU slice 'v5p-1000'"),
    ("v9z-16,fsdp=-1", None, None, UnknownHardware, "does not name a known TPU"),
    ("v5e:3x5", None, None, UnknownHardware, "no TPU slice 'v5e:3x5'"),
    ("v6e-48", None, None, UnknownHardware, "no TPU slice 'v6e-48'"),
    ("ici_fdsp=4", None, None, InvalidSyntax, "MaxText has no mesh axis 'fdsp'"),
    ("ici_fsdp=4,tensor=2", None, None, InvalidSyntax, "are mixed"),
    ("ici_fsdp=4,ici_fsdp=2", None, None, InvalidSyntax, "is repeated"),
    ("fsdp=-1,fsdp=2", 4, None, InvalidSyntax, "is repeated"),
    ("fsdp=-2", 4, None, InvalidSize, "is -2"),
    ("ici_fsdp=0", None, None, InvalidSize, "is 0"),
    ("fsdp=-1,tensor", 4, None, InvalidSyntax, "'=' was expected after 'tensor'"),
    ("fsdp=-1,tensor=x", 4, None, InvalidSyntax, "The size of mesh axis 'tensor' was expected"),
    ("fsdp=-1 tensor=2", 4, None, InvalidSyntax, "',' was expected"),
    ("fsdp=-1,,", 4, None, InvalidSyntax, "A mesh axis name was expected"),
    ("", None, None, InvalidSyntax, "A mesh axis name was expected"),
    ("fsdp=-1", 0, None, InvalidSize, "number of devices"),
    ("fsdp=-1", 2.5, None, InvalidType, "number of devices"),
    ("fsdp=-1", True, None, InvalidType, "number of devices"),
    ("fsdp=-1", 10**30, None, InvalidSize, "1,000,000"),
    (7, None, None, InvalidType, "7 is not a mesh"),
]


@pytest.mark.parametrize(("text", "n_devices", "hardware", "kind", "message"), WRONG)
def test_an_invalid_mesh_is_an_error(text, n_devices, hardware, kind, message):
    with pytest.raises(kind, match=message):
        parse_plan_mesh(text, n_devices, hardware)


PARTS = ["fsdp", "tensor", "=", "-1", "8", "64", ",", ":", "ici_", "dcn_", "v5p-1024", "v5e:16x16"]
PARTS += ["_parallelism", "-", "x", "0", " ", "(", "'", "_", "tpu7x-8", "9" * 20, "é", "\n"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(PARTS), max_size=9).map("".join),
    st.sampled_from([None, 8, 512]),
    st.sampled_from([None, "v5p-1024", "h100"]),
)
def test_any_text_is_a_mesh_or_a_lab_error(text, n_devices, hardware):
    with contextlib.suppress(LabError):
        assert parse_plan_mesh(text, n_devices, hardware).mesh.n_devices >= 1


def test_an_unknown_slice_suggests_the_nearest_ones():
    with pytest.raises(UnknownHardware) as raised:
        parse_tpu_slice("v5p-1000")
    assert raised.value.fix == (
        "Did you mean 'v5p-896' (448 chips, 4x4x28) or 'v5p-1024' (512 chips, 8x8x8)?"
    )
    with pytest.raises(UnknownHardware) as raised:
        parse_tpu_slice("v5x-256")
    assert raised.value.fix.endswith("-256'?")


def test_the_error_points_at_the_second_minus_one():
    with pytest.raises(InvalidSyntax) as raised:
        parse_plan_mesh("fsdp=-1,tensor=-1", 8)
    assert raised.value.where.splitlines()[1:] == [
        "         fsdp=-1,tensor=-1",
        "                        ^^",
    ]


# MaxText's accelerator_to_spec_map.py: name, topology, devices in a slice
MAXTEXT = [
    ("v4-8", (2, 2, 1), 4),
    ("v4-4096", (8, 16, 16), 2048),
    ("v5p-8", (2, 2, 1), 4),
    ("v5p-1024", (8, 8, 8), 512),
    ("v5p-17920", (16, 20, 28), 8960),
    ("v5e-256", (16, 16), 256),
    ("v6e-8", (2, 4), 8),
    ("tpu7x-2", (1, 1, 1), 2),
    ("tpu7x-8", (2, 2, 1), 8),
    ("tpu7x-18432", (16, 24, 24), 18432),
]


@pytest.mark.parametrize(("name", "shape", "n_devices"), MAXTEXT)
def test_a_slice_has_maxtexts_shape_and_devices(name, shape, n_devices):
    tpu_slice = parse_tpu_slice(name)
    assert (tpu_slice.name, tpu_slice.shape, tpu_slice.n_devices) == (name, shape, n_devices)


def test_every_slice_of_the_table_is_of_known_hardware_and_within_its_pod():
    for generation in set(tpu_generations().values()):
        chip = parse_hardware(generation.hardware)
        assert chip.devices_per_chip == generation.devices_per_chip
        assert max(map(prod, generation.shapes)) <= chip.pod
        for shape in generation.shapes:
            tpu_slice = parse_tpu_slice(generation.slice_of_shape(shape).name)
            assert tpu_slice.shape == shape
            assert parse_tpu_slice(f"{generation.name}:{'x'.join(map(str, shape))}") == tpu_slice


@pytest.mark.parametrize(
    "text", ["v5p", "tpu-v5p", "h100", "my-chip.toml", "x-1", "", None, 7, b"v5p-8"]
)
def test_other_text_is_no_slice(text):
    assert not is_tpu_slice(text)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("v5p-1000", "'v5p-896' or 'v5p-1024'"),
        ("v6e-48", "'v6e-32' or 'v6e-64'"),
        ("v6e-512", "'v6e-256'"),
        ("v5e:3x5", "'v5e:2x4' or 'v5e:4x4'"),
        ("v4-6", "'v4-8'"),
    ],
)
def test_a_slice_that_does_not_exist_is_rejected_with_the_nearest(name, nearest):
    with pytest.raises(UnknownHardware) as raised:
        parse_tpu_slice(name)
    assert raised.value.what == f"There is no TPU slice {name!r}."
    assert (
        re.sub(r" \([0-9,]+ chips, [0-9x]+\)", "", raised.value.fix) == f"Did you mean {nearest}?"
    )


def test_the_nearest_slices_are_shown_with_their_chips():
    with pytest.raises(UnknownHardware) as raised:
        parse_tpu_slice("v5p-96")
    assert raised.value.where == "slices of tpu-v5p, two TensorCores per chip"
    assert raised.value.fix == (
        "Did you mean 'v5p-64' (32 chips, 2x4x4) or 'v5p-128' (64 chips, 4x4x4)?"
    )


@pytest.mark.parametrize(
    ("hardware", "n_chips", "note"),
    [
        (
            "tpu-v5p",
            500,
            "There is no v5p slice of 500 chips; the nearest are v5p-896 and v5p-1024.",
        ),
        ("tpu-v5p", 512, None),
        ("tpu-v6e", 512, None),  # two slices
        ("h100", 3, None),
    ],
)
def test_a_number_of_chips_that_no_slice_has_is_noted(hardware, n_chips, note):
    assert missing_slice_note(hardware, n_chips) == note
