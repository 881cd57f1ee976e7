"""MaxText's sharding JSON: `named_shardings.json` and `logical_shardings.json` of its dumps.

>>> data = {".params/['params']/['layers']/['wo']": {"partition_spec": [None, "tensor"],
...     "shape": [8, 4], "mesh": {"axis_names": ["tensor"], "shape": {"tensor": 2}}}}
>>> one = read_sharding_dump(data, "named_shardings.json", InvalidModel).entries[0]
>>> one.path, one.spec, one.shape
('layers/wo', Spec(None, 'tensor'), (8, 4))

One entry for each array of the train state, by JAX's names of tree paths: parameters under
`.params`, what the optimizer keeps under `.opt_state`. The files have shapes, but no dtypes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_bounded_text
from shardlab._files.json_reader import reject_duplicate_keys
from shardlab.errors import InvalidModel, PlanError, short_repr
from shardlab.planner.tensor_group import Tensor, group_tensors
from shardlab.planner.model import Model
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.spec import Spec

_KEY = re.compile(r"\['((?:[^'\\]|\\.)*)'\]|\[\"([^\"]*)\"\]|\[([^\]'\"]*)\]|\.?([^/\[\]]+)")
_NOT_PARAMETERS = ("opt_state", "optimizer", "step", "rngs", "rng")
_MOST, _MOST_BYTES = 2**62, 64_000_000
_FIX = "a file as MaxText's tests/utils/sharding_dump.py writes it."


@dataclass(frozen=True)
class ArraySharding:
    """One array: of which parameter, under which name, and its spec or its logical axes."""

    path: str  # of the parameter, as decoder/layers/mlp/wi_0/kernel
    name: str  # "parameter", or the optimizer's "mu", "nu", ...
    spec: Spec
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class ShardingDump:
    """A whole file; `mesh` is None for logical names, which a mesh does not have."""

    entries: tuple[ArraySharding, ...]
    mesh: tuple[tuple[str, int], ...] | None

    @property
    def mesh_text(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.mesh or ())

    @property
    def parameters(self) -> tuple[ArraySharding, ...]:
        return tuple(entry for entry in self.entries if entry.name == "parameter")


def is_sharding_dump(data: Any) -> bool:
    """Tell whether data looks like one of MaxText's files: entries with a partition_spec."""
    return (
        isinstance(data, Mapping)
        and bool(data)
        and any(isinstance(each, Mapping) and "partition_spec" in each for each in data.values())
    )


def read_sharding_dump(data: Any, where: str, error: type[PlanError]) -> ShardingDump:
    """Return what a file says, each mistake with its place, as an error of that kind."""
    if not is_sharding_dump(data):
        raise error("The file holds no shardings as MaxText writes them.", where=where, fix=_FIX)
    entries: list[ArraySharding] = []
    mesh: tuple[tuple[str, int], ...] | None = None
    for text, entry in data.items():
        place = f"{where}, at {text[:120]!r}"
        if not isinstance(entry, Mapping) or "partition_spec" not in entry:
            raise error(f"{short_repr(entry)} is no sharding of an array.", where=place, fix=_FIX)
        spec, shape = _spec(entry, place, error), _shape(entry, place, error)
        found = _mesh(entry, place, error)
        if mesh is not None and found is not None and found != mesh:
            raise error("Two arrays of the file lie on two meshes.", where=place, fix=_FIX)
        mesh = found or mesh
        named = _named(tuple(_keys(text)))
        if named is not None:
            entries.append(ArraySharding(*named, spec, shape))
    if not any(entry.name == "parameter" for entry in entries):
        raise error("The file has no parameters: no path with 'params'.", where=where, fix=_FIX)
    return ShardingDump(tuple(entries), mesh)


def load_sharding_dump(file: Path) -> Model:
    """Return the model of `named_shardings.json`, with the logical names that lie beside it."""
    beside = file.parent / "logical_shardings.json"
    logical = _read(beside) if beside.is_file() else None
    return model_from_sharding_dump(_read(file), str(file), logical)


def _read(file: Path) -> Any:
    try:
        return json.loads(
            read_bounded_text(file, _MOST_BYTES), object_pairs_hook=reject_duplicate_keys
        )
    except (ValueError, RecursionError) as error:
        what = f"This is not JSON: {error!s:.200}."
        raise InvalidModel(what, where=str(file), fix=_FIX) from None


