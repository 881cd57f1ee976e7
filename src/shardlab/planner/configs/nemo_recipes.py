"""NeMo's recipes by name, such as llama3_70b, with the recommended mesh of `nemo_recipes.toml`.

>>> run = find_recipe("llama3_70b", ConfigOptions())
>>> run.mesh_text, run.batch, run.hardware, run.precision
('data=2,stage=4,context=2,tensor=4', 128, 'h100', 'bf16')
>>> find_recipe("llama3_70b", ConfigOptions(precision="fp8")).mesh_text
'data=2,stage=8,tensor=4'
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidRunConfig
from shardlab.hardware.chips import parse_hardware
from shardlab.planner.configs.run_config import (
    ConfigOptions,
    ExpertSplit,
    RunConfig,
    complete_mesh,
    count_batch_shards,
    split_experts,
    strategy_of_mesh,
)
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.presets import load_preset
from shardlab.planner.models.transformer import SmallTensors, transformer_model

FORMAT = "NeMo recipe"
_SOURCE = "NeMo's recommended_model_configs at commit 8cfedd7"
_DEFAULT_HARDWARE, _DEFAULT_PRECISION = "h100", "bf16"


@cache
def _recipe_table() -> Mapping[str, Any]:
    file = files("shardlab.planner.configs").joinpath("nemo_recipes.toml")
    return tomllib.loads(file.read_text("utf-8"))


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes, sorted."""
    return tuple(sorted(_recipe_table()["recipes"]))


def find_recipe(name: str, options: ConfigOptions) -> RunConfig | None:
    """Return the recommended run of a recipe on the options' chip; None for an unknown name."""
    recipes = _recipe_table()["recipes"].get(_normalize(name))
    if recipes is None:
        return None
    recipe = _choose(recipes, name, options)
    split = _parse_mesh(recipe, name, options)
    mesh = split.mesh
    microbatch = recipe["microbatch"] * count_batch_shards(mesh)
    batch = recipe["batch"]
    # Another number of devices than in the table: the batch grows with them.
    if batch % microbatch:
        batch = -(-batch // microbatch) * microbatch
    chunks = recipe.get("virtual", 1)
    return RunConfig(
        format=FORMAT,
        source=f"{_normalize(name)}: {_SOURCE}",
        model=None if options.has_model else _load_model(_normalize(name)),
        mesh=mesh,
        strategy=strategy_of_mesh(
            mesh, 0 if recipe.get("fsdp") else 1, has_wide_experts=split.is_wide
        ),
        hardware=recipe["hardware"],
        batch=batch,
        sequence=recipe["sequence"],
        microbatch=None if microbatch == batch else microbatch,
        remat="full" if recipe.get("recompute_layers") else "none",
        activation_dtype="bfloat16",
        optimizer="adamw",
        # scripts/performance/helpers.py turns grad_reduce_in_fp32 off.
        policy="bfloat16,gradients=bfloat16,moments=float32,master=float32",
        precision=recipe["precision"],
        framework="megatron",
        schedule=f"interleaved:{chunks}" if chunks > 1 else "1f1b",
        settings_read=tuple(f"{key}: {value}" for key, value in recipe.items()),
        notes=tuple(filter(None, (split.note, _recompute_note(recipe)))),
    )


def unknown_recipe(name: str) -> InvalidRunConfig:
    """Return the error for text that is neither a file nor a recipe."""
    nearest = nearest_name(name, recipe_names())
    suggestion = f"Did you mean {nearest!r}? " if nearest else ""
    return InvalidRunConfig(
        f"{name!r:.120} is neither a file nor a recipe of NeMo.",
        where=f"recipes: {', '.join(recipe_names())}",
        fix=f"{suggestion}Use the path of a configuration: MaxText's YAML, a Megatron script, "
        "torchtitan's TOML, a config.json, or a Keras LayoutMap.",
    )


def _normalize(name: str) -> str:
    return name.strip().lower().replace("-", "_").removeprefix("nemo:")


def _choose(recipes: list[dict[str, Any]], name: str, options: ConfigOptions) -> dict[str, Any]:
    """Return the recipe for the chip and the precision of the options."""
    chip, precision = _DEFAULT_HARDWARE, options.precision or _DEFAULT_PRECISION
    if options.hardware is not None:
        chip = parse_hardware(options.hardware).name
    for recipe in recipes:
        if (recipe["hardware"], recipe["precision"]) == (chip, precision):
            return recipe
    available = ", ".join(f"{recipe['hardware']} {recipe['precision']}" for recipe in recipes)
    raise InvalidRunConfig(
        f"NeMo recommends nothing for {name!r:.80} on {chip} in {precision}.",
        where=f"available: {available}",
        fix="--hardware and --precision of one of these.",
    )


def _parse_mesh(recipe: Mapping[str, Any], name: str, options: ConfigOptions) -> ExpertSplit:
    axis = "fsdp" if recipe.get("fsdp") else "data"
    sizes = {axis: -1, **{key: recipe.get(key, 1) for key in ("stage", "context", "tensor")}}
    devices = options.n_devices or recipe["devices"]
    completed = ConfigOptions(n_devices=devices, mesh=options.mesh)
    mesh = complete_mesh(sizes, completed, f"recipe {name:.80}", remaining="Data parallelism")
    if options.mesh is not None:
        return ExpertSplit(sizes=dict(mesh.shape))
    filled = {key: mesh.shape.get(key, 1) for key in sizes}
    return split_experts(filled, recipe.get("expert", 1), axis)


def _load_model(name: str) -> Model:
    table = _recipe_table()
    if name in table["presets"]:
        return load_preset(table["presets"][name])
    arch = Architecture(**table["architectures"][name])
    is_gpt = name.startswith("gpt3")  # biases and learned positions; Nemotron has neither
    small = SmallTensors(
        norm_biases=True,
        query_key_value_biases=is_gpt,
        output_bias=is_gpt,
        mlp_biases=is_gpt,
        positions=2048 if is_gpt else 0,
    )
    return transformer_model(name, arch, source=_SOURCE, small_tensors=small)


def _recompute_note(recipe: Mapping[str, Any]) -> str:
    if modules := recipe.get("recompute_modules"):
        return f"The recipe recomputes {modules}: counted as recomputing nothing."
    if layers := recipe.get("recompute_layers"):
        return f"The recipe recomputes {layers} layers: counted as recomputing all."
    return ""
