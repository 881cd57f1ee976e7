"""The mesh of a plan: mesh text in which one size may be -1, MaxText's axis names, TPU slices.

>>> parse_plan_mesh("fsdp=-1,tensor=8", n_devices=512).mesh
Mesh(fsdp=64, tensor=8)
>>> text = "ici_fsdp_parallelism=-1,ici_tensor=4,dcn_data=2"
>>> multislice = parse_plan_mesh(text, hardware="v5p-1024")
>>> multislice.mesh, multislice.dcn, multislice.hardware
(Mesh(data=2, fsdp=128, tensor=4), {'data': 2}, 'tpu-v5p')
>>> parse_plan_mesh("v5e-256").mesh
Mesh(fsdp=256)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from shardlab._text.nearest import nearest_name
from shardlab._text.scanner import Scanner, syntax_error
from shardlab.errors import InvalidSize, InvalidType
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.planner.tpu_slices import TpuSlice, is_tpu_slice, parse_tpu_slice
from shardlab.sharding.mesh import MAX_DEVICES, Mesh, parse_mesh
from shardlab.sharding.shape import parse_size

_EXAMPLE = "write name=size pairs, such as fsdp=-1,tensor=8."
_SLICE = re.compile(r"(?:^|(?<=,))\s*([A-Za-z][\w-]*(?:-[0-9]+|:[0-9]+(?:x[0-9]+)+))\s*(?:,|$)")
_EXTENDED_SYNTAX = re.compile(r"[=:]\s*-1(?![0-9_])|(?:^|,)\s*(?:ici|dcn)_")
_MAXTEXT_NAME = re.compile(r"(ici|dcn)_(\w+?)(?:_parallelism)?")
# MaxText's mesh axes in its order (configs/base.yml and the map in utils/maxtext_utils.py). The
# order matters: it is the order in which devices are assigned.
MAXTEXT_AXES = (
    *("diloco", "data", "stage", "fsdp", "fsdp_transpose", "sequence", "context"),
    *("context_usp_ulysses", "context_autoregressive", "tensor", "tensor_sequence"),
    *("expert", "autoregressive"),
)
# MaxText's setting ici_pipeline_parallelism sizes the mesh axis `stage`.
_MAXTEXT_SETTINGS = {"pipeline": "stage", **{name: name for name in MAXTEXT_AXES}}


@dataclass(frozen=True, kw_only=True)
class PlanMesh:
    """A mesh; the factor of each mesh axis that spans slices (DCN); the chip, if it is known."""

    mesh: Mesh
    dcn: Mapping[str, int] = field(default_factory=dict)
    hardware: Any = None
    tpu_slice: TpuSlice | None = None


@dataclass(frozen=True, kw_only=True)
class _MeshRequest:
    """The sizes as written, -1 among them, and the number of devices to fill."""

    text: str
    ici: Mapping[str, int]
    dcn: Mapping[str, int]
    n_devices: int | None
    tpu_slice: TpuSlice | None

    @property
    def networks(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        return self.ici, self.dcn

    @property
    def where(self) -> str:
        slice_text = f", slice {self.tpu_slice.name}" if self.tpu_slice else ""
        return f"mesh {self.text:.200}{slice_text}"


class _AxisSize(NamedTuple):
    """One `name=size` of the text."""

    network: str  # "ici" within a slice, "dcn" between slices
    axis: str
    size: int


def parse_plan_mesh(mesh: Any, n_devices: int | None = None, hardware: Any = None) -> PlanMesh:
    """Return the mesh, with as many devices as the request says.

    One size may be -1: it takes the devices that the other sizes leave, out of `n_devices` or of
    the slice that the text or the hardware names. `ici_...` and `dcn_...` are MaxText's names, with
    MaxText's order of axes. A slice alone is one mesh axis fsdp, which is MaxText's default.
    """
    if isinstance(n_devices, bool):
        raise InvalidType(
            f"The number of devices is {n_devices}.", fix="use a whole number, such as 8."
        )
    if n_devices is not None:
        n_devices = parse_size(n_devices, "the number of devices", at_least=1)
    # "v5p-1024" as hardware names a chip and a number of devices, "tpu-v5p" only a chip.
    tpu_slice = parse_tpu_slice(hardware) if is_tpu_slice(hardware) else None
    chip = tpu_slice.hardware if tpu_slice else hardware
    rest, slice_in_text = _split_off_slice(mesh) if isinstance(mesh, str) else ("", None)
    # Without -1, MaxText names or a slice it is a plain mesh: all its forms are for parse_mesh.
    if slice_in_text is None and not (isinstance(mesh, str) and _EXTENDED_SYNTAX.search(mesh)):
        plain = parse_mesh(mesh)
        request = _MeshRequest(
            text=str(plain), ici=plain.shape, dcn={}, n_devices=n_devices, tpu_slice=tpu_slice
        )
        _check_device_count(request, plain)
        return PlanMesh(mesh=plain, dcn={}, hardware=chip, tpu_slice=tpu_slice)
    if slice_in_text is not None:
        chip = _resolve_chip(slice_in_text, tpu_slice, chip, mesh)
        tpu_slice = slice_in_text
    sizes, is_maxtext = _parse_sizes(rest, mesh)
    if not sizes and tpu_slice is not None:
        sizes = [_AxisSize("ici", "fsdp", -1)]
    request = _MeshRequest(
        text=mesh,
        ici={entry.axis: entry.size for entry in sizes if entry.network == "ici"},
        dcn={entry.axis: entry.size for entry in sizes if entry.network == "dcn"},
        n_devices=n_devices,
        tpu_slice=tpu_slice,
    )
    return _build_mesh(request, is_maxtext, chip)


def _split_off_slice(text: str) -> tuple[str, TpuSlice | None]:
    """Return the text without the name of a slice, and that slice."""
    match = _SLICE.search(text)
    if match is None:
        return text, None
    rest = text[: match.start()] + text[match.end() :]
    return rest.rstrip().removesuffix(","), parse_tpu_slice(match[1])


def _resolve_chip(
    slice_in_text: TpuSlice, hardware_slice: TpuSlice | None, chip: Any, text: str
) -> Any:
    """Return the hardware, or raise if mesh text and hardware name different chips."""
    is_same = hardware_slice is None or hardware_slice == slice_in_text
    if chip is None or (is_same and hardware_slice is not None):
        return slice_in_text.hardware
    # The user's own figures (a file or an object) may describe the same chip under another name.
    is_custom = isinstance(chip, Hardware) or not isinstance(chip, str) or chip.endswith(".toml")
    if is_same and (is_custom or parse_hardware(chip).name == slice_in_text.hardware):
        return chip
    raise InvalidSize(
        f"The mesh names the slice {slice_in_text.name}, but the hardware is {chip!s:.80}.",
        where=f"mesh {text:.200}",
        fix=f"name only one of them; {slice_in_text.name} consists of {slice_in_text.hardware}.",
    )


def _parse_sizes(rest: str, source: str) -> tuple[list[_AxisSize], bool]:
    """Return the sizes as written, and whether the names are MaxText's."""
    text = Scanner(rest, kind="mesh")
    sizes: list[_AxisSize] = []
    styles: set[bool] = set()
    while not text.at_end:
        if (name := text.take_name()) is None:
            raise text.error("A mesh axis name was expected here.", fix=_EXAMPLE)
        network, axis, is_maxtext = _parse_axis_name(name, text)
        styles.add(is_maxtext)
        # The same axis may have an ICI and a DCN size: they multiply.
        if any((entry.network, entry.axis) == (network, axis) for entry in sizes):
            raise text.error(f"Mesh axis {axis!r:.80} is repeated.", fix=_EXAMPLE, back=True)
        if len(styles) > 1:
            raise text.error(
                "MaxText's names (ici_..., dcn_...) and plain names are mixed.",
                fix="write ici_ or dcn_ before every name, or before none.",
                back=True,
            )
        if not (text.take("=") or text.take(":")):
            raise text.error(f"'=' was expected after {name!r:.80}.", fix=_EXAMPLE)
        if (size := text.take_int()) is None:
            raise text.error(f"The size of mesh axis {name!r:.80} was expected here.", fix=_EXAMPLE)
        if size != -1 and not 1 <= size <= MAX_DEVICES:
            raise InvalidSize(
                f"The size of mesh axis {name!r:.80} is {size}.",
                where=f"mesh {source:.200}",
                fix=f"use a size from 1 to {MAX_DEVICES:,}, or -1 for the remaining devices.",
            )
        sizes.append(_AxisSize(network, axis, size))
        if not text.take(",") and not text.at_end:
            raise text.error("',' was expected here.", fix=_EXAMPLE)
    return sizes, True in styles


