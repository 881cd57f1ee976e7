"""Megatron's arguments: a launch script, a file of flags, or the YAML of its functional tests.

Flags, defaults and their meaning are those of megatron/training/arguments.py (Megatron-LM, commit
d98e8a6). The script is read, not run (`shell_arguments.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_bounded_text
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
from shardlab.planner.configs.shell_arguments import MAX_BYTES, Arguments, read_arguments
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.presets import find_preset
from shardlab.planner.models.transformer import SmallTensors, transformer_model
from shardlab.sharding.mesh import Mesh

FORMAT = "Megatron arguments"
YAML_SECTION = "MODEL_ARGS"  # of Megatron's functional tests
_MIN_FLAGS = 3  # that a file must have in common with Megatron
_SWITCHES = (
    *("group-query-attention", "use-distributed-optimizer", "sequence-parallel", "swiglu", "bf16"),
    *("fp16", "untie-embeddings-and-output-weights", "disable-bias-linear", "add-qkv-bias"),
    *("recompute-activations", "use-flash-attn", "multi-latent-attention", "qk-layernorm"),
    *("use-megatron-fsdp", "use-torch-fsdp2", "use-custom-fsdp", "grad-reduce-in-bf16"),
    *("use-mcore-models", "overlap-grad-reduce", "overlap-param-gather", "mock-data"),
    *("fp8-param-gather", "moe-grouped-gemm", "squared-relu", "accumulate-allreduce-grads-in-fp32"),
)
_FSDP_SWITCHES = ("use-megatron-fsdp", "use-torch-fsdp2", "use-custom-fsdp")
# Variables that launch scripts use for the number of nodes and of GPUs per node
_NODE_NAMES = ("NNODES", "NUM_NODES", "N_NODES", "SLURM_NNODES")
_GPU_NAMES = ("GPUS_PER_NODE", "NPROC_PER_NODE", "GPUS")
_LAYER_PATTERN = re.compile(r"\s*\[([01])\]\s*\*\s*(\d{1,6})\s*")
_TOKENIZERS = {"GPT2BPETokenizer": 50_257}
_RECOMPUTE = {"": "none", "full": "full", "selective": "selective"}
_OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "sgd": "momentum",
    "muon": "muon",
    "dist_muon": "muon",
}


def load_megatron(file: Path, options: ConfigOptions) -> RunConfig:
    """Return the run of a launch script or a file of flags."""
    arguments = read_arguments(read_bounded_text(file, MAX_BYTES), str(file), _SWITCHES)
    return parse_megatron(arguments, str(file), options, name=file.stem)


def arguments_of_yaml(section: Mapping[str, Any], where: str) -> Arguments:
    """Return the flags of a mapping such as {"--num-layers": 12}."""
    flags: dict[str, Any] = {}
    for name, value in section.items():
        if isinstance(value, bool):
            if value:  # false leaves a switch out
                flags[str(name).lstrip("-").replace("_", "-")] = True
        elif isinstance(value, (str, int, float)):
            flags[str(name).lstrip("-").replace("_", "-")] = f"{value}"
        else:
            raise InvalidRunConfig(
                f"{name!s:.80} is no flag with one value.", where=where, fix="--num-layers: 12."
            )
    return Arguments(flags=flags)


def parse_megatron(
    arguments: Arguments, where: str, options: ConfigOptions, name: str = "megatron"
) -> RunConfig:
    """Return the run that flags of Megatron describe.

    >>> text = '''--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000
    ... --tensor-model-parallel-size 4 --micro-batch-size 2 --global-batch-size 64
    ... --seq-length 4096 --use-distributed-optimizer'''
    >>> arguments = read_arguments(text, "flags", _SWITCHES)
    >>> run = parse_megatron(arguments, "flags", ConfigOptions(n_devices=32))
    >>> run.mesh_text, run.strategy, run.microbatch
    ('data=8,tensor=4', 'tensor+zero1', 16)
    """
    settings = Settings({f"--{flag}": value for flag, value in arguments.flags.items()}, where)
    _check_is_megatron(arguments, where)
    tensor = settings.size("--tensor-model-parallel-size", 1)
    model = None if options.has_model else _parse_model(settings, tensor, name)
    split = _parse_mesh(settings, arguments, options, tensor)
    mesh = split.mesh
    n_replicas = count_batch_shards(mesh)
    microbatch = settings.size("--micro-batch-size", 1) * n_replicas
    batch = settings.size("--global-batch-size", microbatch)
    if batch % microbatch:
        raise InvalidRunConfig(
            f"--global-batch-size {batch:,} is not a multiple of --micro-batch-size times "
            f"{n_replicas:,} data-parallel ranks, {microbatch:,}.",
            where=where,
            fix="other sizes, or another number of devices.",
        )
    zero_stage = 1 if settings.flag("--use-distributed-optimizer") else 0
    remat, remat_notes = _parse_recompute(settings)
    notes = [note for note in (split.note, *remat_notes) if note]
    if arguments.has_conditions:
        notes.append("The script has conditions: flags of every branch were read, the last counts.")
    run = RunConfig(
        format=FORMAT,
        source=where,
        model=model,
        mesh=mesh,
        strategy=strategy_of_mesh(mesh, zero_stage, has_wide_experts=split.is_wide),
        batch=batch,
        sequence=settings.size("--seq-length"),
        microbatch=microbatch if microbatch != batch else None,
        remat=remat,
        activation_dtype=_parse_dtype(settings),
        flash=_has_flash(settings),
        sequence_parallel=settings.flag("--sequence-parallel"),
        optimizer=settings.choice("--optimizer", _OPTIMIZERS, "adam"),
        policy=_parse_policy(settings),
        precision="fp8" if settings.text("--fp8-format") else "bf16",
        framework="megatron",
        schedule=_parse_schedule(settings, mesh),
        settings_read=settings.read,
        settings_ignored=settings.ignored,
        notes=tuple(notes),
    )
    settings.check_spelling()
    return run


def _check_is_megatron(arguments: Arguments, where: str) -> None:
    known = ("num-layers", "hidden-size", "num-attention-heads", "seq-length", "micro-batch-size")
    more = ("global-batch-size", "tensor-model-parallel-size", "pipeline-model-parallel-size")
    if sum(flag in arguments.flags for flag in (*known, *more)) < _MIN_FLAGS:
        raise InvalidRunConfig(
            "The file has no flags of Megatron.",
            where=where,
            fix="flags such as --num-layers 32 --hidden-size 4096 --micro-batch-size 1.",
        )


# ---------------------------------------------------------------------------------------- the model


def _parse_model(settings: Settings, tensor: int, name: str) -> Model:
    hidden, heads = settings.size("--hidden-size"), settings.size("--num-attention-heads")
    layers, gated = settings.size("--num-layers"), settings.flag("--swiglu")
    # arguments.py: 4 h, or with SwiGLU two thirds of it, rounded down to a multiple of 64.
    usual_ffn = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    ffn = settings.size("--ffn-hidden-size", max(usual_ffn, 1))
    mixture, ffn = _parse_mixture(settings, layers, ffn)
    latent = _parse_latent(settings)
    head_dim = settings.size("--kv-channels", max(hidden // heads, 1))
    has_groups = settings.flag("--group-query-attention")
    kv_heads = settings.size("--num-query-groups", 1) if has_groups else heads
    arch = Architecture(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=_parse_vocab(settings, tensor),
        tied_embeddings=not settings.flag("--untie-embeddings-and-output-weights"),
        gated=gated,
        **mixture,
        **{"head_dim": head_dim, **latent},
    )
    small = _parse_small_tensors(settings)
    return transformer_model(name, arch, source=settings.where, small_tensors=small)


def _parse_vocab(settings: Settings, tensor: int) -> int:
    """Return the rows of the embedding: padded so that the tensor ranks have equal shares."""
    vocab = settings.optional_size("--padded-vocab-size")
    if vocab is not None:
        return vocab
    vocab = settings.optional_size("--vocab-size") or _find_vocab(settings)
    if vocab is None:
        raise InvalidRunConfig(
            "--vocab-size is missing: the tokenizer decides it.",
            where=settings.where,
            fix="add --vocab-size 128256, or name the model: shardlab plan llama3-8b --config ....",
        )
    multiple = settings.size("--make-vocab-size-divisible-by", 128) * tensor
    return -(-vocab // multiple) * multiple


def _find_vocab(settings: Settings) -> int | None:
    """Return the vocabulary of a tokenizer that is known by its type, or by its model's name."""
    # Only GPT-2's tokenizer has a file of merges.
    usual = "GPT2BPETokenizer" if settings.has("--merge-file") else ""
    if (vocab := _TOKENIZERS.get(settings.text("--tokenizer-type", usual))) is not None:
        return vocab
    preset = find_preset(settings.text("--tokenizer-model"))
    architecture = None if preset is None else preset.architecture
    return None if architecture is None else architecture.vocab


