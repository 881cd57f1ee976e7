"""MaxText's sharding dumps: the files `named_shardings.json` and `logical_shardings.json`.

>>> data = {".params/['params']/['layers']/['wo']": {"partition_spec": [None, "tensor"],
...     "shape": [8, 4], "mesh": {"axis_names": ["tensor"], "shape": {"tensor": 2}}}}
>>> entry = read_sharding_dump(data, "named_shardings.json", InvalidModel).entries[0]
>>> entry.path, entry.spec, entry.shape
('layers/wo', Spec(None, 'tensor'), (8, 4))

A dump has one entry for each array of the train state, by JAX's tree path: parameters under
`.params`, optimizer states under `.opt_state`. It has shapes, but no dtypes.
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
from shardlab.planner.model import Model
from shardlab.planner.tensor_group import LogicalAxes, Tensor, group_tensors
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import MeshSizes, mesh_text
from shardlab.sharding.spec import Spec

# The forms of a key in jax.tree_util.keystr: ['name'], ["it's"], [0], .attribute
_KEY = re.compile(r"\['((?:[^'\\]|\\.)*)'\]|\[\"([^\"]*)\"\]|\[([^\]'\"]*)\]|\.?([^/\[\]]+)")
_NOT_PARAMETERS = ("opt_state", "optimizer", "step", "rngs", "rng")
_MAX_SIZE = 2**62  # of one dimension
_MAX_DIMS = 64
_MAX_BYTES = 64_000_000
_FIX = "use a file as MaxText's tests/utils/sharding_dump.py writes it."


@dataclass(frozen=True, kw_only=True)
class ArraySharding:
    """One array: its parameter, its role for the parameter, and its spec or logical axes."""

    path: str  # of the parameter, such as decoder/layers/mlp/wi_0/kernel
    name: str  # "parameter", or the optimizer's "mu", "nu", ...
    spec: Spec
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class ShardingDump:
    """A dump; `mesh` is None if the specs are logical names."""

    entries: tuple[ArraySharding, ...]
    mesh: MeshSizes | None

    @property
    def mesh_text(self) -> str:
        """The mesh as text."""
        return mesh_text(self.mesh or ())

    @property
    def parameters(self) -> tuple[ArraySharding, ...]:
        """The entries of parameters, without optimizer states."""
        return tuple(entry for entry in self.entries if entry.name == "parameter")


def is_sharding_dump(data: Any) -> bool:
    """Return whether data looks like a dump: entries with a partition_spec."""
    return (
        isinstance(data, Mapping)
        and bool(data)
        and any(isinstance(entry, Mapping) and "partition_spec" in entry for entry in data.values())
    )


def load_sharding_dump(file: Path) -> Model:
    """Return the model of `named_shardings.json`, with logical names from the file beside it."""
    logical_file = file.parent / "logical_shardings.json"
    logical = _load_json(logical_file) if logical_file.is_file() else None
    return model_from_sharding_dump(_load_json(file), str(file), logical)


def _load_json(file: Path) -> Any:
    try:
        return json.loads(
            read_bounded_text(file, _MAX_BYTES), object_pairs_hook=reject_duplicate_keys
        )
    except (ValueError, RecursionError) as error:
        raise InvalidModel(
            f"The file is not valid JSON: {error!s:.200}.", where=str(file), fix=_FIX
        ) from None


def model_from_sharding_dump(data: Any, where: str, logical: Any = None) -> Model:
    """Return the model of a dump with its specs; `logical` is the dump with logical names.

    A dump has no dtypes: parameters count as float32, which is MaxText's default weight_dtype.
    """
    dump = read_sharding_dump(data, where, InvalidModel)
    logical_axes = {}
    if logical is not None:
        logical_dump = read_sharding_dump(logical, f"logical names beside {where}", InvalidModel)
        logical_axes = {entry.path: _axis_names(entry.spec) for entry in logical_dump.parameters}
    tensors = []
    for entry in dump.parameters:
        if entry.shape is None:
            raise InvalidModel(
                f"The file has no shape for {entry.path!r:.120}.", where=where, fix=_FIX
            )
        axes = _axis_names(entry.spec) if dump.mesh is None else logical_axes.get(entry.path)
        # Names of trailing dimensions may be left out, as in a PartitionSpec.
        padded = axes and (*axes, *(None,) * (len(entry.shape) - len(axes)))
        spec = None if dump.mesh is None else entry.spec
        tensors.append(Tensor(entry.path, entry.shape, parse_dtype("f32"), padded, spec))
    note = "MaxText's file has no dtypes: parameters count as float32 unless --param-dtype is given"
    return Model(
        name=_model_name(where),
        groups=group_tensors(tensors),
        source=where,
        notes=(note,),
        details={"mesh": dump.mesh_text} if dump.mesh is not None else {},
    )


def _model_name(where: str) -> str:
    """Return the name of the model from MaxText's folders: <model>/<topology>/...

    >>> _model_name("sharding_info/qwen3-0.6b/v6e-16/slice_1/rule_default/named_shardings.json")
    'qwen3-0.6b'
    """
    folders = where.replace("\\", "/").split("/")
    if len(folders) >= 5 and folders[-3].startswith("slice_"):
        return folders[-5]
    return folders[-2] if len(folders) > 1 and folders[-2] not in ("", ".", "..") else "maxtext"


# -------------------------------------------------------------------------------- the dump itself


def read_sharding_dump(data: Any, where: str, error: type[PlanError]) -> ShardingDump:
    """Return the content of a dump; mistakes are raised as `error`, with their location."""
    if not is_sharding_dump(data):
        raise error("The file is not a sharding dump of MaxText.", where=where, fix=_FIX)
    entries: list[ArraySharding] = []
    mesh: MeshSizes | None = None
    for key, value in data.items():
        location = f"{where}, at {key[:120]!r}"
        if not isinstance(value, Mapping) or "partition_spec" not in value:
            raise error(
                f"{short_repr(value)} is not the sharding of an array.", where=location, fix=_FIX
            )
        spec, shape = _parse_spec(value, location, error), _parse_shape(value, location, error)
        entry_mesh = _parse_mesh(value, location, error)
        if mesh is not None and entry_mesh is not None and entry_mesh != mesh:
            raise error("Two arrays of the file are on different meshes.", where=location, fix=_FIX)
        mesh = entry_mesh or mesh
        array = _identify_array(tuple(_split_tree_path(key)))
        if array is not None:
            path, name = array
            entries.append(ArraySharding(path=path, name=name, spec=spec, shape=shape))
    if not any(entry.name == "parameter" for entry in entries):
        raise error("The file has no parameters: no path with 'params'.", where=where, fix=_FIX)
    return ShardingDump(tuple(entries), mesh)


def _split_tree_path(text: str) -> list[str]:
    """Return the keys of a tree path.

    >>> _split_tree_path(".opt_state/[0]/.mu/['params']/['a/b']")
    ['opt_state', '0', 'mu', 'params', 'a/b']
    """
    return ["".join(groups) for groups in _KEY.findall(text)]


def _identify_array(keys: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the path of the parameter and which array of it this is; None for step counters."""
    if not keys:
        return None
    name = "parameter"
    if keys[0] in ("opt_state", "optimizer") and "params" in keys:
        # opt_state/0/mu/params/...: the key before "params" is the optimizer's array.
        params = keys.index("params")
        name, keys = keys[params - 1], keys[params:]
    elif keys[0] in _NOT_PARAMETERS:
        return None
    while len(keys) > 1 and keys[0] in ("params", "model"):
        keys = keys[1:]
    return "/".join(keys), name


