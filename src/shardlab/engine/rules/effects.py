"""Callbacks to the host, called once for each device with its coordinate at hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shardlab.engine import _jax, whereabouts
from shardlab.engine.spread import Axes, Slot, Spread, arrange


def debug_callback(axes: Axes, eqn: Any, ins: list[Spread]) -> list[Spread]:
    params = eqn.params

    def call(*args: Any) -> None:
        params["callback"](*args)

    _on_each_device(axes, ins, call, ordered=_jax.is_ordered(params))
    return []


def debug_print(axes: Axes, eqn: Any, ins: list[Spread]) -> list[Spread]:
    """`jax.debug.print`, each line led by the coordinate of the device that prints it."""
    params = eqn.params

    def call(*args: Any) -> None:
        label = whereabouts.label()
        text = f"[{label}] {params['fmt']}" if label else params["fmt"]
        _jax.print_now(*args, **{**params, "fmt": text})

    _on_each_device(axes, ins, call, ordered=params["ordered"])
    return []


def _on_each_device(
    axes: Axes, ins: list[Spread], call: Callable[..., None], *, ordered: bool
) -> None:
    names = axes.ordered(axes.manual)
    stacked, where = [], []
    for value in ins:
        mine = axes.ordered(value.at)
        slots: tuple[Slot, ...] = (*mine, *value.local_slots)
        stacked.append(arrange(value, slots, value.array.shape))
        where.append([names.index(n) for n in mine])

    def host(*arrays: Any) -> None:
        arrays = tuple(np.asarray(array) for array in arrays)
        for coordinate in itertools.product(*(range(axes.sizes[n]) for n in names)):
            mine = [a[tuple(coordinate[i] for i in w)] for a, w in zip(arrays, where, strict=True)]
            with whereabouts.on_device(dict(zip(names, coordinate, strict=True))):
                call(*mine)

    jax.debug.callback(host, *stacked, ordered=ordered)


RULES: dict[str, Callable[..., list[Spread]]] = {
    "debug_callback": debug_callback,
    "debug_print": debug_print,
}
