"""The measures of a model by the `config.json` that lies beside its weights.

The keys are those of Hugging Face's transformers, and so are the values of keys left out:
https://github.com/huggingface/transformers/tree/main/src/transformers/models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os.path import exists
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_bounded_text
from shardlab._files.json_reader import reject_duplicate_keys
from shardlab.errors import InvalidModel, short_repr
from shardlab.planner.model import Architecture

_MAX_BYTES = 1_000_000
_GEMMA = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
}
# model_type -> values that its config.json may leave out, beside those that are asked for below
_KNOWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 4096, "sliding_window_pattern": None},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gemma2": {**_GEMMA, "vocab_size": 256_000, "sliding_window_pattern": 2},
    "gemma3_text": {**_GEMMA, "vocab_size": 262_208, "sliding_window_pattern": 6},
    "gemma3": {**_GEMMA, "vocab_size": 262_208, "sliding_window_pattern": 6},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_moe": {},
    "deepseek_v3": {},
}


def read_architecture(folder: Path) -> tuple[Architecture | None, tuple[str, ...]]:
    """Return the measures that a folder's `config.json` gives, or a note on why it gives none."""
    file = folder / "config.json"
    if not exists(file):
        return None, ("There is no config.json, so activations and caches cannot be told.",)
    try:
        data = json.loads(
            read_bounded_text(file, _MAX_BYTES), object_pairs_hook=reject_duplicate_keys
        )
        return parse_config(data), ()
    except (InvalidModel, ValueError, RecursionError) as error:
        what = error.what if isinstance(error, InvalidModel) else f"{error}"
        return None, (f"config.json gives no architecture: {what:.300}",)


def parse_config(data: Any) -> Architecture:
    """Return the measures that a config gives.

    >>> parse_config({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    ...     "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    ...     "vocab_size": 128256}).head_dim
    128
    """
    data = data if isinstance(data, Mapping) else {}
    text = data.get("text_config", data)  # a model that also sees has its language model there
    text = text if isinstance(text, Mapping) else {}
    kind = next(filter(_is_known, (each.get("model_type") for each in (data, text))), None)
    if kind is None:
        raise _bad("model_type", data.get("model_type"), f"known are {', '.join(_KNOWN)}")
    config = _Config({**_KNOWN[kind], **text})
    heads = config.size("num_attention_heads")
    hidden = config.size("hidden_size")
    return Architecture(
        layers=config.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.size("num_key_value_heads", heads),
        head_dim=config.head_dim(hidden // heads),
        ffn=config.size("moe_intermediate_size", config.size("intermediate_size")),
        vocab=config.size("vocab_size"),
        tied_embeddings=config.flag("tie_word_embeddings"),
        **config.mixture(),
        kv_lora_rank=config.size("kv_lora_rank", 0),
        rope_head_dim=config.size("qk_rope_head_dim", 0),
        **config.window(),
        v_head_dim=config.size("v_head_dim", 0),
    )


def _is_known(kind: Any) -> bool:
    return isinstance(kind, str) and kind in _KNOWN


class _Config:
    """A config's values, each checked when it is asked for."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data

    def size(self, key: str, otherwise: int | None = None) -> int:
        """Return a whole number; an absent or null one is `otherwise`."""
        value = self.data.get(key)
        if value is None and otherwise is not None:
            return otherwise
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 40:
            if value == 0 and otherwise is not None:
                return 0
            raise _bad(key, value, "a whole number from 1 is needed")
        return value

    def flag(self, key: str) -> bool:
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise _bad(key, value, "true or false is needed")
        return bool(value)

    def head_dim(self, otherwise: int) -> int:
        """Return the size of a query's head, which latent attention has in two parts."""
        if "qk_nope_head_dim" in self.data:
            return self.size("qk_nope_head_dim") + self.size("qk_rope_head_dim")
        return self.size("head_dim", max(otherwise, 1))

    def mixture(self) -> dict[str, Any]:
        """Return what there is to know about experts, nothing of a dense model."""
        names = ("num_local_experts", "num_experts", "n_routed_experts")
        experts = next((self.size(name) for name in names if self.data.get(name)), 0)
        if not experts:
            return {}
        dense_layers = self.size("first_k_dense_replace", 0)
        return {
            "experts": experts,
            "top_k": self.size("num_experts_per_tok"),
            "shared_experts": self.size("n_shared_experts", self._shared()),
            "dense_layers": dense_layers,
            "dense_ffn": self.size("intermediate_size") if dense_layers else 0,
        }

    def window(self) -> dict[str, Any]:
        """Return over how many tokens local layers look back, where there are any.

        Models that may have such layers and say so by other keys (Qwen 2) have none by default.
        """
        if "sliding_window_pattern" not in self.data or not self.size("sliding_window", 0):
            return {}
        layers, kinds = self.size("num_hidden_layers"), self.data.get("layer_types")
        every = self.size("sliding_window_pattern", 0)  # the n-th, 2n-th, ... layer sees all
        local = layers - layers // every if every else layers
        if isinstance(kinds, list):
            local = kinds.count("sliding_attention")
        return {"window": self.size("sliding_window"), "window_layers": min(local, layers)}

    def _shared(self) -> int:
        """Return how many experts wide the shared one is, where its width is given."""
        width = self.size("shared_expert_intermediate_size", 0)
        return width // self.size("moe_intermediate_size") if width else 0


def _bad(key: str, value: Any, wanted: str) -> InvalidModel:
    return InvalidModel(f"{key!r} is {short_repr(value)}; {wanted}.")
