"""What the array axes of a tensor mean, told from the names that public models use.

>>> meanings_from_path("model.layers.*.mlp.down_proj.weight", (4096, 14336))
('embed', 'mlp')
>>> meanings_from_path("layers/0/attention/query/kernel", (4096, 32, 128))
('embed', 'heads', 'head_dim')
>>> meanings_from_path("decoder/layers/mlp/wi_0/kernel", (4096, 32, 14336))
('embed', 'layers', 'mlp')

Strategies go by meaning. A torch `weight` is [out, in], a JAX `kernel` [in, out]. A tensor whose
name nobody knows has no meaning, and strategies go by its shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from shardlab.planner.tensor_group import LogicalAxes, TensorGroup

# names of modules: what goes out of one means, what comes in means
_NAMES: tuple[tuple[str, LogicalAxes], ...] = (
    ("q_proj wq query q", ("heads", "embed")),
    ("k_proj v_proj wk wv key value k v", ("kv_heads", "embed")),
    ("o_proj out_proj out o", ("embed", "heads")),
    ("qkv_proj qkv Wqkv query_key_value c_attn", ("qkv", "embed")),
    ("gate_proj up_proj gate_up_proj w1 w3 fc1 c_fc wi wi_0 wi_1 up", ("mlp", "embed")),
    ("dense_h_to_4h", ("mlp", "embed")),
    ("down_proj w2 fc2 down dense_4h_to_h", ("embed", "mlp")),
    ("embed_tokens lm_head head output_layer wte logits_dense unembed", ("vocab", "embed")),
    ("token_embedder tok_embeddings word_embeddings embed embedder", ("vocab", "embed")),
    # multi-head latent attention, in MaxText's words: down to "up_proj", from there up
    ("q_a_proj wq_a", ("q_lora_up_proj", "embed")),
    ("q_b_proj wq_b", ("heads", "q_lora")),
    ("kv_a_proj_with_mqa wkv_a", ("kv_lora_up_proj", "embed")),
    ("kv_b_proj wkv_b", ("heads", "kv_lora")),
    ("gate router", (None, "embed")),  # of a mixture: small, and every device routes
    ("eh_proj", ("embed", None)),
    ("position_embedding pos_embed wpe", (None, "embed")),
)
_MODULES = {name: axes for names, axes in _NAMES for name in names.split()}
# GPT-2's own weights are [in, out], those of its followers [out, in]: the wide side tells
_WIDE = {"c_attn": "qkv", "c_fc": "mlp", "c_proj": "mlp"}
# tensors that are not a product's, and convolutions
_OTHERS: dict[str, LogicalAxes] = {
    "mm_input_projection_weight": ("vision", "embed"),
    "patch_embedding": ("embed", None, None, None),
}
_BY_HEAD = ("query", "key", "value", "wq_b", "wkv_b")  # kernels that may have an axis for heads
_TORCH = ("weight", "weight_scale_inv", "weight_scale")
_LEAVES = (*_TORCH, "kernel", "bias", "embedding", "scale")
_SEPARATOR = re.compile(r"[./\[\]'\"]+")
_ATTENTION = re.compile(r"att", re.IGNORECASE)
_NORM = re.compile(r"norm|^ln(_|\d|$)", re.IGNORECASE)
LAYER_WORDS = frozenset(("layers", "layer", "blocks", "block", "h"))
EXPERT_WORDS = frozenset(("experts", "expert", "MoeBlock_0", "moe_block"))
# names that authors of models give their axes -> ours, where these differ
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
KNOWN_MEANINGS = frozenset(name for _, axes in _NAMES for name in axes if name) | {
    *("experts", "layers", "head_dim", "norm", "vision")
}

_STACKING = frozenset(("layers", "experts"))


def dim_meanings_of(group: TensorGroup) -> LogicalAxes | None:
    """Return the meaning of a family's axes in our words: as its author says, or by its name.

    >>> from shardlab.sharding.dtype import parse_dtype
    >>> dim_meanings_of(TensorGroup(("w",), (8, 4), parse_dtype("f32"), axes=("exp", "mlp_moe")))
    ('experts', 'mlp')
    """
    known: dict[str, Any] = group.__dict__  # remembered there, as a cached property is
    if "_meaning" not in known:
        known["_meaning"] = _axes_of(group)
    axes: LogicalAxes | None = known["_meaning"]
    return axes


def _axes_of(group: TensorGroup) -> LogicalAxes | None:
    said: LogicalAxes | None = None
    if group.axes is not None and len(group.axes) == len(group.shape):
        ours = tuple(_SYNONYMS.get(name or "", name) for name in group.axes)
        said = tuple(name if name in KNOWN_MEANINGS else None for name in ours)
        # Names of stacking alone, beside those of mesh axes, do not say what is stacked.
        if not (KNOWN_MEANINGS - _STACKING).isdisjoint(ours):
            return said
    told = infer_dim_meanings(group)
    return told or (said if said and any(said) else None)


def infer_dim_meanings(group: TensorGroup) -> LogicalAxes | None:
    """Return the meaning of a family's axes by its name alone, and by what was stacked."""
    return group.stacked_meanings or meanings_from_path(
        next(group.paths(), group.name), group.shape
    )


