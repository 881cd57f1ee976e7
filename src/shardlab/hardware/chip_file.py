"""Chip files: TOML with the figures of one chip, such as

like = "h100"               # start from a known chip; or set `network` and all figures
name = "our-h100"
nvlink_bandwidth = 3.7e11   # bytes/s, one direction
node_egress = { value = 2e11, source = "measured with nccl-tests" }
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_regular_file
from shardlab._files.toml_reader import parse_toml
from shardlab._text.nearest import unknown_name_text
from shardlab.errors import InvalidHardwareFile, short_repr
from shardlab.hardware.nccl_constants import architecture_names

# name -> unit; chips.toml explains each figure
FIGURE_UNITS = {
    "hbm_bytes": "bytes",
    "hbm_bandwidth": "bytes/s",
    "bf16_flops": "FLOP/s",
    "int8_flops": "FLOP/s",
    "fp8_flops": "FLOP/s",
    "link_bandwidth": "bytes/s",
    "nvlink_bandwidth": "bytes/s",
    "node_egress": "bytes/s",
    "dcn_bandwidth": "bytes/s",
    "die_bandwidth": "bytes/s",
    "hop_latency": "seconds",
    # What programs reach, calibrated on published runs
    "matmul_efficiency": "fraction",
    "narrow_efficiency": "fraction",
    "expert_efficiency": "fraction",
    "attention_efficiency": "fraction",
    "memory_efficiency": "fraction",
    "network_efficiency": "fraction",
    "overlap_loss": "fraction",
    "exposed_share": "fraction",
    "operation_overhead": "seconds",
    "collective_latency": "seconds",
    "step_overhead": "seconds",
    "step_time_error": "fraction",
    "default_time_error": "fraction",
    "expert_time_error": "fraction",
}
NETWORKS = ("torus", "switch")
NO_NCCL = "none"  # bandwidths of the data sheet, for a collective library other than NCCL
_COUNT_KEYS = (
    "pod",
    "longest_side",
    "ring_multiple",
    "ring_slice",
    "domain",
    "devices_per_chip",
    "torus_axes",
    "matmul_tile",
    "softmax_width",
    "tensor_core_generation",
)
_MAX_TORUS_AXES = 8  # all placements of a mesh on them are tried
_MAX_COUNT = 2**31 - 1
_MAX_FILE_BYTES = 2**20  # a chip file has some hundred bytes
_TEXT_KEYS = ("name", "title", "network", "nccl", "like")
_KEYS = (*_TEXT_KEYS, "aliases", *_COUNT_KEYS, *FIGURE_UNITS)


@dataclass(frozen=True, kw_only=True)
class Chip:
    """The content of a chip file."""

    name: str
    title: str
    network: str = "torus"
    aliases: tuple[str, ...] = ()
    torus_axes: int = 1
    pod: int | None = None
    ring_multiple: int | None = None
    ring_slice: int = 1
    domain: int = 1
    devices_per_chip: int = 1
    longest_side: int | None = None
    matmul_tile: int = 1
    nccl: str | None = None  # the architecture whose NCCL constants time collectives
    softmax_width: int = 64
    tensor_core_generation: int | None = None
    figures: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # value and source


def read_table(text: str) -> dict[str, Chip]:
    """Return the chips of chips.toml by name."""
    data = tomllib.loads(text)
    sources = data.pop("sources")
    return {
        name: _parse_chip({"name": name, **chip}, Chip(name=name, title=name), f"[{name}]", sources)
        for name, chip in data.items()
    }


def read_chip(path: Path, chips: Mapping[str, Chip]) -> Chip:
    """Return the chip of the user's file; its `like` names a known chip to start from."""
    data = _load_toml(path)
    like = data.get("like")
    if like is not None and (not isinstance(like, str) or like not in chips):
        raise _unknown_name_error("chip", like, chips, path, fix="set 'like' to a known chip.")
    if like is None and "network" not in data:
        fix = 'network = "torus" or "switch", or like = "h100" to start from a known chip.'
        raise _chip_file_error("Neither 'network' nor 'like' is set", path, fix)
    name = data.get("name", path.stem)
    start = Chip(name=name, title=name) if like is None else replace(chips[like], aliases=())
    return _parse_chip({"name": name, "title": name, **data}, start, str(path), {})


def check_figure(name: str, value: Any, where: str) -> float:
    """Return a figure as a float; raises `InvalidHardwareFile`."""
    if name not in FIGURE_UNITS:
        raise _unknown_name_error("figure", name, FIGURE_UNITS, where, fix="use a known figure.")
    # bool is a subclass of int; the comparison is False for nan, and 1e30 excludes inf.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
        fix = f"a number above 0, in {FIGURE_UNITS[name]}, such as {_EXAMPLES[FIGURE_UNITS[name]]}."
        raise _chip_file_error(f"The figure {name!r} is {short_repr(value)}", where, fix)
    return float(value)


