"""A model by its weights on disk: one safetensors file, an index, or a folder of them.

Only headers are read, so that 140 GB take a moment.

The index of a checkpoint in several files: which file holds which tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from os.path import exists  # also of names that no file can have
from pathlib import Path, PurePosixPath
from typing import Any

from shardlab._files.bounded_read import list_folder, read_bounded_text
from shardlab._files.json_reader import JsonScanner
from shardlab.errors import InvalidModel
from shardlab.planner.tensor_group import Tensor, group_tensors
from shardlab.planner.model import Model
from shardlab.planner.models.architecture import find_contradictions
from shardlab.planner.models.hf_config import read_architecture
from shardlab.planner.models.safetensors import read_header

ENDING = ".safetensors.index.json"
_MAX_BYTES = 100_000_000  # as for the header of one file


@dataclass(frozen=True)
class Index:
    """The names of files by tensor, and the bytes that all of them are said to take."""

    files: dict[str, str]
    total_bytes: int | None = None

    @property
    def file_names(self) -> tuple[str, ...]:
        """Each file once, in the order of their names."""
        return tuple(sorted(set(self.files.values())))


def read_index(file: Path) -> Index:
    """Return what `model.safetensors.index.json` says."""
    text = JsonScanner(read_bounded_text(file, _MAX_BYTES), str(file))
    files: dict[str, str] | None = None
    total: Any = None
    for key in text.take_pairs():
        if key == "weight_map":
            files = {name: _file_name(text) for name in text.take_pairs()}
        elif key == "metadata":
            found = text.take_value()
            total = found.get("total_size") if isinstance(found, dict) else None
        else:
            text.take_value()
    text.take_end()
    if not files:
        raise InvalidModel(
            "The index names no tensors: 'weight_map' is missing or empty.",
            where=str(file),
            fix='{"weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}.',
        )
    return Index(files, _whole(total))


def _whole(total: Any) -> int | None:
    """Return a number of bytes; some tools write it as 1.6e10."""
    if isinstance(total, float) and total.is_integer():
        return int(total)
    return total if isinstance(total, int) and not isinstance(total, bool) else None


def _file_name(text: JsonScanner) -> str:
    """Take the name of a safetensors file that stands in the folder of the index, or below it."""
    start = text.position
    name = text.take_text()
    if _is_inside(name):
        return name
    raise InvalidModel(
        f"The index names {name!r:.200}, which is no safetensors file of its folder.",
        where=text.place(start),
        fix="names of safetensors files beside the index.",
    )


@lru_cache(maxsize=1024)  # a file holds thousands of tensors
def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name.replace("\\", "/"))
    leaves = parts.is_absolute() or ".." in parts.parts or ":" in name
    return name.endswith(".safetensors") and name.isprintable() and not leaves


_PART = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors")
_HUB_FOLDER = re.compile(r"models--([^-].*?)--(.+)")


def load_file(file: Path) -> Model:
    """Return the model of one safetensors file."""
    model = _model(file.stem, read_header(file), f"the header of {file}")
    if part := _PART.fullmatch(file.name):
        note = f"This file is part {int(part[2])} of {int(part[3])}; name the folder for all."
        return replace(model, notes=(note,))
    if file.name == "model.safetensors":
        return _described(model, file.absolute().parent)
    return model


def load_index(file: Path) -> Model:
    """Return the model whose tensors an index names."""
    index = read_index(file)
    folder = file.parent
    _check_present(index, folder, file)
    tensors: list[Tensor] = []
    others: list[Tensor] = []
    for name in index.file_names:
        for each in read_header(folder / name):
            (tensors if index.files.get(each.path) == name else others).append(each)
    _check_held(index, tensors, others, file)
    source = f"the headers of {len(index.file_names)} files named by {file}"
    model = _model(folder.absolute().name, tensors, source)
    notes = [*_size_notes(index, model), *_other_notes(others)]
    return _described(replace(model, notes=tuple(notes)), folder.absolute())


def load_folder(folder: Path) -> Model:
    """Return the model of a folder: by its index, or of all its safetensors files."""
    names = list_folder(folder)
    indexes = [name for name in names if name.endswith(ENDING)]
    if len(indexes) > 1 and f"model{ENDING}" not in indexes:
        raise InvalidModel(
            f"The folder has {len(indexes)} indexes: {', '.join(indexes):.300}.",
            where=str(folder),
            fix="the path of one of them.",
        )
    if indexes:
        best = f"model{ENDING}"
        return load_index(folder / (best if best in indexes else indexes[0]))
    files = [name for name in names if name.endswith(".safetensors")]
    if not files:
        raise InvalidModel(
            f"The folder {str(folder)!r} holds no safetensors files.",
            where=str(folder),
            fix="a folder with model.safetensors, or with an index and its files.",
        )
    _check_parts(files, folder)
    tensors = _of_each(folder / name for name in files)
    shown = files[0] if len(files) == 1 else f"{len(files)} safetensors files"
    model = _model(folder.absolute().name, tensors, f"the headers of {shown} in {folder}")
    return _described(model, folder.absolute())


def _of_each(files: Iterable[Path]) -> list[Tensor]:
    """Return the tensors of files that have none in common."""
    found: list[Tensor] = []
    holder: dict[str, Path] = {}
    for file in files:
        for each in read_header(file):
            if holder.setdefault(each.path, file) != file:
                both = f"{holder[each.path].name!r} and {file.name!r}"
                raise InvalidModel(
                    f"Tensor {each.path!r} is in {both}.",
                    where=str(file.parent),
                    fix="the path of one file, if the folder holds the model twice.",
                )
            found.append(each)
    return found


def _model(name: str, tensors: Sequence[Tensor], source: str) -> Model:
    if not tensors:
        raise InvalidModel(
            "There are no tensors to plan.", where=source, fix="a file with weights."
        )
    return Model(name=name, groups=group_tensors(tensors), source=source)


def _described(model: Model, folder: Path) -> Model:
    """Return the model with what its folder tells: its name and its architecture."""
    architecture, notes = read_architecture(folder)
    if architecture and (said := find_contradictions(model.groups, architecture)):
        architecture = None
        notes = (
            *notes,
            f"config.json is of another model, so activations and caches are not told by it: it "
            f"says {'; it says '.join(said)}.",
        )
    hub = [_HUB_FOLDER.fullmatch(each.name) for each in (folder, *folder.parents)]
    names = [f"{found[1]}/{found[2]}" for found in hub if found]
    return replace(
        model,
        name=names[0] if names else folder.name or model.name,
        architecture=architecture,
        notes=(*model.notes, *notes),
    )


def _check_parts(files: Sequence[str], folder: Path) -> None:
    """Raise where files are numbered `-00001-of-00030` and some of them are not there."""
    found: dict[tuple[str, str], set[int]] = {}
    for name in files:
        if part := _PART.fullmatch(name):
            found.setdefault((part[1], part[3]), set()).add(int(part[2]))
    for (stem, n), numbers in found.items():
        if len(numbers) < int(n):
            first = next(each for each in range(1, int(n) + 1) if each not in numbers)
            raise InvalidModel(
                f"Of {int(n):,} files {stem}-…-of-{n}, {len(numbers):,} are here; "
                f"number {first} is not.",
                where=str(folder),
                fix="download the others.",
            )


def _check_present(index: Index, folder: Path, file: Path) -> None:
    missing = [name for name in index.file_names if not exists(folder / name)]
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InvalidModel(
            f"{len(missing):,} of {len(index.file_names):,} files are missing: {shown:.300}.",
            where=str(file),
            fix="download them, into the folder of the index.",
        )


def _check_held(
    index: Index, tensors: Sequence[Tensor], others: Sequence[Tensor], file: Path
) -> None:
    """Raise where a tensor is not in the file that the index names for it."""
    if len(tensors) == len(index.files):
        return
    held = {each.path for each in tensors}
    name = next(each for each in index.files if each not in held)
    elsewhere = " Another file holds it." if any(each.path == name for each in others) else ""
    raise InvalidModel(
        f"Tensor {name!r} is not in {index.files[name]!r}, where the index has it.{elsewhere}",
        where=str(file),
        fix="download index and files again, of one revision.",
    )


def _size_notes(index: Index, model: Model) -> list[str]:
    if index.total_bytes in (None, model.n_bytes):
        return []
    return [f"The index says {index.total_bytes:,} bytes in all; they are {model.n_bytes:,}."]


def _other_notes(others: Sequence[Tensor]) -> list[str]:
    if not others:
        return []
    names = f"{others[0].path!r}" + (", …" if len(others) > 1 else "")
    return [f"{len(others):,} tensors of the files are not in the index and not counted: {names}."]
