"""Host callbacks: called once per device, in mesh order, with that device's coordinate set.

On several virtual hosts each host makes the calls of its own devices. What they return goes to all
hosts; pure callbacks have no effects, so every host makes all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from shardlab import _jax
from shardlab.simulator.interpreter.device_context import (
    DeviceOwners,
    coordinate_label,
    device_owners,
    has_labels,
    run_as_device,
)
from shardlab.simulator.interpreter.stacked_array import (
    Dim,
    MeshAxes,
    StackedArray,
    arrange_dims,
)


def debug_callback_rule(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    params = eqn.params
    call = _prepare_host_call(axes, axes.in_mesh_order(axes.manual), ins, device_owners())

    def call_per_device(*arrays: Any) -> None:
        for _, args in call.iterate_devices(arrays):
            params["callback"](*args)

    jax.debug.callback(call_per_device, *call.arrays, ordered=_jax.is_ordered(params))
    return []


def debug_print_rule(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    """`jax.debug.print`; each line starts with the coordinate of the device that prints it."""
    params = eqn.params
    call = _prepare_host_call(axes, axes.in_mesh_order(axes.manual), ins, device_owners())
    is_labelled = has_labels()  # here: the callback runs in a thread with another context

    def print_per_device(*arrays: Any) -> None:
        for _, args in call.iterate_devices(arrays):
            label = coordinate_label() if is_labelled else ""
            text = f"[{label}] {params['fmt']}" if label else params["fmt"]
            _jax.print_now(*args, **{**params, "fmt": text})

    jax.debug.callback(print_per_device, *call.arrays, ordered=params["ordered"])
    return []


def io_callback_rule(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    """Every device makes its call, even with equal arguments: results and effects may differ."""
    call = _prepare_host_call(axes, axes.in_mesh_order(axes.manual), ins, device_owners())
    shapes, call_per_device = _result_callback(eqn.params, call)
    outs = io_callback(call_per_device, shapes, *call.arrays, ordered=eqn.params["ordered"])
    return call.stack_results(outs)


def pure_callback_rule(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    """Devices with equal arguments share one call: JAX itself may elide or repeat pure calls."""
    inputs = [*ins, axes.active] if axes.active is not None else ins
    names = axes.in_mesh_order(n for value in inputs for n in value.device_axes)
    call = _prepare_host_call(axes, names, ins)
    shapes, call_per_device = _result_callback(eqn.params, call)
    return call.stack_results(jax.pure_callback(call_per_device, shapes, *call.arrays))


def _result_callback(
    params: dict[str, Any], call: _HostCall
) -> tuple[list[Any], Callable[..., Any]]:
    """Return the shapes of the results of all devices, and the host function that fills them."""
    shapes = [
        _jax.plain_aval((*call.sizes, *aval.shape), aval.dtype) for aval in params["result_avals"]
    ]

    def call_per_device(*arrays: Any) -> list[Any]:
        # Devices that do not take part keep zeros; their value is discarded after the branch.
        results = [np.zeros(shape.shape, shape.dtype) for shape in shapes]
        for coordinate, args in call.iterate_devices(arrays):
            for result, out in zip(results, params["callback"](*args), strict=True):
                result[coordinate] = out
        return call.share_results(results)

    return shapes, call_per_device


@dataclasses.dataclass(frozen=True, kw_only=True)
class _HostCall:
    """One host call on behalf of all devices along `names`.

    `arrays` go to the host; `positions` says which coordinates index each of them. With `has_mask`
    the last array is the mask of devices that take part.
    """

    axes: MeshAxes
    names: tuple[str, ...]
    arrays: list[Any]
    positions: list[list[int]]
    has_mask: bool
    owners: DeviceOwners | None = None  # of the devices, if each host calls for its own

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.axes.sizes[name] for name in self.names)

    def iterate_devices(self, arrays: Sequence[Any]) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
        """Yield coordinate and arguments of each participating device, with its context set."""
        # NumPy: slicing JAX arrays would start new computations from inside a callback.
        arrays = [np.asarray(array) for array in arrays]
        for coordinate in self._coordinates():
            if self.owners is not None and self._host_at(coordinate) != self.owners.this_host:
                continue
            args = [
                array[tuple(coordinate[i] for i in positions)]
                for array, positions in zip(arrays, self.positions, strict=True)
            ]
            if self.has_mask and not args.pop():
                continue
            with run_as_device(dict(zip(self.names, coordinate, strict=True))):
                yield coordinate, args

    def _coordinates(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*(range(size) for size in self.sizes))

    def _host_at(self, coordinate: tuple[int, ...]) -> int:
        assert self.owners is not None
        return self.owners.host_at(dict(zip(self.names, coordinate, strict=True)), self.axes.sizes)

    def share_results(self, results: list[Any]) -> list[Any]:
        """Return the results of all devices, of which this host has those of its own."""
        if self.owners is None:
            return results
        of_hosts = self.owners.share(results)
        for coordinate in self._coordinates():
            for result, other in zip(results, of_hosts[self._host_at(coordinate)], strict=True):
                result[coordinate] = other[coordinate]
        return results

    def stack_results(self, arrays: Sequence[Any]) -> list[StackedArray]:
        """Return the results, one per device along `names`, as stacked arrays."""
        # The host filled one entry per device; mesh axes of size 1 have no device axis.
        names = self.axes.drop_size_one(self.names)
        outs = []
        for array in arrays:
            local_shape = array.shape[len(self.names) :]
            shape = (*(self.axes.sizes[name] for name in names), *local_shape)
            dims = (*names, *range(len(local_shape)))
            outs.append(StackedArray.from_dims(array.reshape(shape), dims))
        return outs


def _prepare_host_call(
    axes: MeshAxes,
    names: tuple[str, ...],
    ins: Sequence[StackedArray],
    owners: DeviceOwners | None = None,
) -> _HostCall:
    """Arrange the arguments for the host: device axes first, in mesh order."""
    values = [*ins, axes.active] if axes.active is not None else ins
    arrays, positions = [], []
    for value in values:
        value_axes = axes.in_mesh_order(value.device_axes)
        dims: tuple[Dim, ...] = (*value_axes, *value.local_dims)
        arrays.append(arrange_dims(value, dims, value.array.shape))
        positions.append([names.index(name) for name in value_axes])
    return _HostCall(
        axes=axes,
        names=names,
        arrays=arrays,
        positions=positions,
        has_mask=axes.active is not None,
        owners=owners,
    )


CALLBACKS: dict[str, Callable[..., list[StackedArray]]] = {
    "debug_callback": debug_callback_rule,
    "debug_print": debug_print_rule,
    "io_callback": io_callback_rule,
    "pure_callback": pure_callback_rule,
}
