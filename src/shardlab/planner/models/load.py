"""A model from whatever a person has: a name, a file, a folder, an object.

>>> load_model("llama3-8b").n_tensors
291
"""

from __future__ import annotations

from os import PathLike, fspath
from os.path import exists, expanduser
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import file_not_found, list_folder
from shardlab.errors import InvalidModel, short_repr
from shardlab.planner.model import Model
from shardlab.planner.models.maxtext import load_sharding_dump
from shardlab.planner.models.orbax import is_checkpoint, load_checkpoint
from shardlab.planner.models.presets import find_preset, unknown_model
from shardlab.planner.models.table import load_table
from shardlab.planner.models.weights import ENDING, load_file, load_folder, load_index

_WANTED = (
    "a preset's name, a .safetensors file, its folder or index, a table in .toml or .json, "
    "or a pytree."
)


def load_model(model: Any) -> Model:
    """Return the model that is meant.

    The name of a preset comes before a file of the same name, which `./name` means.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, str):
        return _of_text(model)
    if isinstance(model, PathLike) and isinstance(fspath(model), str):
        return _of_path(Path(model))
    if model is None or isinstance(model, (bytes, int, float, complex)):
        raise InvalidModel(f"{short_repr(model, 200)} is not a model.", fix=_WANTED)
    from shardlab.planner.models.pytree import model_from_pytree

    return model_from_pytree(model)


def _of_text(text: str) -> Model:
    if "/" not in text and (found := find_preset(text)):
        return found
    path = Path(expanduser(text))
    if text and exists(path):
        return _of_path(path)
    if found := find_preset(text):
        return found
    if _looks_like_path(text):
        raise file_not_found(path)
    raise unknown_model(text)


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.endswith((".safetensors", ".json", ".toml"))


def _of_path(path: Path) -> Model:
    if exists(path) and path.is_dir():
        return _of_folder(path)
    name = path.name.lower()
    if name.endswith(".safetensors"):
        return load_file(path)
    if name.endswith(ENDING):
        return load_index(path)
    if name == "named_shardings.json":
        return load_sharding_dump(path)
    if name.endswith((".toml", ".json")):
        return load_table(path)
    if not exists(path):
        raise file_not_found(path)
    what = f"{path.name!r} is no file that holds a model's shapes."
    raise InvalidModel(what, where=str(path), fix=_WANTED)


def _of_folder(folder: Path) -> Model:
    names = list_folder(folder)
    if any(name.endswith((".safetensors", ENDING)) for name in names):
        return load_folder(folder)
    if is_checkpoint(folder):
        return load_checkpoint(folder)
    what = f"The folder {str(folder)!r} holds no safetensors files, and no Orbax checkpoint."
    raise InvalidModel(what, where=str(folder), fix=_WANTED)
