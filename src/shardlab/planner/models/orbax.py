"""Orbax checkpoints: tensors from metadata alone; no array is read and Orbax is not imported.

A checkpoint is a folder with a file `_METADATA`, which lists the arrays but not their shapes. Shape
and dtype are stored with each array, in Zarr: either in a folder for each array, or all in one
OCDBT key-value store. Around it there may be a folder for each item and one for each step.

>>> parse_zarr({"zarr_format": 2, "shape": [8, 4], "dtype": "<f4"})
((8, 4), Dtype(name='float32', short='f32', bits=32))
>>> parse_zarr({"zarr_format": 3, "shape": [8], "data_type": "bfloat16"})
((8,), Dtype(name='bfloat16', short='bf16', bits=16))
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_bounded_text
from shardlab.errors import InvalidModel, LabError, short_repr
from shardlab.planner.model import Model
from shardlab.planner.models.optimizer_state import is_optimizer_path, mark_untrained
from shardlab.planner.tensor_group import Tensor, group_tensors
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.mesh import mesh_text
from shardlab.sharding.shape import parse_shape
from shardlab.sharding.spec import Spec, parse_spec

METADATA = "_METADATA"
_SHARDING = "_sharding"
_MAX_METADATA_BYTES = 256 << 20  # a million arrays
_MAX_ZARR_BYTES = 1 << 20  # metadata of one array
_MAX_FOLDERS = 10_000
_MAX_NAMES = 6  # listed in a message
_STEP = re.compile(r"(?:.*[_-])?([0-9]{1,18})")
_ITEMS = ("default", "state", "items", "model", "params")  # item names in Orbax, MaxText, others
_UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that is still being written
_NOT_ARRAYS = ("None", "string", "Dict", "List", "Tuple", "NamedTuple")  # the last four: empty ones
_COMPLETE = "use a checkpoint that was written, or copied, completely."
# Zarr metadata files by format version. Orbax writes version 2 unless use_zarr3 is set.
_ZARR_FILES = (".zarray", "zarr.json")
_TYPESTR = re.compile(r"[<>|=]([fiucb])([0-9]{1,2})")  # NumPy: byte order, kind, bytes
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}

Keys = tuple[str, ...]
ShapeAndDtype = tuple[tuple[int, ...], Dtype]


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is, or contains, an Orbax checkpoint."""
    return bool(_find_items(folder)) or any(_find_items(step) for _, step in _find_steps(folder))


def load_checkpoint(folder: Path) -> Model:
    """Return the model of a checkpoint: of the last step, and of the item with the model."""
    items = _find_candidates(folder)
    item = _select_item(items, folder)
    keys, is_ocdbt = _read_metadata(item / METADATA)
    model_keys = _select_model_keys(keys)
    specs, meshes = _read_shardings(item / _SHARDING)
    names = [".".join(path) for path in model_keys]
    tensors = [
        Tensor("/".join(path), shape, dtype, spec=specs.get(name))
        for path, name, (shape, dtype) in zip(
            model_keys, names, read_arrays(item, names, ocdbt=is_ocdbt), strict=True
        )
    ]
    notes = []
    if other_items := [path.name for path in items if path != item]:
        notes.append(f"Only the item {item.name!r:.60} is planned, not {_join_names(other_items)}.")
    if len(model_keys) < len(keys):
        notes.append(_ignored_keys_note(keys, model_keys))
    return Model(
        name=_checkpoint_name(folder),
        groups=group_tensors(mark_untrained(tensors)),
        source=f"Orbax checkpoint {item}",
        notes=tuple(notes),
        details={"mesh": meshes.pop()} if len(meshes) == 1 else {},
    )


def _checkpoint_name(folder: Path) -> str:
    """Return the folder's name; with its parents if it is a step or an item, as in many runs."""
    parts = folder.resolve().parts
    n_parts = 1
    while n_parts < len(parts) - 1 and (parts[-n_parts].isdecimal() or parts[-n_parts] in _ITEMS):
        n_parts += 1
    return "/".join(parts[-n_parts:])


def _select_model_keys(keys: list[Keys]) -> list[Keys]:
    """Return the arrays of the model: those under `params`, else all without optimizer states."""
    params = [path for path in keys if path[0] == "params"]
    return params or [path for path in keys if not is_optimizer_path("/".join(path))] or keys


def _ignored_keys_note(keys: list[Keys], model_keys: list[Keys]) -> str:
    of_model = set(model_keys)
    ignored = dict.fromkeys(path[0] for path in keys if path not in of_model)
    if model_keys[0][0] == "params":
        return f"Only the checkpoint's 'params' are planned, not its {_join_names(ignored)}."
    return f"The optimizer states in the checkpoint's {_join_names(ignored)} are ignored."


