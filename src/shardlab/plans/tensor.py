"""One tensor of a model: where it stands, its shape and dtype, and what its author said of it."""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.layouts.dtype import Dtype
from shardlab.layouts.spec import Spec

Axes = tuple[str | None, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor by its path, as `model.layers.0.mlp.up_proj.weight` or `layers/0/mlp/kernel`.

    `axes` are logical names of its array axes (`embed`, `mlp`), `spec` the sharding that the model
    itself asks for; both only where the source has them. What no optimizer changes, such as the
    statistics of a norm or the state of a random stream, is held but not trained; so is a `state`,
    an array that an optimizer keeps.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Dtype
    axes: Axes | None = None
    spec: Spec | None = None
    is_trained: bool = True
    is_state: bool = False
