"""The mesh of a plan: mesh text in which one size may be -1, MaxText's names, and slices.

>>> parse_plan_mesh("fsdp=-1,tensor=8", n_devices=512).mesh
Mesh(fsdp=64, tensor=8)
>>> meant = parse_plan_mesh("ici_fsdp_parallelism=-1,ici_tensor=4,dcn_data=2", hardware="v5p-1024")
>>> meant.mesh, meant.dcn, meant.hardware
(Mesh(data=2, fsdp=128, tensor=4), {'data': 2}, 'tpu-v5p')
>>> parse_plan_mesh("v5e-256").mesh
Mesh(fsdp=256)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab._text.scanner import Scanner, syntax_error
from shardlab.errors import InvalidSize, InvalidType
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.planner.tpu_slices import TpuSlice, is_tpu_slice, parse_tpu_slice
from shardlab.sharding.mesh import MAX_DEVICES, Mesh, parse_mesh
from shardlab.sharding.shape import parse_size

_EXAMPLE = "write name=size pairs, such as fsdp=-1,tensor=8."
_SLICE = re.compile(r"(?:^|(?<=,))\s*([A-Za-z][\w-]*(?:-[0-9]+|:[0-9]+(?:x[0-9]+)+))\s*(?:,|$)")
_NEEDS_MORE = re.compile(r"[=:]\s*-1(?![0-9_])|(?:^|,)\s*(?:ici|dcn)_")
_MAXTEXT = re.compile(r"(ici|dcn)_(\w+?)(?:_parallelism)?")
# MaxText's mesh axes in its order (configs/base.yml and the map in utils/maxtext_utils.py); what
# its settings call pipeline is the axis stage
MAXTEXT_AXES = (
    *("diloco", "data", "stage", "fsdp", "fsdp_transpose", "sequence", "context"),
    *("context_usp_ulysses", "context_autoregressive", "tensor", "tensor_sequence"),
    *("expert", "autoregressive"),
)
_SETTINGS = {"pipeline": "stage", **{name: name for name in MAXTEXT_AXES}}


@dataclass(frozen=True, kw_only=True)
class PlanMesh:
    """A mesh; how much of each mesh axis goes between slices; the chip, where a slice was named."""

    mesh: Mesh
    dcn: Mapping[str, int] = field(default_factory=dict)
    hardware: Any = None
    tpu_slice: TpuSlice | None = None


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The sizes as they are written, -1 among them, and what there is to fill."""

    text: str
    ici: Mapping[str, int]
    dcn: Mapping[str, int]
    n_devices: int | None
    tpu_slice: TpuSlice | None


def parse_plan_mesh(mesh: Any, n_devices: int | None = None, hardware: Any = None) -> PlanMesh:
    """Return the mesh that is meant, of as many devices as there are.

    One size may be -1: it takes the devices that the others leave, of `n_devices` or of the slice
    that stands in the text or is the hardware. `ici_...` and `dcn_...` are MaxText's, in its order
    of axes; a slice alone is one axis fsdp, MaxText's default.
    """
    if isinstance(n_devices, bool):
        raise InvalidType(
            f"The number of devices is {n_devices}.", fix="a whole number, such as 8."
        )
    if n_devices is not None:
        n_devices = parse_size(n_devices, "the number of devices", at_least=1)
    topology = parse_tpu_slice(hardware) if is_tpu_slice(hardware) else None
    chip = topology.hardware if topology else hardware
    rest, named = _without_slice(mesh) if isinstance(mesh, str) else ("", None)
    if named is None and not (isinstance(mesh, str) and _NEEDS_MORE.search(mesh)):
        known = parse_mesh(mesh)
        _check(
            _Asked(
                text=str(known), ici=known.shape, dcn={}, n_devices=n_devices, tpu_slice=topology
            ),
            known,
        )
        return PlanMesh(mesh=known, dcn={}, hardware=chip, tpu_slice=topology)
    if named is not None:
        chip = _same_chip(named, topology, chip, mesh)
        topology = named
    pairs, is_maxtext = _pairs(rest, mesh)
    if not pairs and topology is not None:
        pairs = [("ici", "fsdp", -1)]
    asked = _Asked(
        text=mesh,
        ici=_part(pairs, "ici"),
        dcn=_part(pairs, "dcn"),
        n_devices=n_devices,
        tpu_slice=topology,
    )
    return _filled(asked, is_maxtext, chip)


