"""Hardware: every figure has a source, names and aliases work, and user files are checked."""

from __future__ import annotations

import pytest

from shardlab.errors import InvalidHardwareFile, UnknownFigure, UnknownHardware
from shardlab.hardware.chip_file import FIGURE_UNITS
from shardlab.hardware.chips import hardware_names, parse_hardware

CHIPS = ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x"]
CHIPS += ["a100", "h100", "h200", "b200", "gb200", "trainium2"]
CHIPS += ["a100-40gb", "h100-96gb", "h800", "mi300x", "gb300"]


def test_the_table_has_the_common_chips():
    assert set(CHIPS) == set(hardware_names())


@pytest.mark.parametrize("name", CHIPS)
def test_every_figure_is_a_number_with_a_source(name):
    chip = parse_hardware(name)
    assert {"hbm_bytes", "hbm_bandwidth", "bf16_flops"} <= set(chip.figures) <= set(FIGURE_UNITS)
    for figure in chip.figures.values():
        assert figure.value > 0
        assert " " in figure.source, "a key of [sources] that does not exist stays a bare word"


@pytest.mark.parametrize(
    ("alias", "name"),
    [("v5e", "tpu-v5e"), ("TPU v5p", "tpu-v5p"), ("H100", "h100"), ("nvl72", "gb200")],
)
def test_a_chip_has_common_aliases(alias, name):
    assert parse_hardware(alias).name == name


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownHardware, match=r"Did you mean 'tpu-v5p'\?") as caught:
        parse_hardware("tpu-v5x")
    assert caught.value.what.startswith("Unknown hardware 'tpu-v5x'. Did you mean")
    assert "Known: tpu-v4, tpu-v5e, " in caught.value.what


def test_an_unpublished_figure_is_an_error_and_not_a_guess():
    with pytest.raises(UnknownFigure, match="'link_bandwidth' for AWS Trainium2") as caught:
        parse_hardware("trainium2").figure("link_bandwidth")
    assert 'figures={"link_bandwidth": ...}' in caught.value.fix


def test_a_figure_can_be_set_by_the_user():
    chip = parse_hardware("trainium2", {"link_bandwidth": 6.4e10})
    assert chip.figure("link_bandwidth").value == 6.4e10
    assert chip.figure("link_bandwidth").source == "set by the user"


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v6e"])
def test_only_axes_of_16_are_rings_on_a_2d_torus(name):
    chip = parse_hardware(name)
    assert [size for size in (2, 4, 8, 16) if chip.makes_ring(size, 256)] == [16]


@pytest.mark.parametrize("name", ["tpu-v4", "tpu-v5p"])
def test_axes_of_full_cubes_are_rings_on_a_3d_torus(name):
    chip = parse_hardware(name)
    assert [size for size in (2, 4, 6, 8) if chip.makes_ring(size, 64)] == [4, 8]
    assert not chip.makes_ring(4, 16), "a 2x2x4 slice is not made of cubes"


def test_two_devices_of_a_chip_share_its_figures():
    chip = parse_hardware("tpu-7x")
    assert chip.figure("bf16_flops").value == 2.307e15 / 2
    assert "divided by the 2 devices of a chip" in chip.figure("bf16_flops").source
    assert chip.figure("hop_latency").value == 1e-6


def write_chip_file(tmp_path, text):
    path = tmp_path / "my_chip.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_file_can_start_from_a_known_chip(tmp_path):
    path = write_chip_file(
        tmp_path,
        'like = "h100"\nnvlink_bandwidth = 3.7e11\n'
        'node_egress = { value = 2e11, source = "measured" }\n',
    )
    chip = parse_hardware(str(path))
    assert (chip.name, chip.domain, chip.network) == ("my_chip", 8, "switch")
    assert chip.figure("nvlink_bandwidth").value == 3.7e11
    assert chip.figure("nvlink_bandwidth").source == str(path)
    assert chip.figure("node_egress").source == "measured"
    assert chip.figure("bf16_flops") == parse_hardware("h100").figure("bf16_flops")


def test_a_file_can_describe_a_new_chip(tmp_path):
    text = 'name = "abacus"\nnetwork = "torus"\ntorus_axes = 1\nlink_bandwidth = 5\n'
    chip = parse_hardware(write_chip_file(tmp_path, text))
    assert (chip.name, chip.torus_axes) == ("abacus", 1)
    assert not chip.makes_ring(16, 16)


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ('like = "h10"', "Unknown chip 'h10'. Did you mean 'h100'? Known: tpu-v4", "a known chip"),
        ("nvlink_bandwidth = 1e9", "Neither 'network' nor 'like' is set", 'network = "torus"'),
        ('network = "mesh"', "'network' is 'mesh'", '"torus" (links'),
        (
            'like = "h100"\nnode_egres = 1',
            "Unknown key 'node_egres'. Did you mean 'node_egress'?",
            "known key",
        ),
        ('like = "h100"\nnode_egress = "fast"', "'node_egress' is 'fast'", "a number above 0"),
        ('like = "h100"\nnode_egress = -1', "'node_egress' is -1", "in bytes/s, such as"),
        ('like = "h100"\nnode_egress = true', "'node_egress' is True", "a number above 0"),
        ('like = "h100"\nnode_egress = {valeu=1}', "table of 'node_egress' has valeu", "value ="),
        ('like = "h100"\ndomain = 0', "'domain' is 0", "an integer from 1"),
        ('like = "h100"\nname = 3', "'name' is 3", 'a string, such as name = "h100"'),
        ("like = h100", "The file is not TOML: Invalid value (at line 1", "fix it there"),
    ],
)
def test_an_invalid_file_is_reported_with_a_fix(tmp_path, text, what, fix):
    path = write_chip_file(tmp_path, text)
    with pytest.raises(InvalidHardwareFile) as caught:
        parse_hardware(path)
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.where == str(path)


def test_a_missing_or_unreadable_file_is_reported(tmp_path):
    with pytest.raises(InvalidHardwareFile, match="There is no such file"):
        parse_hardware(str(tmp_path / "nowhere.toml"))
    with pytest.raises(InvalidHardwareFile, match="cannot be read"):
        parse_hardware(tmp_path)


def test_bytes_that_are_not_text_are_reported(tmp_path):
    path = tmp_path / "my_chip.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidHardwareFile, match="not TOML"):
        parse_hardware(path)


def test_only_rates_are_half_of_the_figures_with_sparsity():
    for name in ("h100", "h200", "b200"):
        chip = parse_hardware(name)
        assert "sparsity" in chip.figure("bf16_flops").source
        assert "sparsity" not in chip.figure("hbm_bytes").source
