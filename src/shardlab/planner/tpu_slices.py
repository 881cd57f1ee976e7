"""TPU slices by name, such as v5p-1024 or v5e:16x16.

>>> tpu_slice = parse_tpu_slice("v5p-1024")
>>> tpu_slice.hardware, tpu_slice.shape, tpu_slice.n_chips, tpu_slice.n_devices
('tpu-v5p', (8, 8, 8), 512, 512)
>>> parse_tpu_slice("v5litepod-256") == parse_tpu_slice("v5e:16x16")
True
>>> parse_tpu_slice("tpu7x-8").n_chips, parse_tpu_slice("tpu7x-8").n_devices
(4, 8)

Names and shapes are those of MaxText; `tpu_slices.toml` has the table and its source.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownHardware, short_repr

_BY_COUNT = re.compile(r"(?:tpu-)?([a-z][a-z0-9]*)-([0-9]{1,9})")  # Cloud TPU and MaxText
_BY_SHAPE = re.compile(r"(?:tpu-)?([a-z][a-z0-9]*):([0-9]{1,6}(?:x[0-9]{1,6})+)")  # JAX


@dataclass(frozen=True, kw_only=True)
class TpuSlice:
    """A slice of TPUs: chips in a grid."""

    name: str
    hardware: str
    shape: tuple[int, ...]
    n_devices: int

    @property
    def n_chips(self) -> int:
        """The number of chips."""
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class TpuGeneration:
    """The slices of one TPU generation: one table of `tpu_slices.toml`."""

    name: str
    hardware: str
    called: tuple[str, ...]  # prefixes of slice names
    number_per_chip: int  # what the number in a name counts, per chip: TensorCores or chips
    devices_per_chip: int  # JAX devices
    shapes: tuple[tuple[int, ...], ...]

    def slice_of_shape(self, shape: tuple[int, ...]) -> TpuSlice:
        """Return the slice with this grid of chips."""
        n_chips = prod(shape)
        return TpuSlice(
            name=f"{self.name}-{n_chips * self.number_per_chip}",
            hardware=self.hardware,
            shape=shape,
            n_devices=n_chips * self.devices_per_chip,
        )


def is_tpu_slice(text: object) -> bool:
    """Return whether text has the form of a TPU slice: `v5p-1024` or `v5e:16x16`."""
    if not isinstance(text, str):
        return False
    name = text.strip().lower()
    match = _BY_COUNT.fullmatch(name) or _BY_SHAPE.fullmatch(name)
    return match is not None and match[1] in tpu_generations()


def parse_tpu_slice(text: str) -> TpuSlice:
    """Return the slice with a name in MaxText's form or in JAX's."""
    name = text.strip().lower()
    if match := _BY_SHAPE.fullmatch(name):
        generation = _find_generation(match[1], text)
        requested = tuple(map(int, match[2].split("x")))
        for shape in generation.shapes:
            # The order of the grid's dimensions does not matter: 4x8x4 is the slice 4x4x8.
            if sorted(shape) == sorted(requested):
                return generation.slice_of_shape(shape)
        number = prod(requested) * generation.number_per_chip
        raise _unknown_slice_error(text, generation, number, by_shape=True)
    if match := _BY_COUNT.fullmatch(name):
        generation = _find_generation(match[1], text)
        for shape in generation.shapes:
            if prod(shape) * generation.number_per_chip == int(match[2]):
                return generation.slice_of_shape(shape)
        raise _unknown_slice_error(text, generation, int(match[2]))
    raise UnknownHardware(
        f"{short_repr(text)} is not the name of a TPU slice.",
        fix="use a name such as v5p-1024, or JAX's form, such as v5e:16x16.",
    )


def missing_slice_note(hardware: str, n_chips: int) -> str | None:
    """Return a note if no slice has that many chips; None for other hardware.

    >>> missing_slice_note("tpu-v6e", 48)
    'There is no v6e slice of 48 chips; the nearest are v6e-32 and v6e-64.'
    >>> missing_slice_note("tpu-v6e", 64), missing_slice_note("h100", 48)
    (None, None)

    More chips than the largest slice are several slices.
    """
    generation = next((g for g in tpu_generations().values() if g.hardware == hardware), None)
    if generation is None:
        return None
    sizes = [prod(shape) for shape in generation.shapes]
    if n_chips in sizes or n_chips > max(sizes):
        return None
    nearest = _nearest_slices(generation, n_chips * generation.number_per_chip)
    names = " and ".join(f"{generation.name}-{number}" for number in nearest)
    return f"There is no {generation.name} slice of {n_chips:,} chips; the nearest are {names}."


@cache
def tpu_generations() -> dict[str, TpuGeneration]:
    """Return the table, by every prefix of a slice name."""
    table = files("shardlab.planner").joinpath("tpu_slices.toml")
    by_prefix: dict[str, TpuGeneration] = {}
    for name, entry in tomllib.loads(table.read_text("utf-8")).items():
        generation = TpuGeneration(
            name=name,
            hardware=entry["hardware"],
            called=tuple(entry["called"]),
            number_per_chip=entry["number_per_chip"],
            devices_per_chip=entry["devices_per_chip"],
            shapes=tuple(tuple(map(int, shape.split("x"))) for shape in entry["shapes"].split()),
        )
        by_prefix |= dict.fromkeys(generation.called, generation)
    return by_prefix


def _find_generation(prefix: str, text: str) -> TpuGeneration:
    generations = tpu_generations()
    if prefix in generations:
        return generations[prefix]
    names = ", ".join(dict.fromkeys(generation.name for generation in generations.values()))
    fix = "use a name such as v5p-1024."
    if nearest := nearest_name(prefix, generations):
        suggestion = text.strip().lower().replace(prefix, generations[nearest].name, 1)
        fix = f"Did you mean {suggestion!r}?"
    raise UnknownHardware(
        f"{short_repr(text)} does not name a known TPU. Known TPUs: {names}.", fix=fix
    )


def _unknown_slice_error(
    text: str, generation: TpuGeneration, number: int, by_shape: bool = False
) -> UnknownHardware:
    """Return the error with the next smaller and the next larger slice."""
    by_number = {prod(shape) * generation.number_per_chip: shape for shape in generation.shapes}
    suggestions = []
    for size in _nearest_slices(generation, number):
        shape = "x".join(map(str, by_number[size]))
        name = f"{generation.name}:{shape}" if by_shape else f"{generation.name}-{size}"
        suggestions.append(f"{name!r} ({prod(by_number[size]):,} chips, {shape})")
    counted = "" if generation.number_per_chip == 1 else ", two TensorCores per chip"
    return UnknownHardware(
        f"There is no TPU slice {short_repr(text)}.",
        where=f"slices of {generation.hardware}{counted}",
        fix=f"Did you mean {' or '.join(suggestions)}?",
    )


def _nearest_slices(generation: TpuGeneration, number: int) -> list[int]:
    """Return the numbers in the names of the next smaller and the next larger slice."""
    numbers = [prod(shape) * generation.number_per_chip for shape in generation.shapes]
    smaller = max((size for size in numbers if size <= number), default=None)
    larger = min((size for size in numbers if size >= number), default=None)
    return [size for size in dict.fromkeys((smaller, larger)) if size is not None]
