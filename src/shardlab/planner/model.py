"""A model: its tensors in families, and the few numbers that say what they are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardlab.errors import InvalidModel
from shardlab.planner.tensor_group import TensorGroup

MAX_GROUPS = 60_000  # families in a plan: some seconds, and a golden file that can be read again


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The measures of a transformer, where they are known: activations and caches need them."""

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
    dense_layers: int = 0  # of a mixture: the first layers that have no experts
    dense_ffn: int = 0
    kv_lora_rank: int = 0  # of multi-head latent attention: what the cache holds in place of heads
    rope_head_dim: int = 0
    gated: bool = True  # SwiGLU and its relatives: two products before the activation
    window: int = 0  # tokens that local layers look back over, and cache; 0: all layers see all
    window_layers: int = 0  # how many layers are local
    v_head_dim: int = 0  # width of a head of values; 0: as that of keys without a rotary part

    @property
    def value_dim(self) -> int:
        """The width of one head of values.

        Latent attention gives the rotary part to queries and keys alone.
        """
        return self.v_head_dim or self.head_dim - (self.rope_head_dim if self.kv_lora_rank else 0)


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a plan is about; `source` says in words where its tensors were read from."""

    name: str
    groups: tuple[TensorGroup, ...]
    source: str = ""
    architecture: Architecture | None = None
    published: int | None = None  # elements, as whoever released it counts them
    notes: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_tensors(self) -> int:
        return sum(each.n_tensors for each in self.groups)

    @property
    def n_parameters(self) -> int:
        """Elements of all that is trained: the statistics of a norm are held, but not counted."""
        trained = (each for each in self.groups if each.is_trained)
        return sum(each.n_tensors * each.n_elements for each in trained)

    @property
    def n_bytes(self) -> int:
        return sum(each.n_tensors * each.dtype.n_bytes(each.n_elements) for each in self.groups)

    @property
    def is_stacked(self) -> bool:
        """Whether a plan holds some of its tensors in one array that the source has apart."""
        return any(group.stacked_meanings is not None for group in self.groups)


def check_model(model: Model, most: int = MAX_GROUPS) -> Model:
    """Return the model, unless it has more families than can be counted in a moment.

    A model of any depth has dozens; those of thousands have numbers that stand beside letters.
    Nor may a path hold half a character, which no file and no terminal takes.
    """
    n = len(model.groups)
    if n <= most:
        _check_paths(model)
        return model
    raise InvalidModel(
        f"The model has tensors of {n:,} kinds, which differ in more than numbers in their paths.",
        where=f"such as {model.groups[0].name!r:.200} and {model.groups[1].name!r:.200}",
        fix=f"at most {most:,} kinds: layers.3.experts.17.up is alike in all layers and experts, "
        "and layer3.expert17.up is not.",
    )


def _check_paths(model: Model) -> None:
    for each in model.groups:
        path = "".join(each.path_parts)
        if not path.isascii() and any("\ud800" <= letter <= "\udfff" for letter in path):
            what = f"The path {path!r:.200} has half a character in it."
            raise InvalidModel(what, where=model.source, fix="text that UTF-8 can hold.")
