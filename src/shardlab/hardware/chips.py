"""Hardware: a chip and the network between chips, from the table beside or from a person's file.

>>> chip = parse_hardware("tpu-v5e")
>>> chip.figure("link_bandwidth").value, chip.torus_axes, chip.makes_ring(16, 256)
(45000000000.0, 2, True)
>>> parse_hardware("v5p", {"link_bandwidth": 1e11}).figure("link_bandwidth").source
'given'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path

from shardlab.errors import InvalidType, UnknownFigure, UnknownHardware, short_repr
from shardlab.hardware.chip_file import Chip, check_figure, read_chip, read_table


@dataclass(frozen=True)
class Figure:
    """One number of a data sheet, in bytes, bytes/s, FLOP/s or seconds, and who says so."""

    name: str
    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of chip and how such chips are connected; `figures` are those of one device."""

    name: str
    title: str
    network: str  # "torus" (TPU, Trainium) or "switch" (NVLink domains in a fat tree)
    figures: Mapping[str, Figure]
    torus_axes: int = 1
    pod: int | None = None
    ring_multiple: int | None = None
    ring_slice: int = 1
    domain: int = 1
    devices_per_chip: int = 1
    longest_side: int | None = None  # the most chips along one torus axis, where it is published

    def figure(self, name: str, *, needed_for: str = "") -> Figure:
        """Return a figure; where nobody publishes it, say so and how to give one."""
        if name not in self.figures:
            error = UnknownFigure(
                f"There is no published figure {name!r} for {self.title}.",
                where=f"hardware {self.name}" + (f", {needed_for}" if needed_for else ""),
                fix=f'give your own: estimate("{self.name}", figures={{"{name}": ...}}), '
                f'or a TOML file with like = "{self.name}" and {name} = ....',
            )
            error.figure = name
            raise error
        return self.figures[name]

    def makes_ring(self, axis_size: int, slice_size: int) -> bool:
        """Return whether a mesh axis closes to a ring in a slice of that many devices."""
        if self.ring_multiple is None or axis_size % self.ring_multiple:
            return False
        return slice_size % (self.ring_slice * self.devices_per_chip) == 0


def parse_hardware(
    hardware: str | Path | Hardware, figures: Mapping[str, float] | None = None
) -> Hardware:
    """Return the hardware meant by a name (`h100`), or by the path of a TOML file.

    Figures given here replace those of the table.
    """
    if isinstance(hardware, Hardware):
        found = hardware
    elif not isinstance(hardware, (str, Path)):
        raise InvalidType(
            f"{short_repr(hardware)} is not hardware.", fix='a name such as "tpu-v5p".'
        )
    elif isinstance(hardware, Path) or hardware.endswith(".toml"):
        found = _of_chip(read_chip(Path(hardware), _table()))
    else:
        found = _of_chip(_named(hardware))
    given = {
        name: Figure(name, check_figure(name, value, "the figures given"), "given")
        for name, value in (figures or {}).items()
    }
    return replace(found, figures={**found.figures, **given})


def hardware_names() -> tuple[str, ...]:
    """Return the names in the table.

    >>> hardware_names()[:3]
    ('tpu-v4', 'tpu-v5e', 'tpu-v5p')
    """
    return tuple(_table())


@cache
def _table() -> dict[str, Chip]:
    return read_table(files("shardlab.hardware").joinpath("chips.toml").read_text("utf-8"))


def _named(name: str) -> Chip:
    wanted = "-".join(name.strip().lower().replace("_", " ").replace("-", " ").split())
    by_name = {alias: chip for chip in _table().values() for alias in (chip.name, *chip.aliases)}
    if wanted in by_name:
        return by_name[wanted]
    close = get_close_matches(wanted, by_name, n=1, cutoff=0.5)
    nearest = f"{by_name[close[0]].name!r}, the nearest name; or " if close else ""
    raise UnknownHardware(
        f"There is no hardware {name!r:.80}; there is {', '.join(_table())}.",
        fix=f"{nearest}your own figures in a TOML file, given by its path (my_chip.toml).",
    )


def _of_chip(chip: Chip) -> Hardware:
    """Return the figures of one device: of a chip with two devices, each has half."""
    figures = {}
    for name, (value, source) in chip.figures.items():
        if chip.devices_per_chip > 1 and name != "hop_latency":
            value /= chip.devices_per_chip
            source += f"; the part of one of a chip's {chip.devices_per_chip} devices"
        figures[name] = Figure(name, value, source)
    return Hardware(
        name=chip.name,
        title=chip.title,
        network=chip.network,
        figures=figures,
        torus_axes=chip.torus_axes,
        pod=chip.pod,
        ring_multiple=chip.ring_multiple,
        ring_slice=chip.ring_slice,
        domain=chip.domain,
        devices_per_chip=chip.devices_per_chip,
        longest_side=chip.longest_side,
    )