def _without_slice(text: str) -> tuple[str, TpuSlice | None]:
    """Return the text without the name of a slice, and that slice."""
    found = _SLICE.search(text)
    if found is None:
        return text, None
    rest = text[: found.start()] + text[found.end() :]
    return rest.rstrip().removesuffix(","), parse_tpu_slice(found[1])


def _same_chip(named: TpuSlice, other: TpuSlice | None, chip: Any, text: str) -> Any:
    """Return the hardware, once text and hardware are known not to name different chips."""
    same = other is None or other == named
    if chip is None or (same and other is not None):
        return named.hardware
    own = isinstance(chip, Hardware) or not isinstance(chip, str) or chip.endswith(".toml")
    if same and (own or parse_hardware(chip).name == named.hardware):
        return chip
    raise InvalidSize(
        f"The mesh names the slice {named.name}, and the hardware is {chip!s:.80}.",
        where=f"mesh {text:.200}",
        fix=f"one of them; {named.name} is {named.hardware}.",
    )


def _pairs(rest: str, source: str) -> tuple[list[tuple[str, str, int]], bool]:
    """Return (ici or dcn, mesh axis, size) as written, and whether the names are MaxText's."""
    text = Scanner(rest, kind="mesh")
    pairs: list[tuple[str, str, int]] = []
    kinds: set[bool] = set()
    while not text.at_end:
        if (name := text.take_name()) is None:
            raise text.error("A mesh axis name was expected here.", fix=_EXAMPLE)
        part, axis, is_maxtext = _axis(name, text)
        kinds.add(is_maxtext)
        if any(pair[:2] == (part, axis) for pair in pairs):
            raise text.error(
                f"Mesh axis {axis!r:.80} is here a second time.", fix=_EXAMPLE, back=True
            )
        if len(kinds) > 1:
            what = "MaxText's names (ici_..., dcn_...) and plain ones are mixed."
            raise text.error(what, fix="ici_ or dcn_ before each name, or before none.", back=True)
        if not (text.take("=") or text.take(":")):
            raise text.error(f"'=' was expected after {name!r:.80}.", fix=_EXAMPLE)
        if (size := text.take_int()) is None:
            raise text.error(f"The size of mesh axis {name!r:.80} was expected here.", fix=_EXAMPLE)
        if size != -1 and not 1 <= size <= MAX_DEVICES:
            fix = f"a size from 1 to {MAX_DEVICES:,}, or -1 for what the others leave."
            raise InvalidSize(
                f"The size of mesh axis {name!r:.80} is {size}.",
                where=f"mesh {source:.200}",
                fix=fix,
            )
        pairs.append((part, axis, size))
        if not text.take(",") and not text.at_end:
            raise text.error("',' was expected here.", fix=_EXAMPLE)
    return pairs, True in kinds


def _axis(name: str, text: Scanner) -> tuple[str, str, bool]:
    """Return the part and the mesh axis of a name, and whether it is one of MaxText's settings."""
    found = _MAXTEXT.fullmatch(name)
    if found is None:
        return "ici", name, False
    if found[2] not in _SETTINGS:
        near = nearest_name(found[2], _SETTINGS)
        fix = f"{found[1]}_{near}_parallelism, the nearest name." if near else _EXAMPLE
        raise text.error(f"MaxText has no mesh axis {found[2]!r:.80}.", fix=fix, back=True)
    return found[1], _SETTINGS[found[2]], True


def _part(pairs: list[tuple[str, str, int]], part: str) -> dict[str, int]:
    return {axis: size for where, axis, size in pairs if where == part}


def _filled(asked: _Asked, is_maxtext: bool, chip: Any) -> PlanMesh:
    """Return the mesh with -1 filled in, each axis the product of its parts."""
    n_slice, n_slices = _sizes(asked)
    ici = _fill(asked.ici, n_slice, asked)
    dcn = _fill(asked.dcn, n_slices, asked)
    names = [*ici, *(name for name in dcn if name not in ici)]
    if is_maxtext:
        names.sort(key=MAXTEXT_AXES.index)
    mesh = Mesh((name, ici.get(name, 1) * dcn.get(name, 1)) for name in names)
    _check(asked, mesh, prod(dcn.values()))
    between = {name: size for name, size in dcn.items() if size > 1}
    return PlanMesh(mesh=mesh, dcn=between, hardware=chip, tpu_slice=asked.tpu_slice)


