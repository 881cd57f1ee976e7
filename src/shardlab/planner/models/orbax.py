"""The tensors of an Orbax checkpoint, from its metadata: no array is read, Orbax is not imported.

A checkpoint is a folder with a file `_METADATA`, which names the arrays. Shapes and dtypes stand
with the arrays themselves, in Zarr. Around it may be a folder for each item and one for each step.

The shape and dtype of an array that Zarr keeps, out of its few words of JSON.

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
from shardlab.planner.tensor_group import Tensor, group_tensors
from shardlab.planner.model import Model
from shardlab.planner.models.optimizer_state import is_optimizer_path, mark_untrained
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.shape import parse_shape
from shardlab.sharding.spec import Spec, parse_spec

# NumPy's way to write a dtype: byte order, kind, bytes.
_TYPESTR = re.compile(r"[<>|=]([fiucb])([0-9]{1,2})")
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
_LONGEST = 1 << 20  # bytes of one array's description
_FILES = {2: ".zarray", 3: "zarr.json"}

Described = tuple[tuple[int, ...], Dtype]


def parse_zarr(data: Any) -> Described:
    """Return what the description of an array says, of version 2 or 3 of the format."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{short_repr(data)} in place of a table")
    dtype = data.get("dtype", data.get("data_type"))
    shape = data.get("shape")
    if not isinstance(shape, list) or not isinstance(dtype, str):
        raise ValueError(f"a shape of {short_repr(shape)} and a dtype of {short_repr(dtype)}")
    if any(type(size) is not int for size in shape):  # a bool is one to parse_shape
        raise ValueError(f"a shape of {short_repr(shape)}")
    return parse_shape(tuple(shape)), parse_dtype(_name(dtype))


def read_arrays(folder: Path, names: Iterable[str], *, ocdbt: bool) -> Iterator[Described]:
    """Yield the shape and dtype of each array that a folder keeps; the arrays are not read."""
    texts = _from_store(folder, names) if ocdbt else _from_files(folder, names)
    for name, text in texts:
        try:
            yield parse_zarr(json.loads(text))
        except (LabError, ValueError, RecursionError) as error:
            said = error.what if isinstance(error, LabError) else str(error)
            raise InvalidModel(
                f"The description of the array {name!r:.200} cannot be read: {said:.200}",
                where=f"{folder}, array {name!r:.200}",
                fix="a checkpoint that was written to its end.",
            ) from None


def _name(dtype: str) -> str:
    found = _TYPESTR.fullmatch(dtype)
    if found is None:
        return dtype
    kind = _KINDS[found[1]]
    return kind if kind == "bool" else f"{kind}{8 * int(found[2])}"


