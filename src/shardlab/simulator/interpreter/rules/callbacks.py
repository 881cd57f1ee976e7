"""Callbacks to the host, called once for each device with its coordinate at hand."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from shardlab import _jax
from shardlab.simulator.interpreter import device_context as whereabouts
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    Slot,
    StackedArray,
    arrange_dims,
    from_slots,
)


def debug_callback(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    params = eqn.params
    visit = _visit(axes, axes.in_mesh_order(axes.manual), ins)

    def host(*arrays: Any) -> None:
        for _, args in visit.each(arrays):
            params["callback"](*args)

    jax.debug.callback(host, *visit.arrays, in_mesh_order=_jax.is_ordered(params))
    return []


def debug_print(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    """`jax.debug.print`, each line led by the coordinate of the device that prints it."""
    params = eqn.params
    visit = _visit(axes, axes.in_mesh_order(axes.manual), ins)

    def host(*arrays: Any) -> None:
        for _, args in visit.each(arrays):
            label = whereabouts.label()
            text = f"[{label}] {params['fmt']}" if label else params["fmt"]
            _jax.print_now(*args, **{**params, "fmt": text})

    jax.debug.callback(host, *visit.arrays, in_mesh_order=params["ordered"])
    return []


def io(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    """Each device calls, also where all have the same to say: the host may answer differently."""
    visit = _visit(axes, axes.in_mesh_order(axes.manual), ins)
    shapes, host = _answering(eqn.params, visit)
    outs = io_callback(host, shapes, *visit.arrays, in_mesh_order=eqn.params["ordered"])
    return visit.spread(outs)


def pure(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    """Devices with equal arguments share one call."""
    asking = [*ins, axes.active] if axes.active is not None else ins
    visit = _visit(axes, axes.in_mesh_order(n for value in asking for n in value.device_axes), ins)
    shapes, host = _answering(eqn.params, visit)
    return visit.spread(jax.pure_callback(host, shapes, *visit.arrays))


def _answering(params: dict[str, Any], visit: _Visit) -> tuple[list[Any], Callable[..., Any]]:
    """Return what the host will answer for all devices at once, and how."""
    shapes = [
        _jax.plain_aval((*visit.sizes, *aval.shape), aval.dtype) for aval in params["result_avals"]
    ]

    def host(*arrays: Any) -> list[Any]:
        answers = [np.zeros(shape.shape, shape.dtype) for shape in shapes]
        for coordinate, args in visit.each(arrays):
            for answer, out in zip(answers, params["callback"](*args), strict=True):
                answer[coordinate] = out
        return answers

    return shapes, host


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Visit:
    """A round of all devices along `names`: arrays for the host, and what each device has of them.

    The last array says which devices take part, if some do not (`masked`).
    """

    axes: MeshAxes
    names: tuple[str, ...]
    arrays: list[Any]
    positions: list[list[int]]
    masked: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.axes.sizes[name] for name in self.names)

    def each(self, arrays: Sequence[Any]) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
        """Yield coordinate and arguments of each device that takes part, being on that device."""
        arrays = [np.asarray(array) for array in arrays]
        for coordinate in itertools.product(*(range(size) for size in self.sizes)):
            mine = [
                array[tuple(coordinate[i] for i in where)]
                for array, where in zip(arrays, self.positions, strict=True)
            ]
            if self.masked and not mine.pop():
                continue
            with whereabouts.on_device(dict(zip(self.names, coordinate, strict=True))):
                yield coordinate, mine

    def spread(self, arrays: Sequence[Any]) -> list[StackedArray]:
        """Return answers, one for each device, as values."""
        names = self.axes.drop_size_one(self.names)
        outs = []
        for array in arrays:
            local = array.shape[len(self.names) :]
            shape = (*(self.axes.sizes[name] for name in names), *local)
            outs.append(from_slots(array.reshape(shape), (*names, *range(len(local)))))
        return outs


def _visit(axes: MeshAxes, names: tuple[str, ...], ins: Sequence[StackedArray]) -> _Visit:
    values = [*ins, axes.active] if axes.active is not None else ins
    arrays, positions = [], []
    for value in values:
        mine = axes.in_mesh_order(value.device_axes)
        slots: tuple[Slot, ...] = (*mine, *value.local_slots)
        arrays.append(arrange_dims(value, slots, value.array.shape))
        positions.append([names.index(name) for name in mine])
    return _Visit(
        axes=axes, names=names, arrays=arrays, positions=positions, masked=axes.active is not None
    )


RULES: dict[str, Callable[..., list[StackedArray]]] = {
    "debug_callback": debug_callback,
    "debug_print": debug_print,
    "io_callback": io,
    "pure_callback": pure,
}
