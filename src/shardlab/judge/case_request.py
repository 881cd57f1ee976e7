"""One case as a question: what the two processes are asked, and what would be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardlab.catalogue.reference import Reference
from shardlab.judge.cases import Case
from shardlab.judge.grading.evidence import Array
from shardlab.judge.grading.grade import Right
from shardlab.judge.grading.structure import leaves
from shardlab.judge.protocol.values import array_bytes, pack
from shardlab.sandbox.frame import Frame
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec


@dataclass(frozen=True)
class Question:
    """A case with its inputs."""

    case: Case
    reference: Reference
    inputs: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Return who answers it: export (author, then runner), simulate or call (author alone)."""
        if self.case.is_simulated:
            return "simulate"
        return "call" if self.case.part.kind == "value" else "export"

    @property
    def mesh(self) -> Mesh:
        return self.case.draw.mesh

    @cached_property
    def _packed(self) -> tuple[Any, list[Array]]:
        return pack(dict(self.inputs))

    @cached_property
    def _specs(self) -> list[str]:
        return _input_specs(self.inputs, self.reference.input_specs(self.mesh))

    def for_author(self) -> Frame:
        """Return the request to the author: a program is made from shapes alone."""
        data, arrays = self._packed
        header = {
            "do": self.kind,
            "function": self.case.part.function,
            "order": list(self.case.part.arguments),
            "mesh": self._mesh,
            "arguments": data,
            "specs": [] if self.kind == "call" else self._specs,
        }
        sent = () if self.kind == "export" else tuple(map(array_bytes, arrays))
        return Frame(header, sent)

    def for_runner(self, program: bytes) -> Frame:
        """Return the request to the runner, which alone gets the values."""
        _, arrays = self._packed
        told = [
            [list(array.shape), array.dtype.name, spec]
            for array, spec in zip(arrays, self._specs, strict=True)
        ]
        header = {"do": "run", "mesh": self._mesh, "arrays": told}
        return Frame(header, (program, *map(array_bytes, arrays)))

    @property
    def _mesh(self) -> dict[str, Any] | None:
        return self.case.mesh.to_json() if self.case.mesh else None

    @cached_property
    def right(self) -> Right:
        """Return what is right. Raises the ValueError that the answer must raise."""
        reference, mesh, properties = self.reference, self.mesh, self.reference.properties
        return Right(
            expected=reference.expected(mesh, **self.inputs),
            specs=reference.output_specs(mesh),
            budget={**self.case.part.budget, **reference.budget(mesh, **self.inputs)},
            arguments=self.arguments,
            pieces=self._pieces,
            properties=(lambda result: properties(mesh, dict(self.inputs), result))
            if properties
            else None,
        )

    @property
    def arguments(self) -> dict[str, Array]:
        """Return every array among the inputs by its path, such as `b` or `params['b']`."""
        return {
            f"{name}{path}": np.asarray(leaf)
            for name, value in self.inputs.items()
            for path, leaf in leaves(value)
            if isinstance(leaf, np.ndarray)
        }

    def _pieces(self, n: int) -> Sequence[Mapping[str, Array]]:
        """Return what the reference makes of each of n pieces of the batch, each alone."""
        sizes = Counter(
            value.shape[0]
            for value in self.inputs.values()
            if isinstance(value, np.ndarray) and value.ndim
        )
        size = max(sizes, key=lambda each: (sizes[each], each), default=0)
        if not size or size % n:
            return ()
        one = Mesh(dict.fromkeys(self.mesh.axis_names, 1))
        try:
            return [
                dict(leaves(self.reference.expected(one, **_cut(self.inputs, size, n, i))))
                for i in range(n)
            ]
        except Exception:  # a reference need not know what to do with a part of its inputs
            return ()


def _cut(inputs: Mapping[str, Any], size: int, n: int, number: int) -> dict[str, Any]:
    step = size // n
    return {
        name: value[number * step : (number + 1) * step]
        if isinstance(value, np.ndarray) and value.ndim and value.shape[0] == size
        else value
        for name, value in inputs.items()
    }


def _input_specs(inputs: Mapping[str, Any], specs: Any) -> list[str]:
    """Return the spec of each array among the inputs, in the order in which they travel."""
    found: list[str] = []
    for name, value in inputs.items():
        _, arrays = pack(value)
        given = specs.get(name, Spec())
        if isinstance(given, Spec):
            found += [str(given)] * len(arrays)
        else:
            found += [str(each) for each in _spec_leaves(given)]
    return found


def _spec_leaves(specs: Any) -> list[Spec]:
    if isinstance(specs, Spec):
        return [specs]
    each = specs.values() if isinstance(specs, dict) else specs
    return [leaf for value in each for leaf in _spec_leaves(value)]