def model_from_sharding_dump(data: Any, where: str, logical: Any = None) -> Model:
    """Return the model of a file with shapes, with its specs; `logical` has names of array axes.

    The file does not say dtypes: parameters are float32, as MaxText holds them unless told.
    """
    found = read_sharding_dump(data, where, InvalidModel)
    axes = {}
    if logical is not None:
        named = read_sharding_dump(logical, f"logical names beside {where}", InvalidModel)
        axes = {entry.path: _axes(entry.spec) for entry in named.parameters}
    tensors = []
    for entry in found.parameters:
        if entry.shape is None:
            raise InvalidModel(
                f"The shape of {entry.path!r:.120} is not in the file.", where=where, fix=_FIX
            )
        own = _axes(entry.spec) if found.mesh is None else axes.get(entry.path)
        padded = own and (*own, *(None,) * (len(entry.shape) - len(own)))
        spec = None if found.mesh is None else entry.spec
        tensors.append(Tensor(entry.path, entry.shape, parse_dtype("f32"), padded, spec))
    note = "MaxText's file has no dtypes: parameters count as float32 unless --param-dtype is given"
    details = {"mesh": found.mesh_text} if found.mesh is not None else {}
    return Model(
        name=_model_name(where),
        groups=group_tensors(tensors),
        source=where,
        notes=(note,),
        details=details,
    )


def _model_name(where: str) -> str:
    """Return the model's name where the file lies in MaxText's folders: <model>/<topology>/...

    >>> _model_name("sharding_info/qwen3-0.6b/v6e-16/slice_1/rule_default/named_shardings.json")
    'qwen3-0.6b'
    """
    parts = where.replace("\\", "/").split("/")
    if len(parts) >= 5 and parts[-3].startswith("slice_"):
        return parts[-5]
    return parts[-2] if len(parts) > 1 and parts[-2] not in ("", ".", "..") else "maxtext"


def _keys(text: str) -> list[str]:
    """Return the names of a tree path.

    >>> _keys(".opt_state/[0]/.mu/['params']/['a/b']")
    ['opt_state', '0', 'mu', 'params', 'a/b']
    """
    return ["".join(found) for found in _KEY.findall(text)]


def _named(keys: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the path of the parameter and which array of it this is; None for steps and counts."""
    if not keys:
        return None
    name = "parameter"
    if keys[0] in ("opt_state", "optimizer") and "params" in keys:
        at = keys.index("params")
        name, keys = keys[at - 1], keys[at:]
    elif keys[0] in _NOT_PARAMETERS:
        return None
    while len(keys) > 1 and keys[0] in ("params", "model"):
        keys = keys[1:]
    return "/".join(keys), name


def _spec(entry: Mapping[str, Any], place: str, error: type[PlanError]) -> Spec:
    parts = entry["partition_spec"]
    if isinstance(parts, list) and len(parts) <= 64 and all(map(_is_entry, parts)):
        return Spec(*(tuple(part) if isinstance(part, list) else part for part in parts))
    raise error(
        f"The partition_spec is {short_repr(parts)}.",
        where=place,
        fix='a list with null, a mesh axis, or a list of them for each array axis: ["data", null].',
    )


def _is_entry(part: Any) -> bool:
    if isinstance(part, list):
        return all(isinstance(name, str) for name in part)
    return part is None or isinstance(part, str)


def _shape(entry: Mapping[str, Any], place: str, error: type[PlanError]) -> tuple[int, ...] | None:
    shape = entry.get("shape")
    if shape is None:
        return None
    if isinstance(shape, list) and len(shape) <= 64 and all(map(_is_size, shape)):
        return tuple(shape)
    raise error(f"The shape is {short_repr(shape)}.", where=place, fix="a list of whole numbers.")


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < _MOST


def _mesh(
    entry: Mapping[str, Any], place: str, error: type[PlanError]
) -> tuple[tuple[str, int], ...] | None:
    mesh = entry.get("mesh")
    if mesh is None:
        return None
    names = mesh.get("axis_names") if isinstance(mesh, Mapping) else None
    sizes = mesh.get("shape") if isinstance(mesh, Mapping) else None
    if (
        isinstance(names, list)
        and isinstance(sizes, Mapping)
        and all(isinstance(name, str) and _is_size(sizes.get(name)) for name in names)
    ):
        return tuple((name, sizes[name]) for name in names)
    raise error(
        f"The mesh is {short_repr(mesh)}.",
        where=place,
        fix='{"axis_names": [...], "shape": {...}}.',
    )


def _axes(spec: Spec) -> tuple[str | None, ...]:
    return tuple(names[0] if len(names) == 1 else None for names in spec.axes)
