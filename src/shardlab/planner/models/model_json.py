"""A model as plain data: the result of the process that loads a user's file.

>>> from shardlab.planner.models.presets import load_preset
>>> model = load_preset("llama3-8b")
>>> model_from_json(model_to_json(model)).n_parameters == model.n_parameters
True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardlab.planner.model import Model
from shardlab.planner.plan import spec_json
from shardlab.planner.tensor_group import Tensor, TensorGroup, group_tensors
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.spec import parse_spec


def model_to_json(model: Model) -> dict[str, Any]:
    """Return a model that was read from a pytree: paths, shapes, dtypes, axis names, specs."""
    return {
        "name": model.name,
        "source": model.source,
        "groups": [_group_json(group) for group in model.groups],
        "notes": list(model.notes),
        "details": dict(model.details),
    }


def model_from_json(data: Mapping[str, Any]) -> Model:
    """Return the model that `model_to_json` wrote."""
    return Model(
        name=data["name"],
        groups=group_tensors(
            tensor for group in data["groups"] for tensor in _parse_tensors(group)
        ),
        source=data["source"],
        notes=tuple(data["notes"]),
        details=data["details"],
    )


def _group_json(group: TensorGroup) -> dict[str, Any]:
    return {
        "paths": list(group.paths()),
        "shape": list(group.shape),
        "dtype": group.dtype.name,
        "axes": None if group.axes is None else list(group.axes),
        "spec": None if group.spec is None else spec_json(group.spec),
        "is_trained": group.is_trained,
        "is_optimizer_state": group.is_optimizer_state,
    }


def _parse_tensors(data: Mapping[str, Any]) -> Iterator[Tensor]:
    for path in data["paths"]:
        yield Tensor(
            path=path,
            shape=tuple(data["shape"]),
            dtype=parse_dtype(data["dtype"]),
            axes=None if data["axes"] is None else tuple(data["axes"]),
            spec=None if data["spec"] is None else parse_spec(data["spec"]),
            is_trained=data["is_trained"],
            is_optimizer_state=data["is_optimizer_state"],
        )
