"""MaxText's YAML: `base.yml` and the files that inherit from it.

Keys, defaults and their meaning are those of MaxText's configs/base.yml (commit e591f30). A file
that names no mesh, batch or dtype has base.yml's, as in MaxText. The sizes of a model come from its
own file in the folder `models`, if that is present, or from the preset of its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_bounded_text
from shardlab._files.yaml_reader import parse_yaml
from shardlab.errors import InvalidRunConfig, LabError, short_repr
from shardlab.planner.configs.run_config import (
    ConfigOptions,
    RunConfig,
    complete_mesh,
    strategy_of_mesh,
)
from shardlab.planner.configs.settings import Settings
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.presets import find_preset, unknown_model
from shardlab.planner.models.transformer import SmallTensors, transformer_model
from shardlab.planner.plan_mesh import MAXTEXT_AXES
from shardlab.planner.tpu_slices import parse_tpu_slice
from shardlab.sharding.mesh import Mesh

FORMAT = "MaxText YAML"
_MAX_BYTES = 1_000_000
_MAX_PARENTS = 5
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
# Setting -> field of an architecture, for files that change single sizes of a known model
_SIZE_FIELDS = {
    "base_emb_dim": "hidden",
    "base_num_decoder_layers": "layers",
    "base_mlp_dim": "ffn",
    "base_num_query_heads": "heads",
    "base_num_kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab",
}
# Axis -> the middle of its two settings, ici_<name>_parallelism and dcn_<name>_parallelism
_AXIS_SETTINGS = {name: "pipeline" if name == "stage" else name for name in MAXTEXT_AXES}
_DEFAULT_DEGREES = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}
# remat_policy -> ours; other policies name tensors
_REMAT = {
    "none": "none",
    "full": "full",
    "minimal": "dots",
    "minimal_flash": "none",
    "minimal_with_context": "none",
    "minimal_with_quantization": "dots",
    "minimal_with_context_and_quantization": "none",
}
_QKV = ("query_proj", "key_proj", "value_proj")
_SAVED_TENSORS = {
    "save_qkv_proj": _QKV,
    "save_out_proj": ("out_proj",),
    "save_dot_except_mlp": (*_QKV, "out_proj"),
    "save_dot_with_context_except_mlp": (*_QKV, "out_proj", "context"),
    "save_dot_except_mlpwi": (*_QKV, "out_proj", "mlpwo"),
}
_OFFLOADED_TENSORS = {
    "qkv_proj_offloaded": _QKV,
    "minimal_offloaded": (*_QKV, "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo"),
}
_CUSTOM_TENSORS = (
    *_QKV,
    *("context", "out_proj", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "qkv_proj"),
)
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adam", "sgd": "sgd", "muon": "muon"}


@dataclass(frozen=True, kw_only=True)
class MaxTextFiles:
    """The merged settings of a file and its parents, and what they say about the model."""

    values: Mapping[str, Any]
    own_names: frozenset[str] = frozenset()  # settings besides those of the root, base.yml
    has_model_file: bool = False  # models/<model_name>.yml was read too
    notes: tuple[str, ...] = ()


def load_maxtext(file: Path, options: ConfigOptions) -> RunConfig:
    """Return the run that a file and the files it inherits from describe."""
    return parse_maxtext(_read_with_parents(file), str(file), options)


def _read_with_parents(file: Path) -> MaxTextFiles:
    """Return the settings of a file over those of its `base_config`, if that file is present."""
    files, folders = [_read_mapping(file)], [file.parent]
    parent, notes = files[0].get("base_config"), []
    while parent:
        if not isinstance(parent, str) or len(files) > _MAX_PARENTS:
            raise InvalidRunConfig(
                f"base_config is {short_repr(parent)}.",
                where=str(file),
                fix=f"the path of a file, through at most {_MAX_PARENTS} files.",
            )
        path = folders[-1] / parent
        if not path.is_file():
            notes.append(f"{parent!r:.80} is not beside it: MaxText's defaults are used instead.")
            break
        files.append(_read_mapping(path))
        folders.append(path.parent)
        parent = files[-1].get("base_config")
    is_root_read = len(files) > 1 and not notes
    own_files = files[:-1] if is_root_read else files
    values: dict[str, Any] = {}
    for settings in reversed(files):
        values |= settings
    model_file = _find_model_file(values.get("model_name"), folders)
    if model_file is not None:
        own_values = {name: value for settings in own_files for name, value in settings.items()}
        is_overridden = values.get("override_model_config") is True
        values |= _read_mapping(model_file)
        values |= own_values if is_overridden else {}
    return MaxTextFiles(
        values=values,
        own_names=frozenset(name for settings in own_files for name in settings),
        has_model_file=model_file is not None,
        notes=tuple(notes),
    )


def _find_model_file(name: Any, folders: list[Path]) -> Path | None:
    """Return models/<name>.yml beside one of the files, as MaxText stores the sizes of models."""
    if not isinstance(name, str) or not _MODEL_NAME.fullmatch(name):
        return None
    files = (folder / "models" / f"{name}.yml" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _read_mapping(file: Path) -> dict[str, Any]:
    text = read_bounded_text(file, _MAX_BYTES)
    return parse_yaml_mapping(text, str(file))


def parse_yaml_mapping(text: str, where: str) -> dict[str, Any]:
    """Return the mapping of a YAML text with text as keys."""
    try:
        data = parse_yaml(text)
    except ValueError as error:
        raise InvalidRunConfig(
            f"The file is not valid YAML: {error!s:.200}.", where=where, fix="fix it at this line."
        ) from None
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise InvalidRunConfig(
            "The file is not a mapping of settings.",
            where=where,
            fix="write settings such as base_emb_dim: 4096.",
        )
    return dict(data)


def parse_maxtext(files: MaxTextFiles, where: str, options: ConfigOptions) -> RunConfig:
    """Return the run that settings of MaxText describe.

    >>> files = MaxTextFiles(values={"model_name": "llama3-8b", "per_device_batch_size": 2,
    ...     "ici_tensor_parallelism": 4})
    >>> run = parse_maxtext(files, "my.yml", ConfigOptions(n_devices=32))
    >>> run.mesh_text, run.batch, run.strategy
    ('fsdp=8,tensor=4', 64, 'fsdp+tensor')
    """
    settings = Settings(files.values, where)
    settings.mark_read(["base_config"])
    model = None if options.has_model else _parse_model(settings, files)
    hardware, mesh = _parse_mesh(settings, options)
    batch, microbatch = _parse_batch(settings, mesh)
    remat, offload = _parse_remat(settings)
    precision, precision_notes = _parse_precision(settings)
    zero_stage = 1 if settings.flag("shard_optimizer_over_data") else 0
    run = RunConfig(
        format=FORMAT,
        source=where,
        model=model,
        mesh=mesh,
        strategy=strategy_of_mesh(mesh, zero_stage),
        hardware=hardware,
        batch=batch,
        sequence=settings.size("max_target_length", 2048),
        microbatch=microbatch,
        remat=remat,
        offload=offload or None,
        offload_optimizer=settings.flag("optimizer_memory_host_offload") or None,
        # 1 is MaxText's default, and means that the vocabulary is not tiled.
        loss_chunks=max(settings.size("num_vocab_tiling", 1), 1),
        activation_dtype=settings.text("dtype", "bfloat16"),
        flash=settings.text("attention", "autoselected") != "dot_product",
        optimizer=settings.choice("opt_type", _OPTIMIZERS, "adamw"),
        policy=_parse_policy(settings),
        precision=precision,
        framework="maxtext",
        schedule=_parse_schedule(settings),
        settings_read=settings.read,
        settings_ignored=settings.ignored,
        notes=(*files.notes, *precision_notes),
    )
    settings.check_spelling()
    return run


# ---------------------------------------------------------------------------------------- the model


def _parse_model(settings: Settings, files: MaxTextFiles) -> Model:
    name = settings.text("model_name", "default") or "default"
    if name == "default" or files.has_model_file:
        arch, small = _parse_sizes(settings)
        label = "maxtext" if name == "default" else name
        return transformer_model(label, arch, source=settings.where, small_tensors=small)
    preset = find_preset(name)
    own_sizes = [key for key in _SIZE_FIELDS if key in files.own_names]
    if preset is not None and preset.architecture is not None:
        if not (own_sizes and settings.flag("override_model_config")):
            return preset
        changes: dict[str, Any] = {_SIZE_FIELDS[key]: settings.size(key) for key in own_sizes}
        arch = replace(preset.architecture, **changes)
        return transformer_model(name, arch, source=settings.where)
    if own_sizes:
        arch, small = _parse_sizes(settings)
        return transformer_model(name, arch, source=settings.where, small_tensors=small)
    raise InvalidRunConfig(
        f"model_name is {name!r:.80}, and its sizes are not in the file.",
        where=settings.where,
        fix=f"copy its file to models/{name:.80}.yml beside this one. {unknown_model(name).fix}",
    )


def _parse_sizes(settings: Settings) -> tuple[Architecture, SmallTensors]:
    scale = settings.size("global_parameter_scale", 1)
    if scale != 1:
        raise settings.error("global_parameter_scale", "1; write the scaled sizes instead")
    heads = settings.size("base_num_query_heads", 16)
    experts = settings.count("num_experts", 1)
    mixture: dict[str, Any] = {}
    ffn = settings.size("base_mlp_dim", 7168)
    activations = settings.take("mlp_activations")
    if experts > 1:
        mixture, ffn = _parse_mixture(settings, experts, ffn)
    latent, small = _parse_latent(settings)
    head_dim = latent.pop("head_dim", 0) or settings.size("head_dim", 128)
    layers = settings.size("base_num_decoder_layers", 16)
    arch = Architecture(
        layers=layers,
        hidden=settings.size("base_emb_dim", 2048),
        heads=heads,
        kv_heads=settings.size("base_num_kv_heads", 16),
        head_dim=head_dim,
        ffn=ffn,
        vocab=settings.size("vocab_size", 32_000),
        tied_embeddings=settings.flag("logits_via_embedding"),
        gated=not isinstance(activations, list) or len(activations) > 1,
        **mixture,
        **latent,
        **_parse_window(settings, layers),
    )
    return arch, small


def _parse_mixture(settings: Settings, experts: int, ffn: int) -> tuple[dict[str, Any], int]:
    width = settings.degree("base_moe_mlp_dim", -1)
    layers = settings.size("base_num_decoder_layers", 16)
    dense = settings.count("first_num_dense_layers")
    # Llama 4: one of `step` layers has experts.
    step = settings.size("interleave_moe_layer_step", 1)
    if step > 1:
        dense = layers - layers // step
    fields = {
        "experts": experts,
        "top_k": settings.size("num_experts_per_tok", 1),
        "shared_experts": settings.count("shared_experts"),
        "dense_layers": dense,
        "dense_ffn": ffn if dense else 0,
        "expert_groups": max(settings.degree("n_routing_groups", -1), 0),
        "top_groups": max(settings.degree("topk_routing_group", -1), 0),
    }
    return fields, ffn if width == -1 else width


def _parse_latent(settings: Settings) -> tuple[dict[str, Any], SmallTensors]:
    has_bias = settings.flag("attention_bias")
    block = settings.text("decoder_block", "llama2")
    small = SmallTensors(
        query_key_norms=settings.flag("use_qk_norm") or block == "gemma3",
        output_norms=block in ("gemma2", "gemma3"),
        query_key_value_biases=has_bias,
        output_bias=has_bias,
        mlp_biases=settings.flag("mlp_bias"),
        attention_sinks=settings.flag("attention_sink"),
        router_bias=settings.flag("routed_bias"),
        q_lora_rank=settings.count("q_lora_rank"),
    )
    if settings.text("attention_type", "global") != "mla":
        return {}, small
    rope = settings.size("qk_rope_head_dim", 64)
    return {
        "kv_lora_rank": settings.size("kv_lora_rank", 512),
        "rope_head_dim": rope,
        "head_dim": settings.size("qk_nope_head_dim", 128) + rope,
        "v_head_dim": settings.size("v_head_dim", 128),
    }, small


def _parse_window(settings: Settings, layers: int) -> dict[str, Any]:
    window = settings.count("sliding_window_size")
    if not window:
        return {}
    # The decoder blocks of these families decide which layers are local.
    n_global = {"gemma2": layers // 2, "gemma3": layers // 6, "gpt_oss": layers // 2}
    block = settings.text("decoder_block", "llama2")
    return {"window": window, "window_layers": layers - n_global.get(block, 0)}


# ------------------------------------------------------------------------------- mesh and workload


def _parse_mesh(settings: Settings, options: ConfigOptions) -> tuple[str | None, Mesh]:
    """Return the chip if the file names a topology, and the mesh: ICI times DCN."""
    topology = settings.text("compile_topology")
    n_slices = max(settings.degree("compile_topology_num_slices", -1), 1)
    hardware, n_devices = None, options.n_devices
    if topology:
        try:
            tpu_slice = parse_tpu_slice(topology)
        except LabError as error:
            raise InvalidRunConfig(
                error.what, where=f"{settings.where}, compile_topology", fix=error.fix
            ) from None
        hardware, n_devices = tpu_slice.hardware, n_devices or tpu_slice.n_devices * n_slices
    sizes = {}
    for axis, name in _AXIS_SETTINGS.items():
        ici, dcn = (
            settings.degree(key, _DEFAULT_DEGREES.get(key, 1))
            for key in (f"ici_{name}_parallelism", f"dcn_{name}_parallelism")
        )
        # dcn_data is -1 by default: as many as there are slices.
        n_dcn = n_slices if dcn == -1 else dcn
        sizes[axis] = -1 if ici == -1 else ici * n_dcn
        if ici == -1 and n_dcn > 1:
            raise settings.error(f"ici_{name}_parallelism", "a size, because the axis spans slices")
    mesh = complete_mesh(
        sizes,
        ConfigOptions(n_devices=n_devices, mesh=options.mesh),
        settings.where,
        remaining="ici_fsdp_parallelism: -1" if sizes["fsdp"] == -1 else "-1",
    )
    return hardware, mesh


def _parse_batch(settings: Settings, mesh: Mesh) -> tuple[int, int | None]:
    """Return the sequences of a step, and of a microbatch if gradients are accumulated."""
    per_device = settings.number("per_device_batch_size", 12.0)
    n_at_once = per_device * mesh.n_devices
    if n_at_once < 1 or n_at_once != int(n_at_once):
        raise InvalidRunConfig(
            f"per_device_batch_size {per_device:g} on {mesh.n_devices:,} devices are "
            f"{n_at_once:g} sequences.",
            where=settings.where,
            fix="a size with which the batch is a whole number.",
        )
    steps = settings.size("gradient_accumulation_steps", 1)
    n_pipeline = settings.degree("num_pipeline_microbatches", -1)
    n_batch = int(n_at_once) * steps
    if mesh.shape.get("stage", 1) > 1:
        n_pipeline = mesh.shape["stage"] if n_pipeline == -1 else n_pipeline
        n_at_once = n_at_once / n_pipeline
    if n_at_once == n_batch or n_at_once != int(n_at_once):
        return n_batch, None
    return n_batch, int(n_at_once)


def _parse_remat(settings: Settings) -> tuple[str, str]:
    """Return the remat policy, and the tensors that it saves on the host."""
    policy = settings.text("remat_policy", "full").lower()
    if policy in _REMAT:
        return _REMAT[policy], ""
    if policy == "custom":
        names = (*_CUSTOM_TENSORS, "decoder_layer_input")
        places = {name: settings.text(name, "remat") for name in names}
        saved = [name for name in _CUSTOM_TENSORS if places[name] in ("device", "offload")]
        offloaded = [name for name in names if places[name] == "offload"]
        return "+".join(saved) or "full", "+".join(offloaded)
    if policy in _SAVED_TENSORS:
        return "+".join(_SAVED_TENSORS[policy]), ""
    if policy in _OFFLOADED_TENSORS:
        names_text = "+".join(_OFFLOADED_TENSORS[policy])
        return names_text, names_text
    known = ", ".join((*_REMAT, *_SAVED_TENSORS, *_OFFLOADED_TENSORS, "custom"))
    raise settings.error("remat_policy", f"one of {known}")


def _parse_policy(settings: Settings) -> str:
    """Return the dtype policy: MaxText's weights are their own master copy."""
    weights = settings.text("weight_dtype", "float32")
    gradients = settings.text("grad_dtype", "float32")
    moments = settings.text("mu_dtype") or weights
    return f"{weights},gradients={gradients},moments={moments},master=none"


def _parse_precision(settings: Settings) -> tuple[str, tuple[str, ...]]:
    quantization = settings.text("quantization").lower()
    if not quantization:
        return "bf16", ()
    for prefix, precision in (("int8", "int8"), ("intmp", "int8"), ("aqt_int8", "int8")):
        if quantization.startswith(prefix):
            return precision, ()
    if "fp8" in quantization:
        return "fp8", ()
    return "bf16", (f"quantization {quantization!r:.40} is not known: counted as bf16.",)


def _parse_schedule(settings: Settings) -> str:
    n_repeats = settings.degree("num_pipeline_repeats", -1)
    settings.mark_read(["num_layers_per_pipeline_stage"])
    return f"interleaved:{n_repeats}" if n_repeats > 1 else "1f1b"
