"""Records of the sharded programs that run in this process, on real devices or on virtual ones."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardlab import _jax
from shardlab.cluster.records import OutputRecord, ProgramRecord, ShardRecord
from shardlab.collectives.call import CollectiveCall
from shardlab.simulator.script_programs import (
    argument_types,
    is_sharded_program,
    sharded_program_name,
)
from shardlab.tracing.compiler.inserted_collectives import read_collectives
from shardlab.tracing.compiler.needs_compiler import requested_shardings
from shardlab.tracing.hlo.hlo_module import parse_module


@dataclasses.dataclass(kw_only=True, eq=False)
class ObservedProgram:
    """One program and what was recorded of its calls: the outputs of the first and of the last."""

    key: str
    closed: Any  # its jaxpr
    arg_types: list[Any]
    params: dict[str, Any]
    mesh: Any
    n_devices: int
    device_ids: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()  # that have these devices
    hlo_text: Callable[[], str] | None = None
    compile_seconds: float | None = None
    call_seconds: list[float] = dataclasses.field(default_factory=list)
    n_calls: int = 0
    first_outputs: tuple[OutputRecord, ...] = ()
    last_outputs: tuple[OutputRecord, ...] = ()
    first_arguments: tuple[Any, ...] = ()

    def collectives(self) -> tuple[CollectiveCall, ...] | None:
        """Return the collectives of the compiled program; None if its text is not available."""
        if self.hlo_text is None:
            return None
        module = parse_module(self.hlo_text().splitlines(keepends=True))
        return tuple(read_collectives(module, self.device_ids, self.mesh))

    def record(self, *, has_collectives: bool = True) -> ProgramRecord:
        sizes = () if self.mesh is None else tuple(self.mesh.shape.items())
        return ProgramRecord(
            key=self.key,
            mesh=sizes,
            n_devices=self.n_devices,
            collectives=self.collectives() if has_collectives else None,
            n_calls=self.n_calls,
            compile_seconds=self.compile_seconds,
            call_seconds=tuple(self.call_seconds),
            outputs=(*self.first_outputs, *self.last_outputs),
            processes=self.processes,
        )


class ProgramLog:
    """The sharded programs of a run, in the order in which they were compiled."""

    def __init__(self, max_shard_elements: int) -> None:
        self._max_elements = max_shard_elements
        self._programs: dict[int, ObservedProgram] = {}
        self._n_by_name: dict[str, int] = {}

    @property
    def programs(self) -> list[ObservedProgram]:
        return list(self._programs.values())

    def add(self, args: Any, params: dict[str, Any]) -> ObservedProgram | None:
        """Return the program of a jit; None if it is not sharded or one of JAX's own."""
        closed = params["jaxpr"]
        if (program := self.find(closed)) is not None:
            return program
        types = argument_types(closed, args)
        if not is_sharded_program(closed, types, params):
            return None
        name = sharded_program_name(closed, params["name"])
        number = self._n_by_name[name] = self._n_by_name.get(name, 0) + 1
        meshes = [mesh for mesh in _program_meshes(closed, types, params) if not mesh.empty]
        mesh = max(meshes, key=lambda mesh: (mesh.size, len(mesh.axis_names)), default=None)
        program = self._programs[id(closed)] = ObservedProgram(
            key=name if number == 1 else f"{name} #{number}",
            closed=closed,
            arg_types=types,
            params=params,
            mesh=mesh,
            n_devices=1 if mesh is None else mesh.size,
        )
        return program

    def find(self, closed: Any) -> ObservedProgram | None:
        # Each program holds its jaxpr, so no other one can get its id.
        return self._programs.get(id(closed))

    def add_call(self, program: ObservedProgram, outs: Sequence[Any], seconds: float) -> None:
        """Record a call with its outputs, before the program can donate them."""
        program.call_seconds.append(seconds)
        outputs = tuple(self._output_records(program, outs))
        if program.n_calls:
            program.last_outputs = outputs
        else:
            program.first_outputs = outputs
        program.n_calls += 1

    def _output_records(
        self, program: ObservedProgram, outs: Sequence[Any]
    ) -> Iterator[OutputRecord]:
        positions = {device.id: i for i, device in enumerate(jax.devices())}
        names = _result_names(program, len(outs))
        for name, out in zip(names, outs, strict=True):
            is_key = has_keys(out)
            yield OutputRecord(
                name=name,
                call=program.n_calls,
                shape=tuple(out.shape),
                dtype=str(out.dtype),
                sharding=sharding_text(out.sharding),
                shards=tuple(
                    self._shard_record(out, shard, positions, is_key)
                    for shard in out.addressable_shards
                ),
            )

    def _shard_record(
        self, out: Any, shard: Any, positions: dict[int, int], is_key: bool
    ) -> ShardRecord:
        values = np.asarray(jax.random.key_data(shard.data) if is_key else shard.data).ravel()
        is_sampled = values.size > self._max_elements
        if is_sampled:
            values = values[np.linspace(0, values.size - 1, self._max_elements, dtype=np.int64)]
        bounds = zip(shard.index, out.shape, strict=True)
        return ShardRecord(
            device=positions[shard.device.id],
            index=tuple(slice_.indices(size)[:2] for slice_, size in bounds),
            values=base64.b64encode(np.ascontiguousarray(values).tobytes()).decode(),
            n_elements=values.size,
            is_sampled=is_sampled,
        )


def has_keys(array: Any) -> bool:
    """Return whether an array has random keys, whose bits are recorded in their place."""
    return bool(jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key))


def sharding_text(sharding: Any) -> str:
    """Return the spec of a NamedSharding without its trailing Nones; the type of any other.

    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = jax.sharding.AbstractMesh((4,), ("data",))
    >>> sharding_text(NamedSharding(mesh, P("data", None)))
    "P('data')"
    """
    if not isinstance(sharding, NamedSharding):
        return type(sharding).__name__
    entries = list(sharding.spec)
    while entries and entries[-1] is None:
        entries.pop()
    return f"P({', '.join(map(repr, entries))})"


def _result_names(program: ObservedProgram, count: int) -> list[str]:
    """Return a name for each output, such as `step['loss']`, by the paths that JAX records."""
    inner, _ = _jax.open_jaxpr(program.closed)
    paths = getattr(inner.debug_info, "result_paths", None) or ()
    if len(paths) == count and all(isinstance(path, str) for path in paths):
        return [f"{program.key}{path.removeprefix('result')}" for path in paths]
    return [program.key if count == 1 else f"{program.key}[{i}]" for i in range(count)]


def _program_meshes(closed: Any, arg_types: Sequence[Any], params: dict[str, Any]) -> Iterator[Any]:
    """Yield the meshes of the arguments, of the jit, and of what is inside, at any depth."""
    shardings = [
        *(arg.sharding for arg in arg_types),
        *params["in_shardings"],
        *params["out_shardings"],
    ]
    yield from (s.mesh for s in shardings if isinstance(s, NamedSharding))
    yield from _inner_meshes(closed)


def _inner_meshes(jaxpr: Any) -> Iterator[Any]:
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        if eqn.primitive.name == "shard_map":
            yield eqn.params["mesh"]
        else:
            yield from (sharding.mesh for sharding in requested_shardings(eqn.params))
        for body in _jax.inner_jaxprs(eqn.params):
            yield from _inner_meshes(body)
