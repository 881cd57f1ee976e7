"""A person's function, arguments and mesh -> an Observation. Nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardlab.records.observation import Observation


def observe(f: Callable[..., Any], args: Sequence[Any], mesh: Any) -> Observation:
    raise NotImplementedError