def _from_files(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the texts out of a folder for each array."""
    for name in names:
        place = folder / name
        if ".." in place.parts or not place.is_relative_to(folder):  # a name may be a whole path
            raise _missing(folder, name)
        files = [place / file for file in _FILES.values()]
        file = next((each for each in files if each.is_file()), None)
        if file is None:
            raise _missing(folder, name)
        yield name, read_bounded_text(file, _LONGEST)


def _from_store(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the texts out of the one store that holds all arrays of a checkpoint, in OCDBT."""
    try:
        import tensorstore
    except ImportError:
        raise InvalidModel(
            "The checkpoint keeps its shapes in a store that only tensorstore reads.",
            where=str(folder),
            fix="install tensorstore, which comes with orbax-checkpoint.",
        ) from None
    try:
        store = tensorstore.KvStore.open(
            {"driver": "ocdbt", "base": folder.resolve().as_uri() + "/"}
        ).result()
        asked = [
            (name, [store.read(f"{name}/{file}") for file in _FILES.values()]) for name in names
        ]
        for name, answers in asked:
            found = [each.result() for each in answers]
            value = next((each.value for each in found if each.state == "value"), None)
            if value is None:
                raise _missing(folder, name)
            yield name, value.decode("utf-8", "replace")
    except (ValueError, OSError, NotImplementedError) as error:
        if isinstance(error, InvalidModel):
            raise
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidModel(
            f"The store of the checkpoint cannot be read: {words:.300}",
            where=str(folder),
            fix="a checkpoint that was written, or copied, to its end.",
        ) from None


def _missing(folder: Path, name: str) -> InvalidModel:
    return InvalidModel(
        f"The checkpoint names an array {name!r:.200} that it does not hold.",
        where=str(folder),
        fix="a checkpoint that was written, or copied, to its end.",
    )


METADATA = "_METADATA"
_SHARDING = "_sharding"
_LONGEST_orbax = 256 << 20  # bytes of metadata: a million arrays
_MOST_FOLDERS = 10_000
_STEP = re.compile(r"(?:.*[_-])?([0-9]{1,18})")
_ITEMS = ("default", "state", "items", "model", "params")  # as Orbax, MaxText and others call one
_UNFINISHED = ".orbax-checkpoint-tmp"
_NO_ARRAYS = ("None", "string", "Dict", "List", "Tuple", "NamedTuple")  # the last four: empty ones
_COMPLETE = "a checkpoint that was written, or copied, to its end."

Keys = tuple[str, ...]


def is_checkpoint(folder: Path) -> bool:
    """Tell whether a folder is, or holds, an Orbax checkpoint."""
    return bool(_checkpoints(folder)) or any(_checkpoints(step) for _, step in _steps(folder))


def load_checkpoint(folder: Path) -> Model:
    """Return the model of a checkpoint; of several steps the last, of its items the model's."""
    found = _candidates(folder)
    place = _chosen(found, folder)
    keys, ocdbt = _metadata(place / METADATA)
    kept = _of_the_model(keys)
    specs, meshes = _shardings(place / _SHARDING)
    names = [".".join(each) for each in kept]
    described = read_arrays(place, names, ocdbt=ocdbt)
    tensors = [
        Tensor("/".join(path), shape, dtype, spec=specs.get(name))
        for path, name, (shape, dtype) in zip(kept, names, described, strict=True)
    ]
    notes = _other_items(found, place)
    if len(kept) < len(keys):
        notes.append(_left_out(keys, kept))
    return Model(
        name=_name_orbax(folder),
        groups=group_tensors(mark_untrained(tensors)),
        source=f"Orbax checkpoint {place}",
        notes=tuple(notes),
        details={"mesh": meshes.pop()} if len(meshes) == 1 else {},
    )


def _name_orbax(folder: Path) -> str:
    """Return the folder's name; one that many runs have, such as a step's, with what is above."""
    parts = folder.resolve().parts
    n = 1
    while n < len(parts) - 1 and (parts[-n].isdecimal() or parts[-n] in _ITEMS):
        n += 1
    return "/".join(parts[-n:])


def _other_items(found: list[Path], place: Path) -> list[str]:
    others = [each.name for each in found if each != place]
    return [f"Only the item {place.name!r:.60} is planned, not {_listed(others)}."] * bool(others)


def _of_the_model(keys: list[Keys]) -> list[Keys]:
    """Return what is a model's of all that was saved: `params`, else all but an optimizer's."""
    params = [each for each in keys if each[0] == "params"]
    return params or [each for each in keys if not is_optimizer_path("/".join(each))] or keys


def _left_out(keys: list[Keys], kept: list[Keys]) -> str:
    of_model = set(kept)
    others = dict.fromkeys(each[0] for each in keys if each not in of_model)
    if kept[0][0] == "params":
        return f"Only the checkpoint's 'params' are planned, not its {_listed(others)}."
    return f"The optimizer's arrays in the checkpoint's {_listed(others)} are left out."


# ------------------------------------------------------------------------------------- where it is


def _chosen(found: list[Path], folder: Path) -> Path:
    """Return the folder of the model's item, of those that have metadata."""
    if not found:
        raise InvalidModel(
            f"The folder {folder.name!r} holds no Orbax checkpoint: no file {METADATA!r} is in it.",
            where=str(folder),
            fix=_COMPLETE,
        )
    if len(found) == 1:
        return found[0]
    by_name = {each.name: each for each in found}
    if known := [by_name[name] for name in _ITEMS if name in by_name]:
        return known[0]
    raise InvalidModel(
        f"The checkpoint has several items: {_listed(sorted(by_name))}.",
        where=str(found[0].parent),
        fix=f"one of their folders, such as {min(found, key=lambda each: is_optimizer_path(each.name))}.",
    )


def _candidates(folder: Path) -> list[Path]:
    """Return the folders with metadata: the items of the last step, if there are steps."""
    if (folder / METADATA).is_file():
        return [folder]
    of_steps = (_checkpoints(step) for _, step in _steps(folder))
    return next((found for found in of_steps if found), None) or _checkpoints(folder)


def _checkpoints(folder: Path) -> list[Path]:
    """Return the folder itself if it has metadata, else those of its folders that do."""
    if (folder / METADATA).is_file():
        return [folder]
    return [each for each in _folders(folder) if (each / METADATA).is_file()]


def _steps(folder: Path) -> list[tuple[int, Path]]:
    """Return the folders that are named for a step, the last step first."""
    found = ((_STEP.fullmatch(each.name), each) for each in _folders(folder))
    return sorted(((int(name[1]), each) for name, each in found if name), reverse=True)


def _folders(folder: Path) -> list[Path]:
    found: list[Path] = []
    try:
        for each in folder.iterdir():
            if len(found) < _MOST_FOLDERS and _UNFINISHED not in each.name and each.is_dir():
                found.append(each)
    except OSError:
        return []
    return sorted(found)


# ------------------------------------------------------------------------------------- what it says


def _metadata(file: Path) -> tuple[list[Keys], bool]:
    """Return the keys of each array, and whether all of them are in one store."""
    data = _json(file)
    tree = data.get("tree_metadata")
    if not isinstance(tree, dict):
        raise InvalidModel(
            f"{METADATA} has no table of arrays, but {sorted(data)!r:.200}.",
            where=str(file),
            fix="a checkpoint of Orbax 0.5 or newer.",
        )
    keys = [path for name, entry in tree.items() if (path := _keys(name, entry, file)) is not None]
    if not keys:
        raise InvalidModel("The checkpoint holds no array.", where=str(file), fix="another one.")
    return keys, bool(data.get("use_ocdbt", True))


def _keys(name: str, entry: Any, file: Path) -> Keys | None:
    """Return the keys on the way to an array; None for what is no array."""
    try:
        if str(entry["value_metadata"]["value_type"]) in _NO_ARRAYS:
            return None
        keys = tuple(str(each["key"]) for each in entry["key_metadata"])
    except (KeyError, TypeError, IndexError):
        keys = ()
    if not keys or not all(keys):
        raise InvalidModel(
            f"{METADATA} says nothing that can be read of {name!r:.200}.",
            where=str(file),
            fix=_COMPLETE,
        )
    return keys


def _shardings(file: Path) -> tuple[dict[str, Spec], set[str]]:
    """Return the specs that arrays were saved with, by name, and the meshes these are for."""
    specs: dict[str, Spec] = {}
    meshes: set[str] = set()
    if not file.is_file():
        return specs, meshes
    for key, text in _json(file).items():
        for name, spec, mesh in _sharding(key, text, file):
            specs[name] = spec
            meshes.add(mesh)
    return specs, meshes


def _sharding(key: str, text: Any, file: Path) -> Iterator[tuple[str, Spec, str]]:
    try:
        name = base64.b64decode(key, validate=True).decode()
        said = json.loads(text)
        if said["sharding_type"] != "NamedSharding":
            return  # of one device, or one that has no names
        sizes = zip(said["axis_names"], said["shape"], strict=True)
        mesh = ",".join(f"{axis}={int(size)}" for axis, size in sizes)
        yield name, parse_spec(said["partition_spec"]), mesh
    except (LabError, binascii.Error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidModel(
            f"The sharding of {key!r:.80} cannot be read: {type(error).__name__}: {error!s:.200}",
            where=str(file),
            fix=f"{_COMPLETE} Without {file.name} it can be planned too.",
        ) from None


def _json(file: Path) -> Mapping[str, Any]:
    text = read_bounded_text(file, _LONGEST_orbax)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        words = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise InvalidModel(
            f"{file.name} is not JSON: {words:.200}", where=str(file), fix=_COMPLETE
        ) from None
    if not isinstance(data, dict):
        raise InvalidModel(
            f"{file.name} holds {type(data).__name__} in place of a table.",
            where=str(file),
            fix=_COMPLETE,
        )
    return data


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    shown = [repr(name)[:60] for name in list(names)[:6]]
    return ", ".join([*shown, *(["..."] if len(names) > 6 else [])])