def _parse_axis_name(name: str, text: Scanner) -> tuple[str, str, bool]:
    """Return the network and the mesh axis of a name, and whether it is a MaxText setting."""
    match = _MAXTEXT_NAME.fullmatch(name)
    if match is None:
        return "ici", name, False
    network, setting = match[1], match[2]
    if setting not in _MAXTEXT_SETTINGS:
        suggestion = nearest_name(setting, _MAXTEXT_SETTINGS)
        fix = f"Did you mean '{network}_{suggestion}_parallelism'?" if suggestion else _EXAMPLE
        raise text.error(f"MaxText has no mesh axis {setting!r:.80}.", fix=fix, back=True)
    return network, _MAXTEXT_SETTINGS[setting], True


def _build_mesh(request: _MeshRequest, is_maxtext: bool, chip: Any) -> PlanMesh:
    """Return the mesh with -1 filled in; the size of an axis is the product of ICI and DCN."""
    n_slice_devices, n_slices = _device_counts(request)
    ici = _fill_size(request.ici, n_slice_devices, request)
    dcn = _fill_size(request.dcn, n_slices, request)
    names = [*ici, *(name for name in dcn if name not in ici)]
    if is_maxtext:
        names.sort(key=MAXTEXT_AXES.index)
    mesh = Mesh((name, ici.get(name, 1) * dcn.get(name, 1)) for name in names)
    _check_device_count(request, mesh, prod(dcn.values()))
    # A DCN size of 1 spans no slices, so communication over the axis stays on ICI.
    dcn_factors = {name: size for name, size in dcn.items() if size > 1}
    return PlanMesh(mesh=mesh, dcn=dcn_factors, hardware=chip, tpu_slice=request.tpu_slice)