def _sizes(asked: _Asked) -> tuple[int | None, int | None]:
    """Return the devices of one slice and the number of slices, where they are known."""
    holes = {part: list(sizes.values()).count(-1) for part, sizes in _parts(asked)}
    if max(holes.values()) > 1 or (sum(holes.values()) > 1 and asked.tpu_slice is None):
        raise _point_at_holes(asked)
    ici, dcn = (prod(size for size in sizes.values() if size > 0) for _, sizes in _parts(asked))
    if asked.tpu_slice is not None:
        n_slice = asked.tpu_slice.n_devices
        return n_slice, (asked.n_devices or n_slice) // n_slice
    if asked.n_devices is None:
        if sum(holes.values()):
            raise _point_at_holes(asked)
        return None, None
    return (asked.n_devices // dcn, None) if holes["ici"] else (None, asked.n_devices // ici)


def _fill(sizes: Mapping[str, int], total: int | None, asked: _Asked) -> dict[str, int]:
    others = prod(size for size in sizes.values() if size > 0)
    if -1 not in sizes.values():
        return dict(sizes)
    assert total is not None
    if total < others or total % others:
        name = next(name for name, size in sizes.items() if size == -1)
        raise InvalidSize(
            f"Mesh axis {name!r:.80} is to take what is left, and the others do not divide "
            f"{total:,}: their product is {others:,}.",
            where=_where(asked),
            fix=f"other sizes whose product divides {total:,}.",
        )
    return {name: total // others if size == -1 else size for name, size in sizes.items()}


def _check(asked: _Asked, mesh: Mesh, n_slices: int = 1) -> None:
    """Refuse a mesh of another number of devices than there are."""
    topology, n = asked.tpu_slice, mesh.n_devices
    if asked.n_devices is not None and n != asked.n_devices:
        raise InvalidSize(
            f"The mesh has {n:,} devices, and there are {asked.n_devices:,}.",
            where=_where(asked),
            fix="-1 for one size, which then takes what the others leave.",
        )
    if topology is not None and n != topology.n_devices * n_slices and asked.n_devices is None:
        n_all = topology.n_devices * n_slices
        many = f"{n_slices} slices {topology.name} have" if n_slices > 1 else f"{topology.name} has"
        more = n // topology.n_devices
        slices = f"; dcn_data={more} and ici_ names for {more} slices" if more > 1 else ""
        raise InvalidSize(
            f"The mesh has {n:,} devices, and {many} {n_all:,}.",
            where=_where(asked),
            fix=f"-1 for one size, which then takes what the others leave{slices}.",
        )
    if topology is not None and n % topology.n_devices:
        raise InvalidSize(
            f"The mesh has {n:,} devices, which is no number of slices {topology.name}.",
            where=_where(asked),
            fix=f"a multiple of {topology.n_devices:,} devices.",
        )


def _parts(asked: _Asked) -> tuple[tuple[str, Mapping[str, int]], ...]:
    return ("ici", asked.ici), ("dcn", asked.dcn)


def _where(asked: _Asked) -> str:
    slice_ = f", slice {asked.tpu_slice.name}" if asked.tpu_slice else ""
    return f"mesh {asked.text:.200}{slice_}"


def _point_at_holes(asked: _Asked) -> Exception:
    """Return the error for a -1 that nothing says how to fill, pointing at the last one."""
    places = [found.span() for found in re.finditer(r"(?<=[=:])\s*-1(?![0-9_])", asked.text)]
    start, stop = places[-1]
    if len(places) > 1:
        what, fix = "One size may be -1; this is another.", "a size for all others."
    else:
        what = "-1 takes the devices that the others leave, and their number is not known."
        fix = "--devices 512, or the name of a slice: --hardware v5p-1024."
    return syntax_error(what, asked.text, start, stop, kind="mesh", fix=fix)
