"""The architecture of a model from the `config.json` beside its weights.

Keys and defaults are those of Hugging Face's transformers:
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
# model_type -> defaults of keys that its config.json may leave out, besides those in parse_config.
# transformers writes only values that differ from the class defaults, so these are needed.
_DEFAULTS: dict[str, dict[str, Any]] = {
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
    """Return the architecture in a folder's `config.json`, or a note on why there is none."""
    file = folder / "config.json"
    if not exists(file):
        return None, ("There is no config.json, so activations and caches cannot be estimated.",)
    try:
        data = json.loads(
            read_bounded_text(file, _MAX_BYTES), object_pairs_hook=reject_duplicate_keys
        )
        return parse_config(data), ()
    except (InvalidModel, ValueError, RecursionError) as error:
        reason = error.what if isinstance(error, InvalidModel) else f"{error}"
        return None, (f"config.json gives no architecture: {reason:.300}",)


def parse_config(data: Any) -> Architecture:
    """Return the architecture that a config describes.

    >>> parse_config({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    ...     "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    ...     "vocab_size": 128256}).head_dim
    128
    """
    data = data if isinstance(data, Mapping) else {}
    text = data.get("text_config", data)  # a multimodal model has its language model there
    text = text if isinstance(text, Mapping) else {}
    model_types = (config.get("model_type") for config in (data, text))
    model_type = next(filter(_is_supported, model_types), None)
    if model_type is None:
        raise _config_error(
            "model_type", data.get("model_type"), f"supported are {', '.join(_DEFAULTS)}"
        )
    config = _Config({**_DEFAULTS[model_type], **text})
    # Defaults that transformers derives: as many kv heads as heads, head_dim = hidden // heads.
    heads = config.parse_size("num_attention_heads")
    hidden = config.parse_size("hidden_size")
    return Architecture(
        layers=config.parse_size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.parse_size("num_key_value_heads", heads),
        head_dim=config.parse_head_dim(hidden // heads),
        ffn=config.parse_size("moe_intermediate_size", config.parse_size("intermediate_size")),
        vocab=config.parse_size("vocab_size"),
        tied_embeddings=config.parse_flag("tie_word_embeddings"),
        **config.parse_experts(),
        kv_lora_rank=config.parse_size("kv_lora_rank", 0),
        rope_head_dim=config.parse_size("qk_rope_head_dim", 0),
        **config.parse_window(),
        v_head_dim=config.parse_size("v_head_dim", 0),
    )


def _is_supported(model_type: Any) -> bool:
    return isinstance(model_type, str) and model_type in _DEFAULTS


class _Config:
    """The values of a config, each checked when it is read."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data

    def parse_size(self, key: str, default: int | None = None) -> int:
        """Return a whole number; an absent or null one is `default`."""
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 40:
            if value == 0 and default is not None:
                return 0
            raise _config_error(key, value, "it must be a whole number from 1")
        return value

    def parse_flag(self, key: str) -> bool:
        """Return a boolean; an absent or null one is false."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise _config_error(key, value, "it must be true or false")
        return bool(value)

    def parse_head_dim(self, default: int) -> int:
        """Return the width of a query head."""
        # Latent attention splits it into a part with and a part without rotary embedding.
        if "qk_nope_head_dim" in self.data:
            return self.parse_size("qk_nope_head_dim") + self.parse_size("qk_rope_head_dim")
        return self.parse_size("head_dim", max(default, 1))

    def parse_experts(self) -> dict[str, Any]:
        """Return the fields of a mixture of experts; nothing for a dense model."""
        names = ("num_local_experts", "num_experts", "n_routed_experts")
        # Mixtral, Qwen and DeepSeek, in this order, use different names.
        experts = next((self.parse_size(name) for name in names if self.data.get(name)), 0)
        if not experts:
            return {}
        dense_layers = self.parse_size("first_k_dense_replace", 0)
        return {
            "experts": experts,
            "top_k": self.parse_size("num_experts_per_tok"),
            "shared_experts": self.parse_size("n_shared_experts", self._shared_experts()),
            "dense_layers": dense_layers,
            "dense_ffn": self.parse_size("intermediate_size") if dense_layers else 0,
        }

    def _shared_experts(self) -> int:
        """Return the width of the shared expert in experts, if Qwen's config gives its width."""
        width = self.parse_size("shared_expert_intermediate_size", 0)
        return width // self.parse_size("moe_intermediate_size") if width else 0

    def parse_window(self) -> dict[str, Any]:
        """Return the window of local layers and their number, if there are any.

        Qwen 2 may have such layers under other keys, but does not use them by default.
        """
        if "sliding_window_pattern" not in self.data or not self.parse_size("sliding_window", 0):
            return {}
        layers, layer_types = self.parse_size("num_hidden_layers"), self.data.get("layer_types")
        # Every n-th layer is global; without a pattern (Mistral) all layers are local.
        period = self.parse_size("sliding_window_pattern", 0)
        n_local = layers - layers // period if period else layers
        if isinstance(layer_types, list):
            n_local = layer_types.count("sliding_attention")
        return {"window": self.parse_size("sliding_window"), "window_layers": min(n_local, layers)}


def _config_error(key: str, value: Any, expected: str) -> InvalidModel:
    return InvalidModel(f"{key!r} is {short_repr(value)}; {expected}.")
