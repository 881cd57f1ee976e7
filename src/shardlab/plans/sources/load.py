"""A model from whatever a person has: a name, a file, a folder, an object."""

from __future__ import annotations

from typing import Any

from shardlab.plans.model import Model
from shardlab.plans.sources.presets import load_preset


def load_model(model: Any) -> Model:
    """Return the model that is meant."""
    if isinstance(model, Model):
        return model
    return load_preset(model)
