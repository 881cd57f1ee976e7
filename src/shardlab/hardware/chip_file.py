"""The file of a chip: TOML read and checked, each mistake with its place.

like = "h100"               # start from a chip of the table; or give `network` and all figures
name = "our-h100"
nvlink_bandwidth = 3.7e11   # bytes/s, one direction
node_egress = { value = 2e11, source = "measured with nccl-tests" }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_regular_file
from shardlab._files.toml_reader import parse_toml
from shardlab.errors import InvalidHardwareFile, short_repr

# name -> its unit; what each is of is said in chips.toml
FIGURES = {
    "hbm_bytes": "bytes",
    "hbm_bandwidth": "bytes/s",
    "bf16_flops": "FLOP/s",
    "int8_flops": "FLOP/s",
    "fp8_flops": "FLOP/s",
    "link_bandwidth": "bytes/s",
    "nvlink_bandwidth": "bytes/s",
    "node_egress": "bytes/s",
    "dcn_bandwidth": "bytes/s",
    "hop_latency": "seconds",
}
NETWORKS = ("torus", "switch")
_COUNTS = (
    "pod",
    "longest_side",
    "ring_multiple",
    "ring_slice",
    "domain",
    "devices_per_chip",
    "torus_axes",
)
_MOST_AXES = 8  # of a torus; all ways to lay a mesh on them are tried
_MOST_COUNT = 2**31 - 1
_MOST_BYTES = 2**20  # a chip takes some hundreds
_WORDS = ("name", "title", "network", "like")
_KEYS = (*_WORDS, "aliases", *_COUNTS, *FIGURES)


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What a file says of one chip."""

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
    figures: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # value and source


def read_table(text: str) -> dict[str, Chip]:
    """Return the chips of shardlab's own table, by name."""
    data = tomllib.loads(text)
    sources = data.pop("sources")
    return {
        name: _chip({"name": name, **chip}, Chip(name=name, title=name), f"[{name}]", sources)
        for name, chip in data.items()
    }


def read_chip(path: Path, known: Mapping[str, Chip]) -> Chip:
    """Return the chip of a person's own file; `like` names the one that it starts from."""
    data = _load(path)
    like = data.get("like")
    if like is not None and (not isinstance(like, str) or like not in known):
        raise _wrong(
            f"'like' names {short_repr(like)}, which is not in the table", path, _near(like, known)
        )
    if like is None and "network" not in data:
        fix = 'network = "torus" or "switch", or like = "h100" to start from a known chip.'
        raise _wrong("Neither 'network' nor 'like' is given", path, fix)
    name = data.get("name", path.stem)
    start = Chip(name=name, title=name) if like is None else replace(known[like], aliases=())
    return _chip({"name": name, "title": name, **data}, start, str(path), {})


def check_figure(name: str, value: Any, where: str) -> float:
    """Return a figure as a number, or say what is wrong with it."""
    if name not in FIGURES:
        raise _wrong(f"There is no figure {name!r:.80}", where, _near(name, FIGURES))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
        fix = f"a number above 0, in {FIGURES[name]}, such as {_EXAMPLES[FIGURES[name]]}."
        raise _wrong(f"The figure {name!r} is {short_repr(value)}", where, fix)
    return float(value)


_EXAMPLES = {"bytes": "80e9", "bytes/s": "4.5e11", "FLOP/s": "9.9e14", "seconds": "1e-6"}


def _load(path: Path) -> dict[str, Any]:
    try:
        text = read_regular_file(path, _MOST_BYTES)
        if len(text) > _MOST_BYTES:
            raise _wrong(f"The file has more than {_MOST_BYTES:,} bytes", path, "a smaller file.")
        return parse_toml(text.decode("utf-8-sig"))
    except FileNotFoundError:
        fix = "check the path; a chip of the table is named without .toml."
        raise _wrong("There is no such file", path, fix) from None
    except OSError as error:
        raise _wrong(
            f"The file cannot be read ({error.strerror or error})", path, "another file."
        ) from None
    except RecursionError:
        raise _wrong("The file is nested too deeply", path, "tables without tables.") from None
    except ValueError as error:  # no TOML, no text, a number without end, no name of a file
        fix = "correct it there; a figure is a line such as nvlink_bandwidth = 3.7e11."
        raise _wrong(f"The file is not TOML: {error}", path, fix) from None


def _chip(data: Mapping[str, Any], start: Chip, where: str, sources: Mapping[str, str]) -> Chip:
    figures = dict(start.figures)
    changes: dict[str, Any] = {}
    for key, value in data.items():
        if key in FIGURES:
            figures[key] = _figure(key, value, where, sources)
        elif key in _COUNTS:
            changes[key] = _count(key, value, where)
        elif key == "aliases":
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise _wrong(
                    f"'aliases' is {short_repr(value)}", where, 'texts: aliases = ["h100"].'
                )
            changes[key] = tuple(value)
        elif key not in _WORDS:
            raise _wrong(f"There is no entry {key!r:.80}", where, _near(key, _KEYS))
        elif not isinstance(value, str):
            raise _wrong(f"{key!r} is {short_repr(value)}", where, f'text, such as {key} = "h100".')
        elif key != "like":
            changes[key] = value
    if changes.get("network", NETWORKS[0]) not in NETWORKS:
        fix = '"torus" (links to neighbours) or "switch" (NVLink domains).'
        raise _wrong(f"'network' is {changes['network']!r:.80}", where, fix)
    return replace(start, **changes, figures=figures)


def _figure(key: str, value: Any, where: str, sources: Mapping[str, str]) -> tuple[float, str]:
    if not isinstance(value, dict):
        return check_figure(key, value, where), where
    if set(value) - {"value", "source"} or "value" not in value:
        fix = f'{key} = {{ value = 1e9, source = "..." }}, or a plain number.'
        raise _wrong(f"The table of {key!r} has {', '.join(value) or 'nothing'}", where, fix)
    source = str(value.get("source", where))
    return check_figure(key, value["value"], where), sources.get(source, source)


def _count(key: str, value: Any, where: str) -> int:
    most = _MOST_AXES if key == "torus_axes" else _MOST_COUNT
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        fix = f"a whole number from 1 to {most:,}: {key} = 3."
        raise _wrong(f"{key!r} is {short_repr(value)}", where, fix)
    return value


def _near(name: Any, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    close = get_close_matches(
        name[:80] if isinstance(name, str) else "", list(known), n=1, cutoff=0.5
    )
    return f"{close[0]!r}, the nearest name." if close else f"one of {', '.join(known)}."


def _wrong(what: str, where: str | Path, fix: str) -> InvalidHardwareFile:
    return InvalidHardwareFile(f"{what}.", where=f"{where!s:.400}", fix=fix)
