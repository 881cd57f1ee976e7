"""Loading a configuration: the format follows from the name of the file and its content."""

from __future__ import annotations

from os import PathLike, fspath
from os.path import expanduser
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import file_not_found_error, read_bounded_text
from shardlab.errors import InvalidModel, InvalidRunConfig, short_repr
from shardlab.planner.configs.keras_layouts import load_layouts
from shardlab.planner.configs.maxtext_config import load_maxtext, parse_yaml_mapping
from shardlab.planner.configs.megatron_config import (
    YAML_SECTION,
    arguments_of_yaml,
    load_megatron,
    parse_megatron,
)
from shardlab.planner.configs.nemo_recipes import find_recipe, unknown_recipe
from shardlab.planner.configs.run_config import ConfigOptions, RunConfig
from shardlab.planner.configs.torchtitan_config import load_torchtitan
from shardlab.planner.models.hf_config import load_config_model

_MAX_BYTES = 1_000_000
_HF_KEYS = ('"model_type"', '"architectures"', '"text_config"')
_SUFFIXES = (".yml", ".yaml", ".toml", ".json", ".py", ".sh", ".txt", ".args")


def load_run_config(source: Any, options: ConfigOptions | None = None) -> RunConfig:
    """Return the run that a file describes, or the recipe of that name.

    >>> load_run_config("llama31_405b").mesh_text
    'data=8,stage=8,context=2,tensor=8'
    """
    options = options or ConfigOptions()
    if not isinstance(source, (str, PathLike)) or not isinstance(fspath(source), str):
        raise InvalidRunConfig(
            f"{short_repr(source)} is not a configuration.", fix="the path of a file."
        )
    text = fspath(source)
    path = Path(expanduser(text))
    if not text.strip() or "\0" in text or not path.exists():
        recipe = find_recipe(text, options)
        if recipe is not None:
            return recipe
        if text.lower().endswith(_SUFFIXES) and "\0" not in text:
            raise _as_config_error(file_not_found_error(path))
        raise unknown_recipe(text)
    try:
        return _load_file(path, options)
    except InvalidModel as error:  # the file cannot be read, or is too large
        raise _as_config_error(error) from None


def _load_file(file: Path, options: ConfigOptions) -> RunConfig:
    name = file.name.lower()
    if name.endswith((".yml", ".yaml")):
        return _load_yaml(file, options)
    if name.endswith(".toml"):
        return load_torchtitan(file, options)
    if name.endswith(".py"):
        return load_layouts(file, options)
    if name.endswith(".json"):
        return _load_json(file, options)
    return load_megatron(file, options)


def _load_yaml(file: Path, options: ConfigOptions) -> RunConfig:
    text = read_bounded_text(file, _MAX_BYTES)
    if YAML_SECTION not in text:
        return load_maxtext(file, options)
    section = parse_yaml_mapping(text, str(file)).get(YAML_SECTION)
    if not isinstance(section, dict):
        raise InvalidRunConfig(
            f"{YAML_SECTION} is {short_repr(section)}.", where=str(file), fix="a mapping of flags."
        )
    arguments = arguments_of_yaml(section, str(file))
    return parse_megatron(arguments, str(file), options, name=file.absolute().parent.name)


def _load_json(file: Path, options: ConfigOptions) -> RunConfig:
    text = read_bounded_text(file, _MAX_BYTES)
    if not any(key in text for key in _HF_KEYS):
        return load_layouts(file, options)
    model = None if options.has_model else load_config_model(file)
    return RunConfig(
        format="Hugging Face config.json",
        source=str(file),
        model=model,
        mesh=options.mesh,
        settings_read=("sizes of the model",),
        notes=() if model is None else model.notes,
    )


def _as_config_error(error: InvalidModel) -> InvalidRunConfig:
    return InvalidRunConfig(error.what, where=error.where, fix=error.fix)
