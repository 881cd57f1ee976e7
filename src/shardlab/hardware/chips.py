"""Hardware: a chip and the network between chips, from chips.toml or from the user's file.

>>> chip = parse_hardware("tpu-v5e")
>>> chip.figure("link_bandwidth").value, chip.torus_axes, chip.makes_ring(16, 256)
(45000000000.0, 2, True)
>>> parse_hardware("v5p", {"link_bandwidth": 1e11}).figure("link_bandwidth").source
'set by the user'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidType, UnknownFigure, UnknownHardware, short_repr
from shardlab.hardware.chip_file import FIGURE_UNITS, Chip, check_figure, read_chip, read_table


@dataclass(frozen=True)
class Figure:
    """One number of a data sheet, in bytes, bytes/s, FLOP/s or seconds, with its source."""

    name: str
    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of chip and the network between them; `figures` are per device."""

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
    longest_side: int | None = None  # the most chips along one torus axis, if published
    matmul_tile: int = 1  # operands of matrix products are padded to multiples of it
    nccl: str | None = None  # the architecture in nccl.toml; None: bandwidths of the data sheet
    softmax_width: int = 64  # the softmax of a score takes as long as products of such a head
    tensor_core_generation: int | None = None  # of NVIDIA

    def figure(self, name: str, *, needed_for: str = "") -> Figure:
        """Return a figure; raises `UnknownFigure` if the vendor does not publish it."""
        if name not in self.figures:
            error = UnknownFigure(
                f"There is no published figure {name!r} for {self.title}.",
                where=f"hardware {self.name}" + (f", {needed_for}" if needed_for else ""),
                fix=f'pass your own: estimate("{self.name}", figures={{"{name}": ...}}), '
                f'or a TOML file with like = "{self.name}" and {name} = ....',
            )
            error.figure = name
            raise error
        return self.figures[name]

    def makes_ring(self, axis_size: int, slice_size: int) -> bool:
        """Return whether a mesh axis has wraparound links in a slice of `slice_size` devices."""
        # TPU v4 and v5p join cubes of 4x4x4 chips by optical switches; v5e and v6e have wraparound
        # links only along full axes of 16. Other slices are lines.
        if self.ring_multiple is None or axis_size % self.ring_multiple:
            return False
        return slice_size % (self.ring_slice * self.devices_per_chip) == 0


def parse_hardware(
    hardware: str | Path | Hardware, figures: Mapping[str, float] | None = None
) -> Hardware:
    """Return hardware by name (`h100`), or from the path of a TOML file.

    `figures` override those of the table or file.
    """
    if isinstance(hardware, Hardware):
        chip = hardware
    elif not isinstance(hardware, (str, Path)):
        raise InvalidType(
            f"{short_repr(hardware)} is not hardware.", fix='a name such as "tpu-v5p".'
        )
    elif isinstance(hardware, Path) or hardware.endswith(".toml"):
        chip = _device_figures(read_chip(Path(hardware), _chip_table()))
    else:
        chip = _device_figures(_find_chip(hardware))
    overrides = {
        name: Figure(name, check_figure(name, value, "the figures argument"), "set by the user")
        for name, value in (figures or {}).items()
    }
    return replace(chip, figures={**chip.figures, **overrides})


def hardware_names() -> tuple[str, ...]:
    """Return the names of all chips in the table.

    >>> hardware_names()[:3]
    ('tpu-v4', 'tpu-v5e', 'tpu-v5p')
    """
    return tuple(_chip_table())


@cache
def _chip_table() -> dict[str, Chip]:
    return read_table(files("shardlab.hardware").joinpath("chips.toml").read_text("utf-8"))


def _find_chip(name: str) -> Chip:
    # "TPU v5p", "tpu_v5p" and "tpu-v5p" are the same name.
    normalized = "-".join(name.strip().lower().replace("_", " ").replace("-", " ").split())
    by_name = {
        alias: chip for chip in _chip_table().values() for alias in (chip.name, *chip.aliases)
    }
    if normalized in by_name:
        return by_name[normalized]
    nearest = nearest_name(normalized, by_name)
    suggestion = f" Did you mean {by_name[nearest].name!r}?" if nearest else ""
    raise UnknownHardware(
        f"Unknown hardware {short_repr(name)}.{suggestion} Known: {', '.join(_chip_table())}.",
        fix="a known name, or the path of a TOML file with your own figures (my_chip.toml).",
    )


def _device_figures(chip: Chip) -> Hardware:
    """Return a chip with its figures divided by its number of JAX devices."""
    figures = {}
    for name, (value, source) in chip.figures.items():
        # TPU7x shows two JAX devices per chip; they share memory, FLOP/s and links, but neither
        # latencies nor the fractions of a peak that programs reach. `die_bandwidth` is theirs.
        is_shared = FIGURE_UNITS[name] not in ("seconds", "fraction") and name != "die_bandwidth"
        if chip.devices_per_chip > 1 and is_shared:
            value /= chip.devices_per_chip
            source += f"; divided by the {chip.devices_per_chip} devices of a chip"
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
        matmul_tile=chip.matmul_tile,
        nccl=chip.nccl,
        softmax_width=chip.softmax_width,
        tensor_core_generation=chip.tensor_core_generation,
    )
