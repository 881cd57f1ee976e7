"""The shape and dtype of an array that Zarr keeps, out of its few words of JSON.

>>> parse_zarr({"zarr_format": 2, "shape": [8, 4], "dtype": "<f4"})
((8, 4), Dtype(name='float32', short='f32', bits=32))
>>> parse_zarr({"zarr_format": 3, "shape": [8], "data_type": "bfloat16"})
((8,), Dtype(name='bfloat16', short='bf16', bits=16))
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shardlab.errors import BadModel, LabError
from shardlab.errors.brief import brief
from shardlab.layouts.dtype import Dtype, parse_dtype
from shardlab.layouts.shape import parse_shape
from shardlab.plans.sources.disk import read_text

# NumPy's way to write a dtype: byte order, kind, bytes.
_TYPESTR = re.compile(r"[<>|=]([fiucb])([0-9]{1,2})")
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
_LONGEST = 1 << 20  # bytes of one array's description
_FILES = {2: ".zarray", 3: "zarr.json"}

Described = tuple[tuple[int, ...], Dtype]


def parse_zarr(data: Any) -> Described:
    """Return what the description of an array says, of version 2 or 3 of the format."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{brief(data)} in place of a table")
    dtype = data.get("dtype", data.get("data_type"))
    shape = data.get("shape")
    if not isinstance(shape, list) or not isinstance(dtype, str):
        raise ValueError(f"a shape of {brief(shape)} and a dtype of {brief(dtype)}")
    if any(type(size) is not int for size in shape):  # a bool is one to parse_shape
        raise ValueError(f"a shape of {brief(shape)}")
    return parse_shape(tuple(shape)), parse_dtype(_name(dtype))


def read_arrays(folder: Path, names: Iterable[str], *, ocdbt: bool) -> Iterator[Described]:
    """Yield the shape and dtype of each array that a folder keeps; the arrays are not read."""
    texts = _from_store(folder, names) if ocdbt else _from_files(folder, names)
    for name, text in texts:
        try:
            yield parse_zarr(json.loads(text))
        except (LabError, ValueError, RecursionError) as error:
            said = error.what if isinstance(error, LabError) else str(error)
            raise BadModel(
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
        yield name, read_text(file, _LONGEST)


def _from_store(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the texts out of the one store that holds all arrays of a checkpoint, in OCDBT."""
    try:
        import tensorstore
    except ImportError:
        raise BadModel(
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
        if isinstance(error, BadModel):
            raise
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadModel(
            f"The store of the checkpoint cannot be read: {words:.300}",
            where=str(folder),
            fix="a checkpoint that was written, or copied, to its end.",
        ) from None


def _missing(folder: Path, name: str) -> BadModel:
    return BadModel(
        f"The checkpoint names an array {name!r:.200} that it does not hold.",
        where=str(folder),
        fix="a checkpoint that was written, or copied, to its end.",
    )
