"""Replicated outputs: compares the copies of an output that its spec declares replicated."""

from __future__ import annotations

import dataclasses
import itertools
import os
import warnings
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardlab import _jax
from shardlab.findings.source import SourceLocation
from shardlab.simulator.interpreter.replica_recorder import is_recording, record_output
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.reductions import psum
from shardlab.simulator.interpreter.shard_boundary import select_first_replica, spec_axes
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    StackedArray,
    arrange_dims,
    broadcast_over,
)
from shardlab.simulator.run_records import ReplicaValues
from shardlab.simulator.run_statistics import RUN_STATISTICS

_HOOKS_FOLDER = os.path.dirname(_jax.__file__)
_MAX_LISTED = 7  # devices in a warning
_MAX_NAMES = 6  # outputs in a warning


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaDifference:
    """The outputs of one shard_map whose replicas differ, with the values of the first of them."""

    body: str
    outputs: tuple[str, ...]  # `[0]['w1']`, or `0 of 3` where the names are not known
    mesh_axes: tuple[str, ...]
    n_differing: int  # devices that do not have the value of the first device
    n_devices: int
    values: tuple[str, ...]  # one line per device

    @property
    def sentence(self) -> str:
        """Return what differs, as one sentence."""
        rest = len(self.outputs) - _MAX_NAMES
        names = ", ".join(self.outputs[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
        subject = "the output" if names == "0 of 1" else f"output {names}"
        verb = "differs" if len(self.outputs) == 1 else "differ"
        copies = "copy is" if len(self.outputs) == 1 else "copies are"
        axes = ", ".join(map(repr, self.mesh_axes))
        return (
            f"{subject} of '{self.body}', declared replicated over {axes}, {verb} on "
            f"{self.n_differing} of {self.n_devices} devices; the first device's {copies} returned."
        )

    @property
    def value_lines(self) -> tuple[str, ...]:
        """Return the values by device; of the first output if there are several."""
        if len(self.outputs) == 1:
            return self.values
        return (f"values of {self.outputs[0]}:", *(f"  {line}" for line in self.values))


class ReplicasDiffer(UserWarning):
    """Outputs that their spec declares replicated have different values on different devices."""

    def __init__(self, difference: ReplicaDifference) -> None:
        self.difference = difference
        lines = "".join(f"\n  {line}" for line in difference.value_lines)
        super().__init__(
            f"{difference.sentence}{lines}\n"
            "  try: sum or average it over that axis (psum, pmean), or shard it in out_specs."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputSource:
    """Which output of which shard_map body, and the source line of that body."""

    index: int
    n_outputs: int
    body: str
    file: str
    line: int
    name: str = ""  # path among the outputs of the program, if the program returns it

    def __str__(self) -> str:
        return self.name or f"{self.index} of {self.n_outputs}"

    def empty_record(self) -> ReplicaValues:
        """Return a record of this output without values."""
        return ReplicaValues(
            output_index=self.index,
            n_outputs=self.n_outputs,
            body=self.body,
            source=SourceLocation(self.file, self.line, self.body),
            mesh_axes=(),
            values=None,
        )


@dataclasses.dataclass(frozen=True)
class ReplicatedOutput:
    """An output to compare when the program runs: device axes come first."""

    array: Any
    mesh_axes: tuple[str, ...]
    source: OutputSource


# Names of the outputs of a shard_map, by its body: JAX names the outputs of a jit only.
_output_names: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()
# Jits that return no output of a shard_map. Simulated mode asks at every call, and a train step has
# thousands of equations.
_jits_without_names: weakref.WeakSet[Any] = weakref.WeakSet()


def name_outputs(closed: Any) -> None:
    """Remember which outputs of a jit are outputs of a shard_map in it, and their paths."""
    jaxpr, _ = _jax.open_jaxpr(closed)
    if jaxpr in _jits_without_names:
        return
    paths = getattr(jaxpr.debug_info, "result_paths", None) or ()
    # An eager shard_map runs in a jit of ours, which returns a flat list.
    is_eager = _HOOKS_FOLDER in str(jaxpr.debug_info.func_src_info)
    if len(paths) != len(jaxpr.outvars) or is_eager:
        return
    if not _name_outputs(jaxpr, _names_of_variables(zip(jaxpr.outvars, paths, strict=True))):
        _jits_without_names.add(jaxpr)


def _names_of_variables(pairs: Iterable[tuple[Any, str]]) -> dict[Any, str]:
    # An output can be a literal, which no equation computes and which cannot be hashed.
    return {atom: name for atom, name in pairs if not isinstance(atom, _jax.Literal)}


def _name_outputs(jaxpr: Any, names: Mapping[Any, str]) -> bool:
    """Name the outputs of the shard_maps in a program; return whether there is one."""
    has_names = False
    for eqn in jaxpr.eqns:
        by_index = {
            index: str(names[var]).removeprefix("result")
            for index, var in enumerate(eqn.outvars)
            if var in names
        }
        if not by_index:
            continue
        if eqn.primitive.name == "shard_map":
            _output_names[_jax.open_jaxpr(eqn.params["jaxpr"])[0]] = by_index
            has_names = True
            continue
        body = called_jaxpr(eqn.primitive.name, eqn.params)
        if body is not None:
            inner, _ = _jax.open_jaxpr(body)
            has_names |= _name_outputs(
                inner, _names_of_variables((inner.outvars[i], name) for i, name in by_index.items())
            )
    return has_names


def output_name(body: Any, index: int) -> str:
    """Return the path of an output of a shard_map among the outputs of its program, or ''."""
    return _output_names.get(_jax.open_jaxpr(body)[0], {}).get(index, "")


def finish_output(
    value: StackedArray,
    spec: Any,
    inner: MeshAxes,
    newly_manual: Collection[str],
    keep_partial_sums: bool,
    source: OutputSource,
    to_compare: list[ReplicatedOutput],
) -> StackedArray:
    """Prepare an output to leave its shard_map: sum partial sums, reduce replicas to one copy.

    A mesh axis that the spec does not mention declares the output replicated over it. With
    `check_vma=False` JAX has not proven that. If the interpreter cannot either, because the value
    still has a device axis, the copies are compared when the program runs (they are added to
    `to_compare`). The first device's copy is returned, as JAX returns one of them.
    """
    unreduced = frozenset(spec.unreduced)
    if keep_partial_sums:
        value = broadcast_over(value, unreduced, inner)
    elif unreduced:
        value = psum(inner, value, inner.in_mesh_order(unreduced))
    accounted_for = spec_axes(spec) | unreduced
    replicated = inner.in_mesh_order(
        n for n in value.device_axes if n in newly_manual and n not in accounted_for
    )
    if is_recording():
        # On one device every output is recorded: it is the reference for the other meshes.
        if replicated or inner.size(newly_manual) == 1:
            record_output(value, spec, inner, replicated, source.empty_record())
    elif replicated:
        rest = tuple(dim for dim in value.dims if dim not in replicated)
        array = arrange_dims(value, (*replicated, *rest), value.array.shape)
        to_compare.append(ReplicatedOutput(array, replicated, source))
    return select_first_replica(value, replicated)


def compare_replicas(outputs: Sequence[ReplicatedOutput], n_devices: int) -> None:
    """Compare copies when the program runs; warn once per shard_map, at the first difference.

    One forgotten psum makes every output that follows from it differ: that is one warning for all
    outputs that differ along the same mesh axes.
    """
    if not outputs:
        return
    warned: list[ReplicaDifference] = []

    def compare_on_host(*arrays: Any) -> None:
        if warned:
            return
        by_axes: dict[tuple[str, ...], list[ReplicaDifference]] = {}
        for output, array in zip(outputs, arrays, strict=True):
            difference = _find_difference(np.asarray(array), output, n_devices)
            if difference is not None:
                by_axes.setdefault(output.mesh_axes, []).append(difference)
        for differences in by_axes.values():
            names = tuple(name for item in differences for name in item.outputs)
            difference = dataclasses.replace(differences[0], outputs=names)
            warned.append(difference)
            source = outputs[0].source
            shard_map = (source.file, source.line, source.body, difference.mesh_axes)
            if RUN_STATISTICS.add_difference(shard_map, names):
                # An empty registry per call: Python would otherwise drop a warning with equal
                # text about another program.
                warnings.warn_explicit(
                    ReplicasDiffer(difference),
                    ReplicasDiffer,
                    source.file,
                    source.line,
                    registry={},
                )

    jax.debug.callback(compare_on_host, *(output.array for output in outputs))


def _find_difference(
    array: np.ndarray[Any, Any], output: ReplicatedOutput, n_devices: int
) -> ReplicaDifference | None:
    """Return the devices whose values differ from the first one's; None if all are equal."""
    names = output.mesh_axes
    coordinates = list(itertools.product(*(range(n) for n in array.shape[: len(names)])))
    first = array[coordinates[0]]
    has_nan = first.dtype.kind in "fc"  # equal_nan raises for other dtypes
    differing = [c for c in coordinates if not np.array_equal(array[c], first, equal_nan=has_nan)]
    if not differing:
        return None
    lines = [
        f"{_coordinate_text(names, c)}: {_array_text(array[c])}"
        for c in [coordinates[0], *differing[:_MAX_LISTED]]
    ]
    if len(differing) > _MAX_LISTED:
        lines.append(f"... and {len(differing) - _MAX_LISTED} more")
    return ReplicaDifference(
        body=output.source.body,
        outputs=(str(output.source),),
        mesh_axes=names,
        # One coordinate along `names` represents all devices along the other mesh axes.
        n_differing=len(differing) * n_devices // len(coordinates),
        n_devices=n_devices,
        values=tuple(lines),
    )


def _coordinate_text(names: tuple[str, ...], coordinate: tuple[int, ...]) -> str:
    return " ".join(f"{name}={i}" for name, i in zip(names, coordinate, strict=True))


def _array_text(array: np.ndarray[Any, Any]) -> str:
    return np.array2string(array, threshold=6, edgeitems=2, precision=4).replace("\n", " ")