def _device_counts(request: _MeshRequest) -> tuple[int | None, int | None]:
    """Return the devices of one slice and the number of slices; None if not known or not needed."""
    ici_holes, dcn_holes = (list(sizes.values()).count(-1) for sizes in request.networks)
    # One -1 within a slice and one between slices can both be filled only if the size of a slice
    # is known, because n_devices alone has many factorizations.
    if max(ici_holes, dcn_holes) > 1 or (ici_holes + dcn_holes > 1 and request.tpu_slice is None):
        raise _unfilled_size_error(request)
    ici_product, dcn_product = (
        prod(size for size in sizes.values() if size > 0) for sizes in request.networks
    )
    if request.tpu_slice is not None:
        n_slice_devices = request.tpu_slice.n_devices
        return n_slice_devices, (request.n_devices or n_slice_devices) // n_slice_devices
    if request.n_devices is None:
        if ici_holes + dcn_holes:
            raise _unfilled_size_error(request)
        return None, None
    if ici_holes:
        return request.n_devices // dcn_product, None
    return None, request.n_devices // ici_product


def _fill_size(
    sizes: Mapping[str, int], total: int | None, request: _MeshRequest
) -> dict[str, int]:
    if -1 not in sizes.values():
        return dict(sizes)
    assert total is not None
    product = prod(size for size in sizes.values() if size > 0)
    if total < product or total % product:
        name = next(name for name, size in sizes.items() if size == -1)
        raise InvalidSize(
            f"Mesh axis {name!r:.80} has size -1, but {total:,} devices are not divisible by "
            f"{product:,}, the product of the other sizes.",
            where=request.where,
            fix=f"choose the other sizes so that their product divides {total:,}.",
        )
    return {name: total // product if size == -1 else size for name, size in sizes.items()}


def _check_device_count(request: _MeshRequest, mesh: Mesh, n_slices: int = 1) -> None:
    """Raise if the mesh does not have the number of devices that was requested."""
    tpu_slice, n_mesh = request.tpu_slice, mesh.n_devices
    if request.n_devices is not None and n_mesh != request.n_devices:
        raise InvalidSize(
            f"The mesh has {n_mesh:,} devices, but {request.n_devices:,} were requested.",
            where=request.where,
            fix="use -1 for one size: it takes the remaining devices.",
        )
    if tpu_slice is None:
        return
    n_available = tpu_slice.n_devices * n_slices
    if n_mesh != n_available and request.n_devices is None:
        hardware = f"{n_slices} slices {tpu_slice.name} have" if n_slices > 1 else (
            f"{tpu_slice.name} has"
        )  # fmt: skip
        n_needed = n_mesh // tpu_slice.n_devices
        multislice = f"; or dcn_data={n_needed} and ici_ names for {n_needed} slices"
        raise InvalidSize(
            f"The mesh has {n_mesh:,} devices, but {hardware} {n_available:,}.",
            where=request.where,
            fix="use -1 for one size: it takes the remaining devices"
            f"{multislice if n_needed > 1 else ''}.",
        )
    if n_mesh % tpu_slice.n_devices:
        raise InvalidSize(
            f"The mesh has {n_mesh:,} devices, which is not a multiple of the "
            f"{tpu_slice.n_devices:,} devices of slice {tpu_slice.name}.",
            where=request.where,
            fix=f"use a multiple of {tpu_slice.n_devices:,} devices.",
        )


def _unfilled_size_error(request: _MeshRequest) -> Exception:
    """Return the error for a -1 that cannot be filled, pointing at the last one."""
    spans = [match.span() for match in re.finditer(r"(?<=[=:])\s*-1(?![0-9_])", request.text)]
    start, stop = spans[-1]
    if len(spans) > 1:
        message, fix = "Only one size may be -1.", "give a size for the others."
    else:
        message = "-1 takes the remaining devices, but the number of devices is not known."
        fix = "add --devices 512, or name a slice: --hardware v5p-1024."
    return syntax_error(message, request.text, start, stop, kind="mesh", fix=fix)
