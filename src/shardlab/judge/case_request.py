"""One case with its inputs: the requests to the two workers, and the expected result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from shardlab.catalogue.reference import Reference
from shardlab.judge.cases import Case
from shardlab.judge.grading.evidence import Array
from shardlab.judge.grading.grade import ExpectedResult
from shardlab.judge.grading.requirements import probed_constructs
from shardlab.judge.grading.structure import array_leaves
from shardlab.judge.protocol.reports import FunctionCall, InputArray
from shardlab.judge.protocol.requests import (
    CallRequest,
    DebugPrintRequest,
    ExportRequest,
    RunRequest,
    SimulateRequest,
)
from shardlab.judge.protocol.values import array_bytes, pack_value
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

CaseKind = Literal["export", "simulate", "call"]


@dataclass(frozen=True)
class CaseRequest:
    """A case with its inputs."""

    case: Case
    reference: Reference
    inputs: Mapping[str, Any]
    has_counted_inputs: bool = False  # 1, 2, 3, ... in place of the fractions that were drawn

    @property
    def kind(self) -> CaseKind:
        """Return how it is run: export (tracer, then runner), simulate or call (tracer alone)."""
        if self.case.is_simulated:
            return "simulate"
        return "call" if self.case.part.kind == "value" else "export"

    @property
    def mesh(self) -> Mesh:
        return self.case.draw.mesh

    @cached_property
    def _packed_inputs(self) -> tuple[Any, list[Array]]:
        return pack_value(dict(self.inputs))

    @cached_property
    def _input_specs(self) -> list[str]:
        return _spec_texts(self.inputs, self.reference.input_specs(self.mesh, **self.inputs))

    def tracer_request(self) -> ExportRequest | SimulateRequest | CallRequest:
        """Return the request to the tracer. An export needs shapes only, so it gets no values."""
        data, arrays = self._packed_inputs
        call = FunctionCall(
            function=self.case.part.function,
            # By position, as the problem's page calls it: names of parameters are up to the author.
            argument_names=self.case.part.arguments,
            packed_inputs=data,
            mesh=self.case.mesh,
            # A part of plain values has no mesh to shard over.
            input_specs=() if self.kind == "call" else tuple(self._input_specs),
        )
        if self.kind == "export":
            return ExportRequest(call=call)
        buffers = tuple(map(array_bytes, arrays))
        if self.kind == "simulate":
            return SimulateRequest(call=call, arrays=buffers)
        return CallRequest(call=call, arrays=buffers)

    def debug_print_request(self) -> DebugPrintRequest:
        """Return the request for what is printed with the inputs of this case."""
        request, (_, arrays) = self.tracer_request(), self._packed_inputs
        return DebugPrintRequest(call=request.call, arrays=tuple(map(array_bytes, arrays)))

    def runner_request(self, program: bytes) -> RunRequest:
        """Return the request to the runner, with the values of the inputs."""
        _, arrays = self._packed_inputs
        inputs = tuple(
            InputArray(
                shape=array.shape, dtype=array.dtype.name, spec=spec, values=array_bytes(array)
            )
            for array, spec in zip(arrays, self._input_specs, strict=True)
        )
        is_probed = self.case.mesh is not None and self.case.mesh.n_devices > 1
        probes = probed_constructs(self.case.part.requires) if is_probed else ()
        return RunRequest(program=program, mesh=self.case.mesh, inputs=inputs, probes=probes)

    @cached_property
    def expected(self) -> ExpectedResult:
        """Return the expected result. Raises the ValueError that the submission must raise."""
        reference, mesh, properties = self.reference, self.mesh, self.reference.properties
        return ExpectedResult(
            value=reference.expected(mesh, **self.inputs),
            specs=reference.output_specs(mesh, **self.inputs),
            budget={**self.case.part.budget, **reference.budget(mesh, **self.inputs)},
            arguments=self.input_arrays,
            # A function, because few submissions need it and the reference runs once per shard.
            shard_results=self._shard_results,
            properties=(lambda result: properties(mesh, dict(self.inputs), result))
            if properties
            else None,
        )

    @property
    def input_arrays(self) -> dict[str, Array]:
        """Return every array among the inputs by its path, such as `b` or `params['b']`."""
        return {
            f"{name}{path}": np.asarray(leaf)
            for name, value in self.inputs.items()
            for path, leaf in array_leaves(value)
            # Python numbers are static arguments: no mistake can add them once per device.
            if isinstance(leaf, np.ndarray)
        }

    def _shard_results(self, n_shards: int) -> Sequence[Mapping[str, Array]]:
        """Return what the reference computes from each of n shards of the batch alone."""
        # The batch size is the most frequent first dimension of the inputs.
        sizes = Counter(
            value.shape[0]
            for value in self.inputs.values()
            if isinstance(value, np.ndarray) and value.ndim
        )
        batch_size = max(sizes, key=lambda size: (sizes[size], size), default=0)
        if not batch_size or batch_size % n_shards:
            return ()
        # The mean of means is what each device would compute if it were alone.
        one_device = Mesh(dict.fromkeys(self.mesh.axis_names, 1))
        try:
            return [
                dict(
                    array_leaves(
                        self.reference.expected(
                            one_device, **_batch_shard(self.inputs, batch_size, n_shards, number)
                        )
                    )
                )
                for number in range(n_shards)
            ]
        except Exception:  # a reference need not accept a part of its inputs
            return ()


def _batch_shard(
    inputs: Mapping[str, Any], batch_size: int, n_shards: int, number: int
) -> dict[str, Any]:
    step = batch_size // n_shards
    return {
        name: value[number * step : (number + 1) * step]
        if isinstance(value, np.ndarray) and value.ndim and value.shape[0] == batch_size
        else value
        for name, value in inputs.items()
    }


def _spec_texts(inputs: Mapping[str, Any], specs: Any) -> list[str]:
    """Return the spec of each array among the inputs, in the order of `pack_value`."""
    texts: list[str] = []
    for name, value in inputs.items():
        _, arrays = pack_value(value)
        spec = specs.get(name, Spec())
        if isinstance(spec, Spec):
            # One spec for an argument applies to every array in it, as JAX's prefix trees do.
            texts += [str(spec)] * len(arrays)
        else:
            texts += [str(leaf) for leaf in _spec_leaves(spec)]
    return texts


def _spec_leaves(specs: Any) -> list[Spec]:
    if isinstance(specs, Spec):
        return [specs]
    children = specs.values() if isinstance(specs, dict) else specs
    return [leaf for child in children for leaf in _spec_leaves(child)]
