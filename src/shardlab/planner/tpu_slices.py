"""Topologies: names of TPU slices, and what they stand for.

>>> slice = parse_tpu_slice("v5p-1024")
>>> slice.hardware, slice.shape, slice.n_chips, slice.n_devices
('tpu-v5p', (8, 8, 8), 512, 512)
>>> parse_tpu_slice("v5litepod-256") == parse_tpu_slice("v5e:16x16")
True
>>> parse_tpu_slice("tpu7x-8").n_chips, parse_tpu_slice("tpu7x-8").n_devices
(4, 8)

The names and shapes are MaxText's; the table beside says so, and what the numbers count.
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

_NAMED = re.compile(r"(?:tpu-)?([a-z][a-z0-9]*)-([0-9]{1,9})")
_SHAPED = re.compile(r"(?:tpu-)?([a-z][a-z0-9]*):([0-9]{1,6}(?:x[0-9]{1,6})+)")


@dataclass(frozen=True, kw_only=True)
class TpuSlice:
    """A slice of TPUs: chips in a grid."""

    name: str
    hardware: str
    shape: tuple[int, ...]
    n_devices: int

    @property
    def n_chips(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class _Kind:
    """The slices of one chip."""

    name: str
    hardware: str
    called: tuple[str, ...]
    number_per_chip: int
    devices_per_chip: int
    shapes: tuple[tuple[int, ...], ...]

    def topology(self, shape: tuple[int, ...]) -> TpuSlice:
        n_chips = prod(shape)
        name = f"{self.name}-{n_chips * self.number_per_chip}"
        return TpuSlice(
            name=name,
            hardware=self.hardware,
            shape=shape,
            n_devices=n_chips * self.devices_per_chip,
        )


def is_tpu_slice(text: object) -> bool:
    """Tell whether text has the form of a slice's name, `v5p-1024` or `v5e:16x16`, of a TPU."""
    if not isinstance(text, str):
        return False
    found = _NAMED.fullmatch(text.strip().lower()) or _SHAPED.fullmatch(text.strip().lower())
    return found is not None and found[1] in _by_call()


def parse_tpu_slice(text: str) -> TpuSlice:
    """Return the slice of a name, MaxText's or JAX's."""
    wanted = text.strip().lower()
    if shaped := _SHAPED.fullmatch(wanted):
        kind = _kind(shaped[1], text)
        shape = tuple(map(int, shaped[2].split("x")))
        for known in kind.shapes:
            if sorted(known) == sorted(shape):
                return kind.topology(known)
        raise _unknown(text, kind, prod(shape) * kind.number_per_chip, by_shape=True)
    if named := _NAMED.fullmatch(wanted):
        kind = _kind(named[1], text)
        for shape in kind.shapes:
            if prod(shape) * kind.number_per_chip == int(named[2]):
                return kind.topology(shape)
        raise _unknown(text, kind, int(named[2]))
    raise UnknownHardware(
        f"{short_repr(text)} is not the name of a slice.",
        fix="a name such as v5p-1024, or JAX's own, such as v5e:16x16.",
    )


@cache
def _by_call() -> dict[str, _Kind]:
    """Return the table, by every word that begins a name."""
    table = files("shardlab.planner").joinpath("tpu_slices.toml")
    data = tomllib.loads(table.read_text("utf-8"))
    kinds: dict[str, _Kind] = {}
    for name, chip in data.items():
        shapes = tuple(tuple(map(int, each.split("x"))) for each in chip.pop("shapes").split())
        kind = _Kind(name, shapes=shapes, **{**chip, "called": tuple(chip["called"])})
        kinds |= dict.fromkeys(kind.called, kind)
    return kinds


def _kind(word: str, text: str) -> _Kind:
    kinds = _by_call()
    if word in kinds:
        return kinds[word]
    near = nearest_name(word, kinds)
    near = near and kinds[near].name
    known = ", ".join(dict.fromkeys(kind.name for kind in kinds.values()))
    raise UnknownHardware(
        f"{short_repr(text)} names no TPU that has slices; there is {known}.",
        fix=text.strip().lower().replace(word, near, 1) + ", the nearest name."
        if near
        else "a name such as v5p-1024.",
    )


def _unknown(text: str, kind: _Kind, number: int, by_shape: bool = False) -> UnknownHardware:
    """Return the error with the slices next below and next above."""
    known = {prod(shape) * kind.number_per_chip: shape for shape in kind.shapes}
    below = max((each for each in known if each <= number), default=None)
    above = min((each for each in known if each >= number), default=None)
    near = dict.fromkeys(each for each in (below, above) if each is not None)
    shown = [
        f"{kind.name}:{'x'.join(map(str, known[each]))}" if by_shape else f"{kind.name}-{each}"
        for each in near
    ]
    return UnknownHardware(
        f"There is no slice {short_repr(text)}.", fix=f"{' or '.join(shown)}, the nearest there is."
    )
