"""Weights on disk: one safetensors file, an index, or a folder of files.

Only headers are read, so a checkpoint of 140 GB takes a moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from os.path import exists  # unlike Path.exists, also for names too long for any file
from pathlib import Path, PurePosixPath
from typing import Any

from shardlab._files.bounded_read import list_folder, read_bounded_text
from shardlab._files.json_reader import JsonScanner
from shardlab.errors import InvalidModel
from shardlab.planner.model import Model
from shardlab.planner.models.architecture import find_contradictions
from shardlab.planner.models.hf_config import read_architecture
from shardlab.planner.models.safetensors import read_header
from shardlab.planner.tensor_group import Tensor, group_tensors

INDEX_SUFFIX = ".safetensors.index.json"
_MAX_INDEX_BYTES = 100_000_000  # as for the header of one file
_NUMBERED_FILE = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors")
# The folder of a repository in Hugging Face's cache: models--meta-llama--Llama-3.1-8B
_HUB_FOLDER = re.compile(r"models--([^-].*?)--(.+)")


def load_file(file: Path) -> Model:
    """Return the model of one safetensors file."""
    model = _build_model(file.stem, read_header(file), f"the header of {file}")
    if numbered := _NUMBERED_FILE.fullmatch(file.name):
        note = (
            f"This is file {int(numbered[2])} of {int(numbered[3])}; give the folder to plan all "
            "of them."
        )
        return replace(model, notes=(note,))
    if file.name == "model.safetensors":
        return _with_folder_info(model, file.absolute().parent)
    return model


def load_index(file: Path) -> Model:
    """Return the model whose tensors an index lists."""
    index = read_index(file)
    folder = file.parent
    _check_files_exist(index, folder, file)
    tensors: list[Tensor] = []
    unlisted: list[Tensor] = []
    for name in index.file_names:
        for tensor in read_header(folder / name):
            (tensors if index.files.get(tensor.path) == name else unlisted).append(tensor)
    _check_listed_tensors(index, tensors, unlisted, file)
    source = f"the headers of {len(index.file_names)} files listed in {file}"
    model = _build_model(folder.absolute().name, tensors, source)
    notes = [*_total_size_notes(index, model), *_unlisted_notes(unlisted)]
    return _with_folder_info(replace(model, notes=tuple(notes)), folder.absolute())


def load_folder(folder: Path) -> Model:
    """Return the model of a folder: from its index, or from all its safetensors files."""
    names = list_folder(folder)
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    main_index = f"model{INDEX_SUFFIX}"
    if len(indexes) > 1 and main_index not in indexes:
        raise InvalidModel(
            f"The folder has {len(indexes)} indexes: {', '.join(indexes):.300}.",
            where=str(folder),
            fix="give the path of one of them.",
        )
    if indexes:
        return load_index(folder / (main_index if main_index in indexes else indexes[0]))
    files = [name for name in names if name.endswith(".safetensors")]
    if not files:
        raise InvalidModel(
            f"The folder {str(folder)!r} has no safetensors files.",
            where=str(folder),
            fix="use a folder with model.safetensors, or with an index and its files.",
        )
    _check_numbered_files(files, folder)
    tensors = _read_distinct_tensors(folder / name for name in files)
    file_text = files[0] if len(files) == 1 else f"{len(files)} safetensors files"
    model = _build_model(folder.absolute().name, tensors, f"the headers of {file_text} in {folder}")
    return _with_folder_info(model, folder.absolute())


# -------------------------------------------------------------------------------------- the index


@dataclass(frozen=True)
class Index:
    """An index: the file of each tensor, and the total bytes that it declares."""

    files: dict[str, str]
    total_bytes: int | None = None

    @property
    def file_names(self) -> tuple[str, ...]:
        """Each file once, sorted by name."""
        return tuple(sorted(set(self.files.values())))


def read_index(file: Path) -> Index:
    """Return the content of `model.safetensors.index.json`."""
    text = JsonScanner(read_bounded_text(file, _MAX_INDEX_BYTES), str(file))
    files: dict[str, str] | None = None
    total: Any = None
    for key in text.take_pairs():
        if key == "weight_map":
            files = {name: _take_file_name(text) for name in text.take_pairs()}
        elif key == "metadata":
            metadata = text.take_value()
            total = metadata.get("total_size") if isinstance(metadata, dict) else None
        else:
            text.take_value()
    text.take_end()
    if not files:
        raise InvalidModel(
            "The index lists no tensors: 'weight_map' is missing or empty.",
            where=str(file),
            fix='use {"weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}.',
        )
    return Index(files, _parse_total(total))


def _parse_total(total: Any) -> int | None:
    """Return a number of bytes; some tools write it as 1.6e10."""
    if isinstance(total, float) and total.is_integer():
        return int(total)
    return total if isinstance(total, int) and not isinstance(total, bool) else None


def _take_file_name(text: JsonScanner) -> str:
    """Return the next file name, which must be in the folder of the index or below it."""
    start = text.position
    name = text.take_text()
    if _is_inside_folder(name):
        return name
    raise InvalidModel(
        f"The index names {name!r:.200}, which is not a safetensors file in its folder.",
        where=text.position_text(start),
        fix="use names of safetensors files beside the index.",
    )


@lru_cache(maxsize=1024)  # thousands of tensors name the same file
def _is_inside_folder(name: str) -> bool:
    # An index may come from anywhere: it must not make us open files outside of its folder.
    path = PurePosixPath(name.replace("\\", "/"))
    is_outside = path.is_absolute() or ".." in path.parts or ":" in name
    return name.endswith(".safetensors") and name.isprintable() and not is_outside


# -------------------------------------------------------------------------------------- the model


def _build_model(name: str, tensors: Sequence[Tensor], source: str) -> Model:
    if not tensors:
        raise InvalidModel(
            "There are no tensors to plan.", where=source, fix="use a file with weights."
        )
    return Model(name=name, groups=group_tensors(tensors), source=source)


def _with_folder_info(model: Model, folder: Path) -> Model:
    """Return the model with its name and its architecture, taken from the folder."""
    architecture, notes = read_architecture(folder)
    if architecture and (differences := find_contradictions(model.groups, architecture)):
        architecture = None
        notes = (
            *notes,
            "config.json belongs to another model, so activations and caches are not estimated: "
            f"it says {'; it says '.join(differences)}.",
        )
    # In the cache of Hugging Face the folder is a commit hash; the name is two levels above.
    hub_folders = [_HUB_FOLDER.fullmatch(parent.name) for parent in (folder, *folder.parents)]
    hub_names = [f"{match[1]}/{match[2]}" for match in hub_folders if match]
    return replace(
        model,
        name=hub_names[0] if hub_names else folder.name or model.name,
        architecture=architecture,
        notes=(*model.notes, *notes),
    )


def _read_distinct_tensors(files: Iterable[Path]) -> list[Tensor]:
    """Return the tensors of files, or raise if two files have the same tensor."""
    tensors: list[Tensor] = []
    file_of_tensor: dict[str, Path] = {}
    for file in files:
        for tensor in read_header(file):
            first_file = file_of_tensor.setdefault(tensor.path, file)
            if first_file != file:
                raise InvalidModel(
                    f"Tensor {tensor.path!r} is in {first_file.name!r} and in {file.name!r}.",
                    where=str(file.parent),
                    fix="give the path of one file, if the folder has the model twice.",
                )
            tensors.append(tensor)
    return tensors


# -------------------------------------------------------------------------------------- checks


def _check_numbered_files(files: Sequence[str], folder: Path) -> None:
    """Raise if files are numbered `-00001-of-00030` and some of them are missing."""
    numbers_by_series: dict[tuple[str, str], set[int]] = {}
    for name in files:
        if match := _NUMBERED_FILE.fullmatch(name):
            numbers_by_series.setdefault((match[1], match[3]), set()).add(int(match[2]))
    for (stem, total), numbers in numbers_by_series.items():
        if len(numbers) < int(total):
            missing = next(number for number in range(1, int(total) + 1) if number not in numbers)
            raise InvalidModel(
                f"Only {len(numbers):,} of {int(total):,} files {stem}-…-of-{total} are here; "
                f"number {missing} is missing.",
                where=str(folder),
                fix="download the others.",
            )


def _check_files_exist(index: Index, folder: Path, file: Path) -> None:
    missing = [name for name in index.file_names if not exists(folder / name)]
    if missing:
        names = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InvalidModel(
            f"{len(missing):,} of {len(index.file_names):,} files are missing: {names:.300}.",
            where=str(file),
            fix="download them into the folder of the index.",
        )


def _check_listed_tensors(
    index: Index, tensors: Sequence[Tensor], unlisted: Sequence[Tensor], file: Path
) -> None:
    """Raise if a tensor is not in the file that the index names for it."""
    if len(tensors) == len(index.files):
        return
    paths = {tensor.path for tensor in tensors}
    missing = next(path for path in index.files if path not in paths)
    is_elsewhere = any(tensor.path == missing for tensor in unlisted)
    raise InvalidModel(
        f"Tensor {missing!r} is not in {index.files[missing]!r}, where the index lists it."
        + (" Another file has it." if is_elsewhere else ""),
        where=str(file),
        fix="download the index and the files again, from the same revision.",
    )


def _total_size_notes(index: Index, model: Model) -> list[str]:
    if index.total_bytes in (None, model.n_bytes):
        return []
    return [
        f"The index declares a total of {index.total_bytes:,} bytes; the tensors have "
        f"{model.n_bytes:,}."
    ]


def _unlisted_notes(unlisted: Sequence[Tensor]) -> list[str]:
    if not unlisted:
        return []
    names = f"{unlisted[0].path!r}" + (", …" if len(unlisted) > 1 else "")
    return [
        f"{len(unlisted):,} tensors of the files are not in the index and not counted: {names}."
    ]
