"""Flax's logical rules: those that hold around an array's making, kept until we look at it.

Flax applies the rules of `logical_axis_rules` when an array is made, if there is a mesh to put it
on. Without one it forgets them, and a model that was made under its own rules would lose them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Rules = tuple[tuple[str, Any], ...]


def rules_around() -> Rules:
    """Return the logical rules that hold here, of linen and NNX alike."""
    from flax.core import spmd

    return tuple(spmd.get_logical_axis_rules() or ())


@contextmanager
def keep_rules() -> Iterator[None]:
    """Let every NNX variable, and every box of linen, have the rules that it was made under."""
    from flax import linen, nnx

    create_value: Any = nnx.Variable.create_value
    init: Any = linen.LogicallyPartitioned.__init__

    def create_with_rules(variable: Any, value: Any) -> Any:
        if (around := rules_around()) and variable.get_metadata().get("out_sharding") is not None:
            own = dict(variable.get_metadata().get("sharding_rules") or ())
            variable.set_metadata(sharding_rules=tuple({**dict(around), **own}.items()))
        return create_value(variable, value)

    def init_with_rules(box: Any, *args: Any, **kwargs: Any) -> None:
        init(box, *args, **kwargs)
        if box.rules is None and (around := rules_around()):
            object.__setattr__(box, "rules", around)

    _set(nnx.Variable, "create_value", create_with_rules)
    _set(linen.LogicallyPartitioned, "__init__", init_with_rules)
    try:
        yield
    finally:
        _set(nnx.Variable, "create_value", create_value)
        _set(linen.LogicallyPartitioned, "__init__", init)


def _set(kind: Any, name: str, value: Any) -> None:
    setattr(kind, name, value)