def _parse_mixture(settings: Settings, layers: int, ffn: int) -> tuple[dict[str, Any], int]:
    experts = settings.count("--num-experts")
    if not experts:
        return {}, ffn
    width = settings.size("--moe-ffn-hidden-size", ffn)
    shared = settings.count("--moe-shared-expert-intermediate-size")
    n_dense = _count_dense_layers(settings, layers)
    return {
        "experts": experts,
        "top_k": settings.size("--moe-router-topk", 2),
        "shared_experts": -(-shared // width),
        "dense_layers": n_dense,
        "dense_ffn": ffn if n_dense else 0,
        "expert_groups": settings.count("--moe-router-num-groups"),
        "top_groups": settings.count("--moe-router-group-topk"),
    }, width


def _count_dense_layers(settings: Settings, layers: int) -> int:
    """Return the layers without experts of --moe-layer-freq: 2, or ([0]*3+[1]*58)."""
    text = settings.text("--moe-layer-freq", "1")
    if text.isdecimal() and 1 <= int(text[:9]) <= layers:
        return layers - -(-layers // int(text[:9]))
    total = {"0": 0, "1": 0}
    for item in text.strip("() '\"").split("+"):
        match = _LAYER_PATTERN.fullmatch(item)
        if match is None:
            raise settings.error("--moe-layer-freq", "a number, or a pattern such as [0]*3+[1]*58")
        total[match[1]] += int(match[2])
    if sum(total.values()) != layers:
        raise settings.error("--moe-layer-freq", f"a pattern of {layers} layers")
    return total["0"]


def _parse_latent(settings: Settings) -> dict[str, Any]:
    if not settings.flag("--multi-latent-attention"):
        return {}
    rope = settings.size("--qk-pos-emb-head-dim", 64)
    return {
        "kv_lora_rank": settings.size("--kv-lora-rank", 32),
        "rope_head_dim": rope,
        "head_dim": settings.size("--qk-head-dim", 128) + rope,
        "v_head_dim": settings.size("--v-head-dim", 128),
    }


def _parse_small_tensors(settings: Settings) -> SmallTensors:
    has_biases = not settings.flag("--disable-bias-linear")
    is_learned = settings.text("--position-embedding-type", "learned_absolute")
    positions = settings.size("--max-position-embeddings", settings.size("--seq-length"))
    return SmallTensors(
        query_key_value_biases=has_biases or settings.flag("--add-qkv-bias"),
        output_bias=has_biases,
        mlp_biases=has_biases,
        norm_biases=settings.text("--normalization", "LayerNorm") == "LayerNorm",
        query_key_norms=settings.flag("--qk-layernorm"),
        q_lora_rank=settings.count("--q-lora-rank"),
        positions=positions if is_learned == "learned_absolute" else 0,
    )


# ------------------------------------------------------------------------------- mesh and workload


def _parse_mesh(
    settings: Settings, arguments: Arguments, options: ConfigOptions, tensor: int
) -> ExpertSplit:
    """Return the mesh, data parallelism first, and how experts are sharded."""
    is_fsdp = any(settings.flag(f"--{switch}") for switch in _FSDP_SWITCHES)
    data_axis = "fsdp" if is_fsdp else "data"
    sizes = {
        data_axis: -1,
        "stage": settings.size("--pipeline-model-parallel-size", 1),
        "context": settings.size("--context-parallel-size", 1),
        "tensor": tensor,
    }
    n_experts = settings.size("--expert-model-parallel-size", 1)
    expert_tensor = settings.size("--expert-tensor-parallel-size", tensor)
    n_devices = options.n_devices or _find_device_count(settings, arguments)
    mesh = complete_mesh(
        sizes,
        ConfigOptions(n_devices=n_devices, mesh=options.mesh),
        settings.where,
        remaining="Data parallelism",
    )
    if options.mesh is not None:
        return ExpertSplit(sizes=dict(mesh.shape))
    filled = {name: mesh.shape.get(name, 1) for name in sizes}
    return split_experts(filled, n_experts, data_axis, expert_tensor=expert_tensor)


def _find_device_count(settings: Settings, arguments: Arguments) -> int | None:
    """Return nodes times GPUs of torchrun's flags, or of the variables that scripts use."""
    flags = ("--nnodes", "--nproc-per-node")
    if all(settings.has(flag) for flag in flags):
        values = [settings.values[flag] for flag in flags]
        if all(isinstance(value, str) and value.isdecimal() for value in values):
            return prod(settings.size(flag) for flag in flags)
    variables = arguments.variables
    world = variables.get("WORLD_SIZE", "")
    if world.isdecimal() and 0 < len(world) < 9 and int(world):
        return int(world)
    nodes = next((variables[name] for name in _NODE_NAMES if name in variables), "1")
    gpus = next((variables[name] for name in _GPU_NAMES if name in variables), "")
    if all(text.isdecimal() and 0 < len(text) < 9 and int(text) for text in (nodes, gpus)):
        return int(nodes) * int(gpus)
    return None


def _parse_recompute(settings: Settings) -> tuple[str, list[str]]:
    if settings.flag("--recompute-activations"):
        return "selective", []
    remat = settings.choice("--recompute-granularity", _RECOMPUTE, "")
    notes = []
    if settings.has("--recompute-num-layers") and remat == "full":
        settings.mark_read(["--recompute-num-layers", "--recompute-method"])
        if settings.text("--recompute-method") == "block":
            notes.append("--recompute-method block: counted as if every layer were recomputed.")
    if settings.has("--recompute-modules"):
        modules = settings.text("--recompute-modules")
        notes.append(f"--recompute-modules {modules:.60}: only core attention is counted.")
    return remat, notes


def _parse_dtype(settings: Settings) -> str:
    if settings.flag("--bf16"):
        return "bfloat16"
    return "float16" if settings.flag("--fp16") else "float32"


def _parse_policy(settings: Settings) -> str:
    """Return the dtype policy: 16-bit weights with a float32 master copy and gradients."""
    dtype = _parse_dtype(settings)
    if dtype == "float32":
        return "float32,gradients=float32,master=none"
    settings.mark_read(["--accumulate-allreduce-grads-in-fp32"])
    gradients = dtype if settings.flag("--grad-reduce-in-bf16") else "float32"
    return f"{dtype},gradients={gradients},moments=float32,master=float32"


def _has_flash(settings: Settings) -> bool:
    """Return whether attention is fused: Transformer Engine's is, unless it is told otherwise."""
    if settings.text("--attention-backend", "auto") in ("unfused", "local"):
        return False
    is_local = settings.text("--transformer-impl", "transformer_engine") == "local"
    return settings.flag("--use-flash-attn") or not is_local


def _parse_schedule(settings: Settings, mesh: Mesh) -> str:
    n_stages = mesh.shape.get("stage", 1)
    n_chunks = settings.optional_size("--num-virtual-stages-per-pipeline-rank")
    n_layers = settings.optional_size("--num-layers-per-virtual-pipeline-stage")
    if n_chunks is None and n_layers is not None and settings.has("--num-layers"):
        n_chunks = max(settings.size("--num-layers") // (n_stages * n_layers), 1)
    return f"interleaved:{n_chunks}" if n_chunks is not None and n_chunks > 1 else "1f1b"
