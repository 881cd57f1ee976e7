"""The architecture of a model from its `config.json`, and its tensors if there are no weights.

Keys and defaults are those of Hugging Face's transformers:
https://github.com/huggingface/transformers/tree/main/src/transformers/models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from os.path import exists
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_bounded_text
from shardlab._files.json_reader import reject_duplicate_keys
from shardlab.errors import InvalidModel, short_repr
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.transformer import SmallTensors, transformer_model
from shardlab.sharding.dtype import DTYPE_NAMES, Dtype, parse_dtype

_MAX_BYTES = 1_000_000
_MAX_NAME = 200  # characters
_FIX = "use a config.json of Hugging Face's transformers."
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
    "kimi_k2": {},
    "gpt_oss": {"sliding_window_pattern": 2, "sliding_window": 128},
    "llama4_text": {},
    "llama4": {},
}
# model_type -> what its decoder has besides matrices
_QWEN3 = SmallTensors(query_key_norms=True)
_SMALL_TENSORS = {
    "qwen2": SmallTensors(query_key_value_biases=True),
    "qwen2_moe": SmallTensors(query_key_value_biases=True),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "gemma2": SmallTensors(output_norms=True),
    "gemma3": SmallTensors(output_norms=True, query_key_norms=True),
    "gemma3_text": SmallTensors(output_norms=True, query_key_norms=True),
    "deepseek_v3": SmallTensors(router_bias=True),
    "kimi_k2": SmallTensors(router_bias=True),
    "gpt_oss": SmallTensors(
        query_key_value_biases=True,
        output_bias=True,
        attention_sinks=True,
        mlp_biases=True,
        router_bias=True,
    ),
}
_NAME_NOTE = "Tensors follow from the sizes in config.json: names are those of Llama checkpoints"


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
    config, _ = _find_language_model(data)
    # Defaults that transformers derives: as many kv heads as heads, head_dim = hidden // heads.
    heads = config.parse_size("num_attention_heads")
    hidden = config.parse_size("hidden_size")
    return Architecture(
        layers=config.parse_size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.parse_size("num_key_value_heads", heads),
        head_dim=config.parse_head_dim(hidden // heads),
        ffn=config.parse_ffn(),
        vocab=config.parse_size("vocab_size"),
        tied_embeddings=config.parse_flag("tie_word_embeddings"),
        **config.parse_experts(),
        kv_lora_rank=config.parse_size("kv_lora_rank", 0),
        rope_head_dim=config.parse_size("qk_rope_head_dim", 0),
        **config.parse_window(),
        v_head_dim=config.parse_size("v_head_dim", 0),
    )


def model_from_config(data: Any, where: str, name: str = "") -> Model:
    """Return the decoder that a config describes, without its weights.

    >>> config = {"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024,
    ...     "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    ...     "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True}
    >>> model_from_config(config, "config.json").n_parameters
    596049920
    """
    arch = parse_config(data)
    config, model_type = _find_language_model(data)
    is_vision = isinstance(data, Mapping) and "text_config" in data
    left_out = "; the vision tower is left out." if is_vision else "."
    model = transformer_model(
        name or model_type,
        arch,
        dtype=config.parse_dtype(),
        source=where,
        small_tensors=config.parse_small_tensors(_SMALL_TENSORS.get(model_type, SmallTensors())),
    )
    return replace(model, notes=(f"{_NAME_NOTE}{left_out}",))


def load_config_model(file: Path) -> Model:
    """Return the decoder of a `config.json` file, named after its folder."""
    try:
        data = json.loads(
            read_bounded_text(file, _MAX_BYTES), object_pairs_hook=reject_duplicate_keys
        )
    except (ValueError, RecursionError) as error:
        raise InvalidModel(
            f"The file is not valid JSON: {error!s:.200}.", where=str(file), fix=_FIX
        ) from None
    name = data.get("_name_or_path") if isinstance(data, dict) else None
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        name = file.absolute().parent.name
    try:
        return model_from_config(data, str(file), name[:_MAX_NAME])
    except InvalidModel as error:
        raise InvalidModel(error.what, where=str(file), fix=error.fix or _FIX) from None


def _find_language_model(data: Any) -> tuple[_Config, str]:
    """Return the config of the language model with its defaults, and its model_type."""
    data = data if isinstance(data, Mapping) else {}
    text = data.get("text_config", data)  # a multimodal model has its language model there
    text = text if isinstance(text, Mapping) else {}
    model_types = (config.get("model_type") for config in (data, text))
    model_type = next(filter(_is_supported, model_types), None)
    if model_type is None:
        raise _config_error(
            "model_type", data.get("model_type"), f"supported are {', '.join(_DEFAULTS)}"
        )
    return _Config({**_DEFAULTS[model_type], **text}), model_type


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

    def parse_ffn(self) -> int:
        """Return the inner width of the MLP, or of one expert."""
        return self.parse_size("moe_intermediate_size", self.parse_size("intermediate_size"))

    def parse_dtype(self) -> Dtype:
        """Return the dtype of the weights; bf16 if the config names none that is known."""
        name = self.data.get("dtype", self.data.get("torch_dtype"))
        return parse_dtype(name if isinstance(name, str) and name in DTYPE_NAMES else "bf16")

    def parse_small_tensors(self, usual: SmallTensors) -> SmallTensors:
        """Return what the decoder has besides matrices, with the biases that the config names."""
        has_bias = self.parse_flag("attention_bias")
        return replace(
            usual,
            q_lora_rank=self.parse_size("q_lora_rank", 0),
            query_key_value_biases=usual.query_key_value_biases or has_bias,
            output_bias=usual.output_bias or has_bias,
            mlp_biases=usual.mlp_biases or self.parse_flag("mlp_bias"),
        )

    def parse_experts(self) -> dict[str, Any]:
        """Return the fields of a mixture of experts; nothing for a dense model."""
        names = ("num_local_experts", "num_experts", "n_routed_experts")
        # Mixtral, Qwen and DeepSeek, in this order, use different names.
        experts = next((self.parse_size(name) for name in names if self.data.get(name)), 0)
        if not experts:
            return {}
        dense_layers = self.parse_size("first_k_dense_replace", 0)
        dense_ffn = self.parse_size("intermediate_size") if dense_layers else 0
        # Llama 4: one of several layers has experts, and one expert is always shared.
        step = self.parse_size("interleave_moe_layer_step", 0)
        if step > 1:
            layers = self.parse_size("num_hidden_layers")
            dense_layers, dense_ffn = (
                layers - layers // step,
                self.parse_size("intermediate_size_mlp"),
            )
        return {
            "experts": experts,
            "top_k": self.parse_size("num_experts_per_tok"),
            "shared_experts": self.parse_size(
                "n_shared_experts", self._shared_experts() or int(step > 0)
            ),
            "dense_layers": dense_layers,
            "dense_ffn": dense_ffn,
            "expert_groups": self.parse_size("n_group", 0),
            "top_groups": self.parse_size("topk_group", 0),
        }

    def _shared_experts(self) -> int:
        """Return the width of the shared expert in experts, if Qwen's config gives its width."""
        width = self.parse_size("shared_expert_intermediate_size", 0)
        return width // self.parse_size("moe_intermediate_size") if width else 0

    def parse_window(self) -> dict[str, Any]:
        """Return the window of local layers and their number, if there are any.

        Qwen 2 may have such layers under other keys, but does not use them by default.
        """
        if self.data.get("attention_chunk_size") is not None:
            return self._parse_chunks()
        if "sliding_window_pattern" not in self.data or not self.parse_size("sliding_window", 0):
            return {}
        layers, layer_types = self.parse_size("num_hidden_layers"), self.data.get("layer_types")
        # Every n-th layer is global; without a pattern (Mistral) all layers are local.
        period = self.parse_size("sliding_window_pattern", 0)
        n_local = layers - layers // period if period else layers
        if isinstance(layer_types, list):
            n_local = layer_types.count("sliding_attention")
        return {"window": self.parse_size("sliding_window"), "window_layers": min(n_local, layers)}

    def _parse_chunks(self) -> dict[str, Any]:
        """Return Llama 4's chunks as windows: layers with rotary embedding attend within one."""
        layers, flags = self.parse_size("num_hidden_layers"), self.data.get("no_rope_layers")
        # The list has 1 for a layer with rotary embedding; by default every fourth has none.
        n_local = layers - layers // 4
        if isinstance(flags, list) and len(flags) == layers:
            n_local = flags.count(1)
        return {"window": self.parse_size("attention_chunk_size"), "window_layers": n_local}


def _config_error(key: str, value: Any, expected: str) -> InvalidModel:
    return InvalidModel(f"{key!r} is {short_repr(value)}; {expected}.")