def _parse_spec(entry: Mapping[str, Any], where: str, error: type[PlanError]) -> Spec:
    spec = entry["partition_spec"]
    if isinstance(spec, list) and len(spec) <= _MAX_DIMS and all(map(_is_spec_entry, spec)):
        return Spec(*(tuple(names) if isinstance(names, list) else names for names in spec))
    raise error(
        f"The partition_spec is {short_repr(spec)}.",
        where=where,
        fix="use a list with null, a mesh axis, or a list of them for each dimension: "
        '["data", null].',
    )


def _is_spec_entry(entry: Any) -> bool:
    if isinstance(entry, list):
        return all(isinstance(name, str) for name in entry)
    return entry is None or isinstance(entry, str)


def _parse_shape(
    entry: Mapping[str, Any], where: str, error: type[PlanError]
) -> tuple[int, ...] | None:
    shape = entry.get("shape")
    if shape is None:
        return None
    if isinstance(shape, list) and len(shape) <= _MAX_DIMS and all(map(_is_size, shape)):
        return tuple(shape)
    raise error(
        f"The shape is {short_repr(shape)}.", where=where, fix="use a list of whole numbers."
    )


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < _MAX_SIZE


def _parse_mesh(entry: Mapping[str, Any], where: str, error: type[PlanError]) -> MeshSizes | None:
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
        where=where,
        fix='use {"axis_names": [...], "shape": {...}}.',
    )


def _axis_names(spec: Spec) -> LogicalAxes:
    return tuple(names[0] if len(names) == 1 else None for names in spec.axes)
