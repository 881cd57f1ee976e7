"""`shardlab layout`: pictures, data, and errors with a fix."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from shardlab import __version__
from shardlab.cli import main
from shardlab.sharding.layout import layout
from shardlab.sharding.layout_render import device_text

EXAMPLE = ["layout", "4096x16384:bf16", "--spec", "None,model", "--mesh", "data=2,model=4"]


def run(*args):
    return CliRunner().invoke(main, args, prog_name="shardlab")


def test_the_picture_is_that_of_the_layout():
    done = run(*EXAMPLE)
    assert done.exit_code == 0
    expected = layout((4096, 16384), "None,model", "data=2,model=4", "bf16")
    assert done.stdout == expected.text() + "\n"


def test_json_is_plain_data_that_reads_back():
    done = run(*EXAMPLE, "--json", "-")
    expected = layout((4096, 16384), "None,model", "data=2,model=4", "bf16")
    assert json.loads(done.stdout) == expected.to_json()


def test_json_has_the_device_and_the_reshard_steps_when_requested():
    data = json.loads(run(*EXAMPLE, "--json", "-", "--device", "1,2", "--to", "").stdout)
    assert data["device"] == {
        "id": 6,
        "coordinate": {"data": 1, "model": 2},
        "index": [[0, 4096], [8192, 12288]],
    }
    assert [(step["kind"], step["sent_bytes"]) for step in data["reshard"]] == [
        ("all_gather", 3 * 2**25)
    ]
    assert data["to"] == layout((4096, 16384), "", "data=2,model=4", "bf16").to_json()


def test_svg_is_written_to_a_file(tmp_path):
    path = tmp_path / "layout.svg"
    done = run(*EXAMPLE, "--svg", str(path))
    assert (done.exit_code, done.stderr) == (0, f"wrote {path}\n")
    assert done.stdout == run(*EXAMPLE).stdout
    assert ET.fromstring(path.read_text("utf-8")).tag.endswith("svg")


def test_svg_goes_to_standard_output_when_requested():
    assert ET.fromstring(run(*EXAMPLE, "--svg", "-").stdout).tag.endswith("svg")


def test_json_and_svg_cannot_both_go_to_standard_output():
    done = run(*EXAMPLE, "--json", "-", "--svg", "-")
    assert done.exit_code == 2
    assert "--json and --svg cannot both be written to standard output" in done.stderr


def test_without_a_spec_the_array_is_replicated():
    assert "the full array, replicated on 8 devices" in run("layout", "8x6", "--mesh", "x=8").stdout


@pytest.mark.parametrize("device", ["6", "1,2", "(1, 2)"])
def test_one_device_is_named_by_id_or_coordinate(device):
    text = run(*EXAMPLE, "--device", device).stdout
    assert (
        text == device_text(layout((4096, 16384), "None,model", "data=2,model=4", "bf16"), 6) + "\n"
    )
    for fact in (
        "device 6 (data=1, model=2)",
        "[:, 8192:12288]",
        "[4096, 4096]",
        "33.6 MB",
        "2, 6",
    ):
        assert fact in text


@pytest.mark.parametrize(
    ("target", "facts"),
    [
        ("data,model", ["1. slice over data: P(None, 'model') -> P('data', 'model')"]),
        # each device sends 3/4 of the 134 MB of the full array
        ("", ["1. all_gather over model: P(None, 'model') -> P()", "100.7 MB: (g-1)/g", "g=4"]),
        ("None,model", ["already"]),
    ],
)
def test_to_shows_the_reshard_steps_and_their_formula(target, facts):
    picture = run(*EXAMPLE).stdout
    text = run(*EXAMPLE, "--to", target).stdout
    assert text.startswith(picture)
    for fact in facts:
        assert fact in text.removeprefix(picture)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (
            ["6x10", "--spec", "None,model", "--mesh", "data=2,model=4"],
            "[layout.indivisible] Dimension 1 has size 10, which is not divisible by 4 "
            "(mesh axis 'model').\n"
            "  where: shape (6, 10), spec P(None, 'model'), mesh data=2,model=4\n"
            "  try:   change the size of dimension 1 to 8 or 12, or replicate it (None).\n",
        ),
        (
            ["8x6", "--spec", "data)", "--mesh", "data=2"],
            "[layout.invalid_syntax] ',' was expected here.\n"
            "  where: the spec text\n"
            "         data)\n"
            "             ^\n"
            "  try:   write one entry for each dimension, such as None,model or "
            "(data,model),None.\n",
        ),
        (
            ["8x6", "--mesh", "data=2", "--device", "x"],
            "[layout.invalid_syntax] A number was expected here.\n"
            "  where: the device text\n"
            "         x\n"
            "         ^\n"
            "  try:   write an id, such as 5, or a coordinate, such as 1,2.\n",
        ),
    ],
)
def test_an_error_is_three_parts_on_stderr_and_exit_code_two(args, expected):
    done = run("layout", *args)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.parametrize("bad", ["1 2", "(1,2", "1)", "", "9", "1,2,3"])
def test_bad_device_text_is_an_error_not_a_traceback(bad):
    done = run("layout", "8x6", "--mesh", "data=2,model=4", "--device", bad)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_a_missing_mesh_is_reported():
    done = run("layout", "8x6")
    assert done.exit_code == 2
    assert "Missing option '--mesh'" in done.stderr


def test_version_and_help():
    assert run("--version").stdout == f"shardlab, version {__version__}\n"
    assert "Show which shard each device holds" in run("--help").stdout
    assert "--spec" in run("layout", "-h").stdout


def test_an_unknown_command_suggests_the_nearest_one():
    done = run("layuot")
    assert done.exit_code == 2
    assert "No such command 'layuot'. Did you mean 'layout'?" in done.stderr
    assert "No such command 'zzz'." in run("zzz").stderr


def test_the_command_loads_neither_jax_nor_numpy_nor_rich_in_a_pipe():
    code = (
        "import sys; from shardlab.cli import main\n"
        f"main({EXAMPLE!r}, standalone_mode=False)\n"
        "loaded = {'jax', 'jaxlib', 'numpy', 'flax', 'rich'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_python_dash_m_runs_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "shardlab", "layout", "8x6", "--mesh", "x=0"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("[layout.invalid_size] The size of mesh axis 'x' is 0.\n")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize(
    "args", [EXAMPLE, [*EXAMPLE, "--device", "3"], ["completion", "bash"], ["layout", "--help"]]
)
def test_a_full_disk_under_standard_output_is_reported_in_a_line(args):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "shardlab", *args]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "standard output: No space left on device" in done.stderr
