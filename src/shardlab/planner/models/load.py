"""Loading a model from any source: a preset, a file, a folder, or a Python object.

>>> load_model("llama3-8b").n_tensors
291
"""

from __future__ import annotations

from os import PathLike, fspath
from os.path import exists, expanduser
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import file_not_found_error, list_folder
from shardlab.errors import InvalidModel, short_repr
from shardlab.planner.model import Model
from shardlab.planner.models.hf_config import load_config_model
from shardlab.planner.models.maxtext import load_sharding_dump
from shardlab.planner.models.orbax import is_checkpoint, load_checkpoint
from shardlab.planner.models.presets import find_preset, unknown_model
from shardlab.planner.models.table import load_table
from shardlab.planner.models.weights import INDEX_SUFFIX, load_file, load_folder, load_index

_SOURCES = (
    "use a preset's name, a .safetensors file, its folder or index, an Orbax checkpoint, a table "
    "in .toml or .json, a config.json, or a pytree."
)


def load_model(model: Any) -> Model:
    """Return the model of a source.

    A preset takes precedence over a file of the same name; write `./name` for the file.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, str):
        return _load_text(model)
    if isinstance(model, PathLike) and isinstance(fspath(model), str):
        return _load_path(Path(model))
    if model is None or isinstance(model, (bytes, int, float, complex)):
        raise InvalidModel(f"{short_repr(model, 200)} is not a model.", fix=_SOURCES)
    # Imported late: with presets and files the command line never needs it.
    from shardlab.planner.models.pytree import model_from_pytree

    return model_from_pytree(model)


def _load_text(text: str) -> Model:
    if "/" not in text and (preset := find_preset(text)):
        return preset
    path = Path(expanduser(text))
    if text and exists(path):
        return _load_path(path)
    # A Hub name such as meta-llama/Llama-3.1-8B looks like a path; an existing path comes first.
    if preset := find_preset(text):
        return preset
    if _looks_like_path(text):
        raise file_not_found_error(path)
    raise unknown_model(text)


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.endswith((".safetensors", ".json", ".toml"))


def _load_path(path: Path) -> Model:
    if exists(path) and path.is_dir():
        return _load_folder(path)
    name = path.name.lower()
    if name.endswith(".safetensors"):
        return load_file(path)
    if name.endswith(INDEX_SUFFIX):
        return load_index(path)
    if name == "named_shardings.json":
        return load_sharding_dump(path)
    if name == "config.json":
        return load_config_model(path)
    if name.endswith((".toml", ".json")):
        return load_table(path)
    if not exists(path):
        raise file_not_found_error(path)
    raise InvalidModel(
        f"{path.name!r} is not a file with the shapes of a model.", where=str(path), fix=_SOURCES
    )


def _load_folder(folder: Path) -> Model:
    names = list_folder(folder)
    if any(name.endswith((".safetensors", INDEX_SUFFIX)) for name in names):
        return load_folder(folder)
    if is_checkpoint(folder):
        return load_checkpoint(folder)
    if "config.json" in names:
        return load_config_model(folder / "config.json")
    raise InvalidModel(
        f"The folder {str(folder)!r} has no safetensors files and is not an Orbax checkpoint.",
        where=str(folder),
        fix=_SOURCES,
    )
