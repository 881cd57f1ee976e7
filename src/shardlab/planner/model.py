"""A model: its tensors in groups, and the architecture (layers, heads, width) if it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardlab.errors import InvalidModel
from shardlab.planner.tensor_group import TensorGroup

# Tensor groups in one plan: planning takes a few seconds, and the golden file can be read back.
MAX_GROUPS = 60_000


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes of a transformer, needed to estimate activations and KV caches."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied_embeddings: bool = False
    experts: int = 0  # 0: dense
    top_k: int = 0
    shared_experts: int = 0
    dense_layers: int = 0  # of a mixture of experts: layers without experts, mostly the first
    dense_ffn: int = 0
    kv_lora_rank: int = 0  # of multi-head latent attention: width of the cache instead of heads
    rope_head_dim: int = 0
    gated: bool = True  # SwiGLU and similar: two matrix products before the activation
    window: int = 0  # tokens that local layers attend to, and cache; 0: no local layers
    window_layers: int = 0  # number of local layers
    expert_groups: int = 0  # node-limited routing: a token's experts are in `top_groups` of them
    top_groups: int = 0
    v_head_dim: int = 0  # width of a value head; 0: as a key head without its rotary part

    @property
    def value_dim(self) -> int:
        """The width of one value head.

        In latent attention only queries and keys have the rotary part.
        """
        return self.v_head_dim or self.head_dim - (self.rope_head_dim if self.kv_lora_rank else 0)


@dataclass(frozen=True, kw_only=True)
class Model:
    """The tensors that a plan is about; `source` is a sentence about where they were read from."""

    name: str
    groups: tuple[TensorGroup, ...]
    source: str = ""
    architecture: Architecture | None = None
    published: int | None = None  # parameters according to the publisher
    notes: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_tensors(self) -> int:
        """The number of tensors."""
        return sum(group.n_tensors for group in self.groups)

    @property
    def n_parameters(self) -> int:
        """Trained elements: batch statistics take memory but are not parameters."""
        return sum(group.n_tensors * group.n_elements for group in self.groups if group.is_trained)

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors in the dtypes of the source."""
        return sum(group.n_tensors * group.dtype.n_bytes(group.n_elements) for group in self.groups)

    @property
    def is_stacked(self) -> bool:
        """Whether tensors that are separate in the source were stacked into one array."""
        return any(group.stacked_meanings is not None for group in self.groups)


def check_model(model: Model, max_groups: int = MAX_GROUPS) -> Model:
    """Return the model if it can be planned: few enough tensor groups, and paths that UTF-8 has.

    A model of any depth has dozens of groups. Thousands mean that numbers are glued to letters.
    """
    n_groups = len(model.groups)
    if n_groups <= max_groups:
        _check_paths(model)
        return model
    raise InvalidModel(
        f"The model has {n_groups:,} groups of tensors whose paths differ in more than numbers.",
        where=f"such as {model.groups[0].name!r:.200} and {model.groups[1].name!r:.200}",
        fix=f"use at most {max_groups:,} groups: layers.3.experts.17.up forms one group over all "
        "layers and experts, and layer3.expert17.up does not.",
    )


def _check_paths(model: Model) -> None:
    for group in model.groups:
        path = "".join(group.path_parts)
        # A lone surrogate (from a damaged file name or JSON escape) cannot be encoded: no terminal
        # and no saved plan could hold it.
        if not path.isascii() and any("\ud800" <= char <= "\udfff" for char in path):
            raise InvalidModel(
                f"The path {path!r:.200} contains a lone surrogate.",
                where=model.source,
                fix="use paths that are valid UTF-8.",
            )
