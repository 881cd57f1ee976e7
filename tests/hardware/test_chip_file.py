"""Chip files of unknown origin: every invalid value is reported with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlab.errors import InvalidHardwareFile
from shardlab.hardware.chips import parse_hardware

LARGE = "0x" + "f" * 5_000  # Python parses it but cannot print it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"name = {LARGE}", "an integer of 20,000 bits"),
        (f"devices_per_chip = {LARGE}", "'devices_per_chip' is an integer of 20,000 bits"),
        (f"hbm_bytes = {LARGE}", "'hbm_bytes' is an integer of 20,000 bits"),
        ("torus_axes = 9", "'torus_axes' is 9"),
        ("pod = 0", "'pod' is 0"),
        ("aliases = 5", "'aliases' is 5"),
        ("hbm_bytes = nan", "'hbm_bytes' is nan"),
        ("a" + ".a" * 50_000 + " = 1", "a key has more than 30 parts"),
        ("a = " + "[" * 50_000, "nested too deeply"),
        ("#" * 2**20 + "#", "more than 1,048,576 bytes"),
    ],
)
def test_an_invalid_value_is_reported_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "chip.toml").write_text(f"like = 'tpu-v5p'\n{text}\n")
    with pytest.raises(InvalidHardwareFile) as caught:
        parse_hardware(tmp_path / "chip.toml")
    assert message in caught.value.what
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("like", ["[]", "{}", "5"])
def test_like_must_be_a_known_chip(tmp_path: Path, like: str) -> None:
    (tmp_path / "chip.toml").write_text(f"like = {like}\n")
    with pytest.raises(InvalidHardwareFile, match="Unknown chip"):
        parse_hardware(tmp_path / "chip.toml")


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
def test_byte_order_marks_and_windows_line_ends_are_accepted(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "chip.toml").write_bytes(mark + b'like = "h100"\r\npod = 7\r\n')
    assert parse_hardware(tmp_path / "chip.toml").pod == 7