# -------------------------------------------------------------------------- folders of a checkpoint


def _select_item(items: list[Path], folder: Path) -> Path:
    """Return the folder of the item that has the model."""
    if not items:
        raise InvalidModel(
            f"The folder {folder.name!r} is not an Orbax checkpoint: it has no file {METADATA!r}.",
            where=str(folder),
            fix=_COMPLETE,
        )
    if len(items) == 1:
        return items[0]
    by_name = {item.name: item for item in items}
    if common := [by_name[name] for name in _ITEMS if name in by_name]:
        return common[0]
    example = min(items, key=lambda item: is_optimizer_path(item.name))
    raise InvalidModel(
        f"The checkpoint has several items: {_join_names(sorted(by_name))}.",
        where=str(items[0].parent),
        fix=f"give one of their folders, such as {example}.",
    )


def _find_candidates(folder: Path) -> list[Path]:
    """Return the folders with metadata: the items of the last step, if there are steps."""
    if (folder / METADATA).is_file():
        return [folder]
    items_by_step = (_find_items(step) for _, step in _find_steps(folder))
    return next((items for items in items_by_step if items), None) or _find_items(folder)


def _find_items(folder: Path) -> list[Path]:
    """Return the folder itself if it has metadata, else its subfolders that have."""
    if (folder / METADATA).is_file():
        return [folder]
    return [item for item in _list_folders(folder) if (item / METADATA).is_file()]


def _find_steps(folder: Path) -> list[tuple[int, Path]]:
    """Return the subfolders that are named after a step, the last step first."""
    matches = ((_STEP.fullmatch(step.name), step) for step in _list_folders(folder))
    return sorted(((int(match[1]), step) for match, step in matches if match), reverse=True)


def _list_folders(folder: Path) -> list[Path]:
    folders: list[Path] = []
    try:
        for entry in folder.iterdir():
            if len(folders) < _MAX_FOLDERS and _UNFINISHED not in entry.name and entry.is_dir():
                folders.append(entry)
    except OSError:
        return []
    return sorted(folders)


# -------------------------------------------------------------------------- metadata and shardings


def _read_metadata(file: Path) -> tuple[list[Keys], bool]:
    """Return the keys of each array, and whether the arrays are in one OCDBT store."""
    data = _load_json(file)
    tree = data.get("tree_metadata")
    if not isinstance(tree, dict):
        raise InvalidModel(
            f"{METADATA} has no 'tree_metadata', but {sorted(data)!r:.200}.",
            where=str(file),
            fix="use a checkpoint of Orbax 0.5 or newer.",
        )
    keys = [
        path for name, entry in tree.items() if (path := _parse_keys(name, entry, file)) is not None
    ]
    if not keys:
        raise InvalidModel(
            "The checkpoint has no arrays.", where=str(file), fix="use another checkpoint."
        )
    return keys, bool(data.get("use_ocdbt", True))


def _parse_keys(name: str, entry: Any, file: Path) -> Keys | None:
    """Return the keys of an array in the tree; None for an entry that is not an array."""
    # The keys are listed in key_metadata. The name of the entry is a printed tuple, which cannot
    # be parsed safely.
    try:
        if str(entry["value_metadata"]["value_type"]) in _NOT_ARRAYS:
            return None
        keys = tuple(str(key["key"]) for key in entry["key_metadata"])
    except (KeyError, TypeError, IndexError):
        keys = ()
    if not keys or not all(keys):
        raise InvalidModel(
            f"{METADATA} has an invalid entry {name!r:.200}.", where=str(file), fix=_COMPLETE
        )
    return keys


def _read_shardings(file: Path) -> tuple[dict[str, Spec], set[str]]:
    """Return the specs that arrays were saved with, by name, and the meshes of these specs."""
    specs: dict[str, Spec] = {}
    meshes: set[str] = set()
    if not file.is_file():
        return specs, meshes
    for key, text in _load_json(file).items():
        for name, spec, mesh in _parse_sharding(key, text, file):
            specs[name] = spec
            meshes.add(mesh)
    return specs, meshes


