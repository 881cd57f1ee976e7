"""The tensors of a transformer from its sizes alone, for configurations that name no weights.

>>> tiny = Architecture(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=256, vocab=1000)
>>> model = transformer_model("tiny", tiny)
>>> model.n_parameters, [group.name for group in model.groups][:2]
(251200, ['model.embed_tokens.weight', 'model.layers.*.input_layernorm.weight'])

Names and shapes are those of Hugging Face's Llama, Mixtral and DeepSeek checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardlab.planner.model import Architecture, Model
from shardlab.planner.strategies.layer_stack import find_stack_position
from shardlab.planner.tensor_group import TensorGroup, parse_tensor_group
from shardlab.sharding.dtype import Dtype, parse_dtype

_BF16 = parse_dtype("bf16")
_Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, kw_only=True)
class SmallTensors:
    """What a decoder has besides its matrices; an architecture does not tell it.

    The rank of the queries' low-rank projection belongs here too: without it, latent attention is
    counted with one matrix for the queries.
    """

    q_lora_rank: int = 0
    query_key_norms: bool = False
    query_key_value_biases: bool = False
    output_bias: bool = False
    attention_sinks: bool = False  # one learned score per head
    mlp_biases: bool = False
    router_bias: bool = False
    output_norms: bool = False  # also after attention and MLP, as in Gemma
    norm_biases: bool = False  # LayerNorm instead of RMSNorm
    positions: int = 0  # rows of a learned position embedding


def transformer_model(
    name: str,
    arch: Architecture,
    *,
    dtype: Dtype = _BF16,
    source: str = "",
    small_tensors: SmallTensors | None = None,
) -> Model:
    """Return a decoder with the sizes of an architecture."""
    small = small_tensors or SmallTensors()
    shapes = _tensor_shapes(arch, small)
    groups = tuple(parse_tensor_group(path, shape, dtype) for path, shape in shapes)
    return Model(name=name, groups=groups, source=source, architecture=arch)


def stage_groups(
    groups: tuple[TensorGroup, ...], n_layers: int, n_in_stage: int
) -> tuple[TensorGroup, ...]:
    """Return the tensors of a pipeline stage: of each kind of layer its share, rounded up.

    >>> arch = Architecture(layers=126, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=8)
    >>> groups = transformer_model("llama", arch).groups
    >>> stage_groups(groups, 126, 8)[2].numbers_text
    '0..7'
    """
    stage = []
    for group in groups:
        position = find_stack_position(group, "layers")
        if position is None or group.listed_numbers is not None:
            stage.append(group)
            continue
        numbers = group.ranges[position]
        n_here = -(-len(numbers) * n_in_stage // n_layers)
        ranges = (*group.ranges[:position], numbers[:n_here], *group.ranges[position + 1 :])
        stage.append(replace(group, ranges=ranges))
    return tuple(stage)


def _tensor_shapes(arch: Architecture, small: SmallTensors) -> _Shapes:
    hidden, last = arch.hidden, arch.layers - 1
    layer = f"model.layers.{{0..{last}}}"
    yield "model.embed_tokens.weight", (arch.vocab, hidden)
    if small.positions:
        yield "model.position_embedding.weight", (small.positions, hidden)
    yield from _norm_shapes(f"{layer}.input_layernorm", hidden, small)
    yield from _attention_shapes(arch, small, f"{layer}.self_attn")
    yield from _norm_shapes(f"{layer}.post_attention_layernorm", hidden, small)
    if small.output_norms:
        yield from _norm_shapes(f"{layer}.pre_feedforward_layernorm", hidden, small)
        yield from _norm_shapes(f"{layer}.post_feedforward_layernorm", hidden, small)
    if not arch.experts:
        yield from _mlp_shapes(arch, small, f"{layer}.mlp", arch.ffn)
    else:
        yield from _mixture_shapes(arch, small)
    yield from _norm_shapes("model.norm", hidden, small)
    if not arch.tied_embeddings:
        yield "lm_head.weight", (arch.vocab, hidden)


def _norm_shapes(path: str, width: int, small: SmallTensors) -> _Shapes:
    yield f"{path}.weight", (width,)
    if small.norm_biases:
        yield f"{path}.bias", (width,)


def _mixture_shapes(arch: Architecture, small: SmallTensors) -> _Shapes:
    n_dense, last = min(arch.dense_layers, arch.layers), arch.layers - 1
    if n_dense:
        dense = f"model.layers.{{0..{n_dense - 1}}}.mlp"
        yield from _mlp_shapes(arch, small, dense, arch.dense_ffn or arch.ffn)
    if n_dense == arch.layers:
        return
    mixture = f"model.layers.{{{n_dense}..{last}}}.mlp"
    yield f"{mixture}.gate.weight", (arch.experts, arch.hidden)
    if small.router_bias:
        yield f"{mixture}.gate.bias", (arch.experts,)
    experts = f"{mixture}.experts.{{0..{arch.experts - 1}}}"
    yield from _mlp_shapes(arch, small, experts, arch.ffn)
    if arch.shared_experts:
        shared_ffn = arch.ffn * arch.shared_experts
        yield from _mlp_shapes(arch, small, f"{mixture}.shared_experts", shared_ffn)


def _attention_shapes(arch: Architecture, small: SmallTensors, path: str) -> _Shapes:
    hidden, query = arch.hidden, arch.heads * arch.head_dim
    if arch.kv_lora_rank:
        yield from _latent_shapes(arch, small, path)
    else:
        key, value = arch.kv_heads * arch.head_dim, arch.kv_heads * arch.value_dim
        for name, width in (("q_proj", query), ("k_proj", key), ("v_proj", value)):
            yield f"{path}.{name}.weight", (width, hidden)
            if small.query_key_value_biases:
                yield f"{path}.{name}.bias", (width,)
    if small.query_key_norms:
        yield f"{path}.q_norm.weight", (arch.head_dim,)
        yield f"{path}.k_norm.weight", (arch.head_dim,)
    if small.attention_sinks:
        yield f"{path}.sinks", (arch.heads,)
    yield f"{path}.o_proj.weight", (hidden, arch.heads * arch.value_dim)
    if small.output_bias:
        yield f"{path}.o_proj.bias", (hidden,)


def _latent_shapes(arch: Architecture, small: SmallTensors, path: str) -> _Shapes:
    """Yield queries, keys and values of multi-head latent attention."""
    hidden, query, rank = arch.hidden, arch.heads * arch.head_dim, small.q_lora_rank
    if rank:
        yield f"{path}.q_a_proj.weight", (rank, hidden)
        yield f"{path}.q_a_layernorm.weight", (rank,)
        yield f"{path}.q_b_proj.weight", (query, rank)
    else:
        yield f"{path}.q_proj.weight", (query, hidden)
    latent = arch.kv_lora_rank + arch.rope_head_dim
    key_value = arch.heads * (arch.head_dim - arch.rope_head_dim + arch.value_dim)
    yield f"{path}.kv_a_proj_with_mqa.weight", (latent, hidden)
    if rank:
        yield f"{path}.kv_a_layernorm.weight", (arch.kv_lora_rank,)
    yield f"{path}.kv_b_proj.weight", (key_value, arch.kv_lora_rank)


def _mlp_shapes(arch: Architecture, small: SmallTensors, path: str, ffn: int) -> _Shapes:
    for name in ("gate_proj", "up_proj") if arch.gated else ("up_proj",):
        yield f"{path}.{name}.weight", (ffn, arch.hidden)
        if small.mlp_biases:
            yield f"{path}.{name}.bias", (ffn,)
    yield f"{path}.down_proj.weight", (arch.hidden, ffn)
    if small.mlp_biases:
        yield f"{path}.down_proj.bias", (arch.hidden,)