_EXAMPLES = {
    "bytes": "80e9",
    "bytes/s": "4.5e11",
    "FLOP/s": "9.9e14",
    "seconds": "1e-6",
    "fraction": "0.8",
}


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        text = read_regular_file(path, _MAX_FILE_BYTES)
        if len(text) > _MAX_FILE_BYTES:
            raise _chip_file_error(
                f"The file has more than {_MAX_FILE_BYTES:,} bytes", path, "a smaller file."
            )
        return parse_toml(text.decode("utf-8-sig"))
    except FileNotFoundError:
        fix = "check the path; known chips are named without .toml."
        raise _chip_file_error("There is no such file", path, fix) from None
    except OSError as error:
        raise _chip_file_error(
            f"The file cannot be read ({error.strerror or error})", path, "another file."
        ) from None
    except RecursionError:
        raise _chip_file_error("The file is nested too deeply", path, "a flat table.") from None
    except (
        ValueError
    ) as error:  # not TOML, not UTF-8, an integer of too many digits, an invalid path
        fix = "fix it there; a figure is a line such as nvlink_bandwidth = 3.7e11."
        raise _chip_file_error(f"The file is not TOML: {error}", path, fix) from None


def _parse_chip(
    data: Mapping[str, Any], start: Chip, where: str, sources: Mapping[str, str]
) -> Chip:
    # Every key is checked, also unknown ones: a misspelled figure must not silently leave the
    # value of the chip that `like` names.
    figures = dict(start.figures)
    changes: dict[str, Any] = {}
    for key, value in data.items():
        if key in FIGURE_UNITS:
            figures[key] = _parse_figure(key, value, where, sources)
        elif key in _COUNT_KEYS:
            changes[key] = _parse_count(key, value, where)
        elif key == "aliases":
            if not isinstance(value, list) or not all(isinstance(alias, str) for alias in value):
                raise _chip_file_error(
                    f"'aliases' is {short_repr(value)}",
                    where,
                    'a list of strings: aliases = ["h100"].',
                )
            changes[key] = tuple(value)
        elif key not in _TEXT_KEYS:
            raise _unknown_name_error("key", key, _KEYS, where, fix="use a known key.")
        elif not isinstance(value, str):
            raise _chip_file_error(
                f"{key!r} is {short_repr(value)}", where, f'a string, such as {key} = "h100".'
            )
        elif key == "nccl":
            changes[key] = _parse_architecture(value, where)
        elif key != "like":
            changes[key] = value
    if changes.get("network", NETWORKS[0]) not in NETWORKS:
        fix = '"torus" (links to neighbors) or "switch" (NVLink domains).'
        raise _chip_file_error(f"'network' is {changes['network']!r:.80}", where, fix)
    return replace(start, **changes, figures=figures)


def _parse_figure(
    key: str, value: Any, where: str, sources: Mapping[str, str]
) -> tuple[float, str]:
    if not isinstance(value, dict):
        return check_figure(key, value, where), where
    if set(value) - {"value", "source"} or "value" not in value:
        fix = f'{key} = {{ value = 1e9, source = "..." }}, or a plain number.'
        raise _chip_file_error(
            f"The table of {key!r} has {', '.join(value) or 'nothing'}", where, fix
        )
    source = str(value.get("source", where))
    return check_figure(key, value["value"], where), sources.get(source, source)


def _parse_count(key: str, value: Any, where: str) -> int:
    max_count = _MAX_TORUS_AXES if key == "torus_axes" else _MAX_COUNT
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= max_count:
        fix = f"an integer from 1 to {max_count:,}: {key} = 3."
        raise _chip_file_error(f"{key!r} is {short_repr(value)}", where, fix)
    return value


def _parse_architecture(value: str, where: str) -> str | None:
    names = (*architecture_names(), NO_NCCL)
    if value not in names:
        fix = f"the architecture of the GPU; {NO_NCCL!r} for a library other than NCCL."
        raise _unknown_name_error("NCCL architecture", value, names, where, fix=fix)
    return None if value == NO_NCCL else value


def _unknown_name_error(
    kind: str, name: object, names: Iterable[str], where: str | Path, *, fix: str
) -> InvalidHardwareFile:
    message = unknown_name_text(kind, name, names)
    return InvalidHardwareFile(message, where=f"{where!s:.400}", fix=fix)


def _chip_file_error(message: str, where: str | Path, fix: str) -> InvalidHardwareFile:
    return InvalidHardwareFile(f"{message}.", where=f"{where!s:.400}", fix=fix)