@lru_cache(maxsize=4096)
def meanings_from_path(name: str, shape: tuple[int, ...]) -> LogicalAxes | None:
    """Return the logical axis names of a tensor by its name; None where it is not known."""
    tokens = [token for token in _SEPARATOR.split(name) if token]
    while len(tokens) > 1 and tokens[-1] in ("value", "raw_value"):  # of an NNX variable
        tokens.pop()
    if not tokens or not shape:
        return None
    for axes in _candidates(tokens, shape):
        lead = _lead(tokens, len(shape) - len(axes))
        if lead is not None:
            return _with_lead(lead, axes, tokens)
    return None


def _candidates(tokens: Sequence[str], shape: tuple[int, ...]) -> Iterator[LogicalAxes]:
    """Yield what one layer's tensor of that name may be, the likeliest first."""
    leaf = tokens[-1] if tokens[-1] in _LEAVES else ""
    module = tokens[-2] if leaf and len(tokens) > 1 else tokens[-1]
    if leaf == "scale" or (leaf and _NORM.search(module)):
        yield ("norm",)
        return
    if module in _OTHERS:
        axes = _OTHERS[module]
        yield axes[:1] if leaf == "bias" else axes
        return
    if module in _WIDE and leaf != "bias" and len(shape) > 1:
        yield from _by_width(_WIDE[module], shape[-2:])
        return
    made = ("vocab", "embed") if leaf == "embedding" else _linear(module, tokens, shape)
    if made is None:
        return
    out, into = made
    if leaf == "bias":
        yield from ((out, "head_dim"), (out,)) if module in ("query", "key", "value") else ((out,),)
    elif leaf in _TORCH or leaf == "embedding" or into == "vocab":
        yield made
    elif leaf == "kernel" or tokens[-1] == module:
        if module in _BY_HEAD:
            yield (into, out, "head_dim")
        if module == "out":
            yield (into, "head_dim", out)
        yield (into, out)


def _linear(module: str, tokens: Sequence[str], shape: tuple[int, ...]) -> LogicalAxes | None:
    """Return what goes out of a module and what comes in."""
    if module == "wo":  # attention's in some models, that of the feed-forward part in others
        is_attention = any(map(_ATTENTION.search, tokens[:-1]))
        return ("embed", "heads") if is_attention else ("embed", "mlp")
    if module == "gate" and len(shape) == 2 and max(shape) < 4 * min(shape):
        return ("mlp", "embed")  # of a gated feed-forward part: a router is far narrower
    return _MODULES.get(module)


def _by_width(wide: str, shape: tuple[int, ...]) -> Iterator[LogicalAxes]:
    """Yield what a matrix that is stored both ways round means by its wide side."""
    if shape[0] != shape[1]:
        yield (wide, "embed") if shape[0] > shape[1] else ("embed", wide)


def _lead(tokens: Sequence[str], n: int) -> tuple[str, ...] | None:
    """Return the n further axes of a tensor that holds many layers or experts; None if unknown."""
    if n == 0:
        return ()
    named = (("layers", LAYER_WORDS), ("experts", EXPERT_WORDS))
    stacked = tuple(word for word, names in named if _is_stacked(tokens, names))
    if len(stacked) == n:
        return stacked
    return stacked[:1] if n == 1 and len(stacked) == 2 else None  # the router of many layers


def _is_stacked(tokens: Sequence[str], names: frozenset[str]) -> bool:
    """Tell whether one of the names stands in the path without a number after it."""
    return any(
        _is_one_of(token, names) and not (after == "*" or after.isdigit())
        for token, after in pairwise(tokens)
    )


def _is_one_of(token: str, names: frozenset[str]) -> bool:
    """Tell whether a token is one of the names, or as MaxText's dense_layers and moe_layers."""
    return token in names or ("layers" in names and token.endswith("_layers"))


def _with_lead(lead: tuple[str, ...], axes: LogicalAxes, tokens: Sequence[str]) -> LogicalAxes:
    """MaxText stacks layers on array axis 1, under `decoder/layers`; others on array axis 0."""
    is_maxtext = any(a == "decoder" and _is_one_of(b, LAYER_WORDS) for a, b in pairwise(tokens))
    if not is_maxtext or "layers" not in lead:
        return (*lead, *axes)
    rest = (*(word for word in lead if word != "layers"), *axes)
    return (*rest[:1], "layers", *rest[1:])