def _parse_sharding(key: str, text: Any, file: Path) -> Iterator[tuple[str, Spec, str]]:
    # Orbax stores each sharding as a JSON text inside the JSON file, under the array's name in
    # base64.
    try:
        name = base64.b64decode(key, validate=True).decode()
        sharding = json.loads(text)
        if sharding["sharding_type"] != "NamedSharding":
            return  # a SingleDeviceSharding, or one without axis names
        sizes = zip(sharding["axis_names"], sharding["shape"], strict=True)
        mesh = mesh_text((axis, int(size)) for axis, size in sizes)
        yield name, parse_spec(sharding["partition_spec"]), mesh
    except (LabError, binascii.Error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidModel(
            f"The sharding of {key!r:.80} is invalid: {type(error).__name__}: {error!s:.200}",
            where=str(file),
            fix=f"{_COMPLETE} The checkpoint can also be planned without {file.name}.",
        ) from None


def _load_json(file: Path) -> Mapping[str, Any]:
    text = read_bounded_text(file, _MAX_METADATA_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise InvalidModel(
            f"{file.name} is not valid JSON: {reason:.200}", where=str(file), fix=_COMPLETE
        ) from None
    if not isinstance(data, dict):
        raise InvalidModel(
            f"{file.name} contains a {type(data).__name__} instead of an object.",
            where=str(file),
            fix=_COMPLETE,
        )
    return data


def _join_names(names: Sequence[str] | Mapping[str, Any]) -> str:
    first_names = [repr(name)[:60] for name in list(names)[:_MAX_NAMES]]
    return ", ".join([*first_names, *(["..."] if len(names) > _MAX_NAMES else [])])


# -------------------------------------------------------------------------- Zarr


def read_arrays(folder: Path, names: Iterable[str], *, ocdbt: bool) -> Iterator[ShapeAndDtype]:
    """Yield the shape and dtype of each array in a folder; the arrays are not read."""
    texts = _read_ocdbt_store(folder, names) if ocdbt else _read_zarr_files(folder, names)
    for name, text in texts:
        try:
            yield parse_zarr(json.loads(text))
        except (LabError, ValueError, RecursionError) as error:
            reason = error.what if isinstance(error, LabError) else str(error)
            raise InvalidModel(
                f"The Zarr metadata of array {name!r:.200} is invalid: {reason:.200}",
                where=f"{folder}, array {name!r:.200}",
                fix=_COMPLETE,
            ) from None


def parse_zarr(data: Any) -> ShapeAndDtype:
    """Return shape and dtype from the metadata of an array, in Zarr version 2 or 3."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{short_repr(data)} instead of an object")
    dtype = data.get("dtype", data.get("data_type"))
    shape = data.get("shape")
    if not isinstance(shape, list) or not isinstance(dtype, str):
        raise ValueError(f"a shape of {short_repr(shape)} and a dtype of {short_repr(dtype)}")
    if any(type(size) is not int for size in shape):  # parse_shape accepts a bool
        raise ValueError(f"a shape of {short_repr(shape)}")
    return parse_shape(tuple(shape)), parse_dtype(_dtype_name(dtype))


def _dtype_name(dtype: str) -> str:
    # Version 2 writes NumPy's "<f4" for NumPy's own types and names such as "bfloat16" for others.
    typestr = _TYPESTR.fullmatch(dtype)
    if typestr is None:
        return dtype
    kind = _KINDS[typestr[1]]
    return kind if kind == "bool" else f"{kind}{8 * int(typestr[2])}"


def _read_zarr_files(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the metadata texts from the folder of each array."""
    for name in names:
        array = folder / name
        # Names come from the checkpoint, and `folder / "/etc"` would be /etc.
        if ".." in array.parts or not array.is_relative_to(folder):
            raise _missing_array(folder, name)
        files = [array / file for file in _ZARR_FILES]
        file = next((candidate for candidate in files if candidate.is_file()), None)
        if file is None:
            raise _missing_array(folder, name)
        yield name, read_bounded_text(file, _MAX_ZARR_BYTES)


def _read_ocdbt_store(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the metadata texts from the OCDBT store, TensorStore's B+tree of all small files."""
    try:
        import tensorstore
    except ImportError:
        raise InvalidModel(
            "The checkpoint stores its shapes in OCDBT, which only tensorstore reads.",
            where=str(folder),
            fix="install tensorstore, which comes with orbax-checkpoint.",
        ) from None
    try:
        store = tensorstore.KvStore.open(
            {"driver": "ocdbt", "base": folder.resolve().as_uri() + "/"}
        ).result()
        # Start all reads before waiting for the first: each one may load a node of the tree.
        pending = [(name, [store.read(f"{name}/{file}") for file in _ZARR_FILES]) for name in names]
        for name, reads in pending:
            results = [read.result() for read in reads]
            value = next((result.value for result in results if result.state == "value"), None)
            if value is None:
                raise _missing_array(folder, name)
            yield name, value.decode("utf-8", "replace")
    except (ValueError, OSError, NotImplementedError) as error:
        if isinstance(error, InvalidModel):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidModel(
            f"The OCDBT store of the checkpoint cannot be read: {reason:.300}",
            where=str(folder),
            fix=_COMPLETE,
        ) from None


def _missing_array(folder: Path, name: str) -> InvalidModel:
    return InvalidModel(
        f"The checkpoint lists an array {name!r:.200} that it does not contain.",
        where=str(folder),
        fix=_COMPLETE,
    )
