"""Dimension meanings: what each dimension of a tensor is for, inferred from public naming schemes.

>>> meanings_from_path("model.layers.*.mlp.down_proj.weight", (4096, 14336))
('embed', 'mlp')
>>> meanings_from_path("layers/0/attention/query/kernel", (4096, 32, 128))
('embed', 'heads', 'head_dim')
>>> meanings_from_path("decoder/layers/mlp/wi_0/kernel", (4096, 32, 14336))
('embed', 'layers', 'mlp')

Strategies shard by meaning. If the name of a tensor is not known, its dimensions have no meaning
and strategies go by its shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from shardlab.planner.tensor_group import LogicalAxes, TensorGroup

# Module names -> meaning of the output dimension, meaning of the input dimension. A torch `weight`
# is stored as [out, in], a JAX `kernel` as [in, out].
_MODULE_NAMES: tuple[tuple[str, LogicalAxes], ...] = (
    ("q_proj wq query q", ("heads", "embed")),
    ("k_proj v_proj wk wv key value k v", ("kv_heads", "embed")),
    ("o_proj out_proj out o", ("embed", "heads")),
    ("qkv_proj qkv Wqkv query_key_value c_attn", ("qkv", "embed")),
    ("gate_proj up_proj gate_up_proj w1 w3 fc1 c_fc wi wi_0 wi_1 up", ("mlp", "embed")),
    ("dense_h_to_4h", ("mlp", "embed")),
    ("down_proj w2 fc2 down dense_4h_to_h", ("embed", "mlp")),
    ("embed_tokens lm_head head output_layer wte logits_dense unembed", ("vocab", "embed")),
    ("token_embedder tok_embeddings word_embeddings embed embedder", ("vocab", "embed")),
    # Multi-head latent attention, with MaxText's axis names: the down projection ends in
    # "..._up_proj", the up projection starts from the low-rank dimension.
    ("q_a_proj wq_a", ("q_lora_up_proj", "embed")),
    ("q_b_proj wq_b", ("heads", "q_lora")),
    ("kv_a_proj_with_mqa wkv_a", ("kv_lora_up_proj", "embed")),
    ("kv_b_proj wkv_b", ("heads", "kv_lora")),
    ("gate router", (None, "embed")),  # router of a mixture: small, and every device routes
    ("eh_proj", ("embed", None)),
    ("position_embedding pos_embed wpe", (None, "embed")),
)
_MODULES = {name: meanings for names, meanings in _MODULE_NAMES for name in names.split()}
# GPT-2 stores these weights as [in, out], models derived from it as [out, in]. The wide dimension
# tells which it is.
_WIDE_DIMS = {"c_attn": "qkv", "c_fc": "mlp", "c_proj": "mlp"}
# Tensors that do not belong to a matrix product of the decoder, and convolutions.
_SPECIAL_TENSORS: dict[str, LogicalAxes] = {
    "mm_input_projection_weight": ("vision", "embed"),
    "patch_embedding": ("embed", None, None, None),
}
_MODULES_BY_HEAD = ("query", "key", "value", "wq_b", "wkv_b")  # kernels [in, heads, head_dim]
_TORCH_LEAVES = ("weight", "weight_scale_inv", "weight_scale")
_LEAVES = (*_TORCH_LEAVES, "kernel", "bias", "embedding", "scale")
_SEPARATOR = re.compile(r"[./\[\]'\"]+")
_ATTENTION = re.compile(r"att", re.IGNORECASE)
_NORM = re.compile(r"norm|^ln(_|\d|$)", re.IGNORECASE)
LAYER_WORDS = frozenset(("layers", "layer", "blocks", "block", "h"))
EXPERT_WORDS = frozenset(("experts", "expert", "MoeBlock_0", "moe_block"))
# Logical axis names in Flax models and MaxText -> our meaning, if it has another name.
_SYNONYMS = {
    "q_heads": "heads",
    "joined_heads": "heads",
    "joined_kv": "heads",
    "joined_kv_heads": "kv_heads",
    "exp": "experts",
    "expert": "experts",
    "layer": "layers",
    "hidden": "embed",
    "embed_moe": "embed",
    "embed_vocab": "embed",
    "mlp_moe": "mlp",
    "intermediate": "mlp",
    "kv": "head_dim",
    "kv_head_dim": "head_dim",
}
KNOWN_MEANINGS = frozenset(name for _, names in _MODULE_NAMES for name in names if name) | {
    *("experts", "layers", "head_dim", "norm", "vision")
}
_STACKING_MEANINGS = frozenset(("layers", "experts"))


def dim_meanings_of(group: TensorGroup) -> LogicalAxes | None:
    """Return the meaning of each dimension: from the author's axis names, or inferred.

    >>> from shardlab.sharding.dtype import parse_dtype
    >>> group = TensorGroup(
    ...     path_parts=("w",), shape=(8, 4), dtype=parse_dtype("f32"), axes=("exp", "mlp_moe"))
    >>> dim_meanings_of(group)
    ('experts', 'mlp')
    """
    # Cached in the instance, as functools.cached_property does it for a frozen dataclass: advise
    # looks up the same groups once per candidate mesh.
    cache: dict[str, Any] = group.__dict__
    if "_dim_meanings" not in cache:
        cache["_dim_meanings"] = _resolve_meanings(group)
    meanings: LogicalAxes | None = cache["_dim_meanings"]
    return meanings


def _resolve_meanings(group: TensorGroup) -> LogicalAxes | None:
    declared: LogicalAxes | None = None
    if group.axes is not None and len(group.axes) == len(group.shape):
        names = tuple(_SYNONYMS.get(name or "", name) for name in group.axes)
        declared = tuple(name if name in KNOWN_MEANINGS else None for name in names)
        # If only stacking dimensions have known names (the others being mesh axes), the names do
        # not tell what is stacked.
        if not (KNOWN_MEANINGS - _STACKING_MEANINGS).isdisjoint(names):
            return declared
    inferred = infer_dim_meanings(group)
    return inferred or (declared if declared and any(declared) else None)


def infer_dim_meanings(group: TensorGroup) -> LogicalAxes | None:
    """Return the meaning of each dimension from the path alone, and from what was stacked."""
    if group.stacked_meanings:
        return group.stacked_meanings
    return meanings_from_path(next(group.paths(), group.name), group.shape)


@lru_cache(maxsize=4096)
def meanings_from_path(path: str, shape: tuple[int, ...]) -> LogicalAxes | None:
    """Return the meaning of each dimension of a tensor by its path; None if it is not known."""
    tokens = [token for token in _SEPARATOR.split(path) if token]
    while len(tokens) > 1 and tokens[-1] in ("value", "raw_value"):  # of an NNX variable
        tokens.pop()
    if not tokens or not shape:
        return None
    for meanings in _unstacked_candidates(tokens, shape):
        stacked = _stacked_dims(tokens, len(shape) - len(meanings))
        if stacked is not None:
            return _insert_stacked_dims(stacked, meanings, tokens)
    return None


def _unstacked_candidates(tokens: Sequence[str], shape: tuple[int, ...]) -> Iterator[LogicalAxes]:
    """Yield possible meanings of one layer's tensor of that name, the most likely first."""
    leaf = tokens[-1] if tokens[-1] in _LEAVES else ""
    module = tokens[-2] if leaf and len(tokens) > 1 else tokens[-1]
    if leaf == "scale" or (leaf and _NORM.search(module)):
        yield ("norm",)
        return
    if module in _SPECIAL_TENSORS:
        meanings = _SPECIAL_TENSORS[module]
        yield meanings[:1] if leaf == "bias" else meanings
        return
    if module in _WIDE_DIMS and leaf != "bias" and len(shape) > 1:
        yield from _by_wide_dim(_WIDE_DIMS[module], shape[-2:])
        return
    linear = ("vocab", "embed") if leaf == "embedding" else _linear_dims(module, tokens, shape)
    if linear is None:
        return
    output, source = linear
    if leaf == "bias":
        if module in ("query", "key", "value"):
            yield (output, "head_dim")
        yield (output,)
    elif leaf in _TORCH_LEAVES or leaf == "embedding" or source == "vocab":
        yield linear
    elif leaf == "kernel" or tokens[-1] == module:
        # Flax's attention kernels may have separate dimensions for heads and head_dim.
        if module in _MODULES_BY_HEAD:
            yield (source, output, "head_dim")
        if module == "out":
            yield (source, "head_dim", output)
        yield (source, output)


