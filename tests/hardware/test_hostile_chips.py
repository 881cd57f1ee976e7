"""A chip's file that somebody else wrote: each wrong value is told with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlab.errors import InvalidHardwareFile
from shardlab.hardware.chips import parse_hardware

LARGE = "0x" + "f" * 5_000  # which Python reads, and refuses to write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"name = {LARGE}", "a whole number of 20,000 bits"),
        (f"devices_per_chip = {LARGE}", "'devices_per_chip' is a whole number of 20,000 bits"),
        (f"hbm_bytes = {LARGE}", "'hbm_bytes' is a whole number of 20,000 bits"),
        ("torus_axes = 9", "'torus_axes' is 9"),
        ("pod = 0", "'pod' is 0"),
        ("aliases = 5", "'aliases' is 5"),
        ("hbm_bytes = nan", "'hbm_bytes' is nan"),
        ("a" + ".a" * 50_000 + " = 1", "a key has more than 30 parts"),
        ("a = " + "[" * 50_000, "nested too deeply"),
        ("#" * 2**20 + "#", "more than 1,048,576 bytes"),
    ],
)
def test_a_wrong_value_is_told_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "chip.toml").write_text(f"like = 'tpu-v5p'\n{text}\n")
    with pytest.raises(InvalidHardwareFile) as caught:
        parse_hardware(tmp_path / "chip.toml")
    assert said in caught.value.what
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("like", ["[]", "{}", "5"])
def test_a_chip_is_like_a_name(tmp_path: Path, like: str) -> None:
    (tmp_path / "chip.toml").write_text(f"like = {like}\n")
    with pytest.raises(InvalidHardwareFile, match="'like' names"):
        parse_hardware(tmp_path / "chip.toml")


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
def test_marks_and_lines_of_windows_are_read_over(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "chip.toml").write_bytes(mark + b'like = "h100"\r\npod = 7\r\n')
    assert parse_hardware(tmp_path / "chip.toml").pod == 7
