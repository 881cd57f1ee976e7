"""torchtitan's TOML: the files `train_configs/*.toml` of its releases up to 2025.

Tables, keys and defaults are those of torchtitan/config/job_config.py; newer releases configure
runs in Python, which is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_bounded_text
from shardlab._files.toml_reader import parse_toml
from shardlab.errors import InvalidRunConfig
from shardlab.planner.configs.run_config import (
    ConfigOptions,
    ExpertSplit,
    RunConfig,
    complete_mesh,
    count_batch_shards,
    split_experts,
    strategy_of_mesh,
)
from shardlab.planner.configs.settings import Settings
from shardlab.planner.model import Model
from shardlab.planner.models.presets import find_preset
from shardlab.sharding.mesh import Mesh

FORMAT = "torchtitan TOML"
_MAX_BYTES = 400_000
_TABLES = ("model", "training", "parallelism", "activation_checkpoint")
# name and flavor of a model -> preset
_MODELS = {
    "llama3 8b": "llama3-8b",
    "llama3 70b": "llama3-70b",
    "llama3 405b": "llama3.1-405b",
    "llama4 17bx16e": "llama4-scout",
    "llama4 17bx128e": "llama4-maverick",
    "deepseek_v3 671b": "deepseek-v3-main",
    "gpt_oss 20b": "gpt-oss-20b",
    "gpt_oss 120b": "gpt-oss-120b",
    "qwen3 0.6b": "qwen3-0.6b",
    "qwen3 1.7b": "qwen3-1.7b",
    "qwen3 4b": "qwen3-4b",
    "qwen3 8b": "qwen3-8b",
    "qwen3 14b": "qwen3-14b",
    "qwen3 32b": "qwen3-32b",
    "qwen3 30b-a3b": "qwen3-30b-a3b",
    "qwen3 235b-a22b": "qwen3-235b-a22b",
}
_REMAT = {"none": "none", "full": "full", "selective": "dots", "memory_budget": "dots"}
_OPTIMIZERS = {"adam": "adam", "adamw": "adamw"}
_SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "1f1b",
    "interleaved1f1b": "interleaved:2",
    "interleavedzerobubble": "zero-bubble",
    "zbvzerobubble": "zero-bubble",
    "dualpipev": "zero-bubble",
}


def load_torchtitan(file: Path, options: ConfigOptions) -> RunConfig:
    """Return the run that a file describes."""
    text = read_bounded_text(file, _MAX_BYTES)
    try:
        data = parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRunConfig(
            f"The file is not valid TOML: {error!s:.200}.", where=str(file), fix="fix it there."
        ) from None
    return parse_torchtitan(data, str(file), options)


def parse_torchtitan(data: Mapping[str, Any], where: str, options: ConfigOptions) -> RunConfig:
    """Return the run that tables of torchtitan describe.

    >>> data = {"model": {"name": "llama3", "flavor": "8B"}, "training": {"seq_len": 8192},
    ...     "parallelism": {"tensor_parallel_degree": 2}}
    >>> run = parse_torchtitan(data, "train.toml", ConfigOptions(n_devices=16))
    >>> run.mesh_text, run.batch, run.model.name
    ('fsdp=8,tensor=2', 64, 'llama3-8b')
    """
    if not any(isinstance(data.get(table), Mapping) for table in _TABLES):
        raise InvalidRunConfig(
            "The file has no table of torchtitan.",
            where=where,
            fix=f"one of {', '.join(f'[{table}]' for table in _TABLES)}.",
        )
    settings = Settings(_flatten(data), where)
    model = None if options.has_model else _parse_model(settings)
    split = _parse_mesh(settings, options)
    mesh = split.mesh
    batch, microbatch = _parse_batch(settings, mesh)
    remat, remat_notes = _parse_remat(settings)
    run = RunConfig(
        format=FORMAT,
        source=where,
        model=model,
        mesh=mesh,
        strategy=strategy_of_mesh(mesh, has_wide_experts=split.is_wide),
        batch=batch,
        sequence=settings.size("training.seq_len", 2048),
        microbatch=microbatch,
        remat=remat,
        activation_dtype=settings.text("training.mixed_precision_param", "bfloat16"),
        optimizer=settings.choice("optimizer.name", _OPTIMIZERS, "adamw"),
        policy=_parse_policy(settings),
        precision=_parse_precision(settings),
        framework="torchtitan",
        schedule=_parse_schedule(settings),
        settings_read=settings.read,
        settings_ignored=settings.ignored,
        notes=tuple(note for note in (split.note, *remat_notes) if note),
    )
    settings.check_spelling()
    return run


def _flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _parse_model(settings: Settings) -> Model:
    name, flavor = settings.text("model.name", "llama3"), settings.text("model.flavor")
    preset = _MODELS.get(f"{name} {flavor}".lower())
    model = None if preset is None else find_preset(preset)
    if model is None:
        raise InvalidRunConfig(
            f"The flavor {flavor!r:.60} of {name!r:.60} is not known.",
            where=f"{settings.where}, model.flavor",
            fix="name the model beside it, as in: shardlab plan llama3-8b --config train.toml.",
        )
    return model


def _parse_mesh(settings: Settings, options: ConfigOptions) -> ExpertSplit:
    prefix = "parallelism."
    sizes = {
        "data": settings.size(f"{prefix}data_parallel_replicate_degree", 1),
        "stage": settings.size(f"{prefix}pipeline_parallel_degree", 1),
        "fsdp": settings.degree(f"{prefix}data_parallel_shard_degree", -1),
        "context": settings.size(f"{prefix}context_parallel_degree", 1),
        "tensor": settings.size(f"{prefix}tensor_parallel_degree", 1),
    }
    n_experts = settings.size(f"{prefix}expert_parallel_degree", 1)
    expert_tensor = settings.size(f"{prefix}expert_tensor_parallel_degree", 1)
    mesh = complete_mesh(
        sizes, options, settings.where, remaining="data_parallel_shard_degree = -1"
    )
    if options.mesh is not None:
        return ExpertSplit(sizes=dict(mesh.shape))
    filled = {name: mesh.shape.get(name, 1) for name in sizes}
    return split_experts(filled, n_experts, "fsdp", expert_tensor=expert_tensor)


def _parse_batch(settings: Settings, mesh: Mesh) -> tuple[int, int | None]:
    """Return the sequences of a step, and of a microbatch if they are fewer."""
    n_replicas = count_batch_shards(mesh)
    local = settings.size("training.local_batch_size", settings.size("training.batch_size", 8))
    batch = settings.degree("training.global_batch_size", -1)
    if batch == -1:
        batch = local * n_replicas
    at_once = local
    if mesh.shape.get("stage", 1) > 1:
        at_once = settings.size("parallelism.pipeline_parallel_microbatch_size", 1)
    microbatch = at_once * n_replicas
    if batch % microbatch:
        raise InvalidRunConfig(
            f"The global batch of {batch:,} is not a multiple of {microbatch:,} sequences, which "
            f"{n_replicas:,} data-parallel ranks compute at once.",
            where=settings.where,
            fix="other batch sizes, or another number of devices.",
        )
    return batch, None if microbatch == batch else microbatch


def _parse_remat(settings: Settings) -> tuple[str, tuple[str, ...]]:
    mode = settings.text("activation_checkpoint.mode", "selective").lower()
    remat = settings.choice("activation_checkpoint.mode", _REMAT, "selective")
    option = settings.take("activation_checkpoint.selective_ac_option")
    if mode == "selective" and f"{option}".isdecimal() and f"{option}" != "1":
        return remat, (f"selective_ac_option {option}: counted as if every layer saved its dots.",)
    if mode == "memory_budget":
        return remat, ("memory_budget: counted as saving the outputs of matrix products.",)
    return remat, ()


def _parse_policy(settings: Settings) -> str:
    """Return the dtype policy: FSDP stores float32 shards and gathers them in bf16."""
    dtype = settings.text("training.dtype", "float32")
    gradients = settings.text("training.mixed_precision_reduce", "float32")
    return f"{dtype},gradients={gradients},moments={dtype},master=none"


def _parse_precision(settings: Settings) -> str:
    converters = settings.take("model.converters")
    names = [f"{item}" for item in converters] if isinstance(converters, list) else []
    return "fp8" if any("float8" in name or "mx" in name for name in names) else "bf16"


def _parse_schedule(settings: Settings) -> str:
    name = settings.text("parallelism.pipeline_parallel_schedule", "1F1B").lower()
    return _SCHEDULES.get(name, "1f1b")