def _linear_dims(module: str, tokens: Sequence[str], shape: tuple[int, ...]) -> LogicalAxes | None:
    """Return the meanings of the output and the input dimension of a linear module."""
    if module == "wo":  # the attention output in some models, the MLP's down projection in others
        is_attention = any(map(_ATTENTION.search, tokens[:-1]))
        return ("embed", "heads") if is_attention else ("embed", "mlp")
    if module == "gate" and len(shape) == 2 and max(shape) < 4 * min(shape):
        return ("mlp", "embed")  # of a gated MLP: a router is far narrower
    return _MODULES.get(module)


def _by_wide_dim(wide: str, shape: tuple[int, ...]) -> Iterator[LogicalAxes]:
    """Yield the meaning of a matrix that some models store transposed; a square one stays open."""
    if shape[0] != shape[1]:
        yield (wide, "embed") if shape[0] > shape[1] else ("embed", wide)


def _stacked_dims(tokens: Sequence[str], n_dims: int) -> tuple[str, ...] | None:
    """Return the n further dimensions of an array of many layers or experts; None if unknown."""
    if n_dims == 0:
        return ()
    word_sets = (("layers", LAYER_WORDS), ("experts", EXPERT_WORDS))
    stacked = tuple(meaning for meaning, names in word_sets if _is_stacked(tokens, names))
    if len(stacked) == n_dims:
        return stacked
    # The router of many layers lies in the expert module, but has no dimension for experts.
    return stacked[:1] if n_dims == 1 and len(stacked) == 2 else None


def _is_stacked(tokens: Sequence[str], names: frozenset[str]) -> bool:
    """Return whether one of the names is in the path without a number after it."""
    return any(
        _is_word_for(token, names) and not (following == "*" or following.isdigit())
        for token, following in pairwise(tokens)
    )


def _is_word_for(token: str, names: frozenset[str]) -> bool:
    """Return whether a token is one of the names, or like MaxText's dense_layers and moe_layers."""
    return token in names or ("layers" in names and token.endswith("_layers"))


def _insert_stacked_dims(
    stacked: tuple[str, ...], meanings: LogicalAxes, tokens: Sequence[str]
) -> LogicalAxes:
    """Return the meanings with the stacked dimensions where they are stored."""
    # MaxText scans over dimension 1 (param_scan_axis) under `decoder/layers`; others over 0.
    is_maxtext = any(
        token == "decoder" and _is_word_for(following, LAYER_WORDS)
        for token, following in pairwise(tokens)
    )
    if not is_maxtext or "layers" not in stacked:
        return (*stacked, *meanings)
    rest = (*(meaning for meaning in stacked if meaning != "layers"), *meanings)
    return (*rest[:1], "layers", *rest[1:])
