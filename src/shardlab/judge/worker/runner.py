"""Runs exported programs on hidden inputs, and says what every device holds and has sent.

Never loads an answer: the bytes it is given are hostile all the same, and it is confined too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab.judge.protocol.values import ArrayLeaf, array_from
from shardlab.judge.worker.collectives import calls_of
from shardlab.judge.worker.exported_programs import InvalidProgram, read_program
from shardlab.judge.worker.fast_compile import lower_quickly, quickly
from shardlab.judge.worker.host_mesh import host_mesh
from shardlab.judge.worker.outputs import Piece, output, ranges_of
from shardlab.sandbox.frame import Frame
from shardlab.sharding.spec import parse_spec

_MOST_SENT = 7 << 20


@dataclass(frozen=True)
class Ready:
    """A compiled program, and what was read of it; the same however often it runs."""

    run: Callable[..., Any]
    told: dict[str, Any]


class Runner:
    """Answers requests to run a program."""

    def __init__(self) -> None:
        self._ready: dict[Any, Ready] = {}

    def answer(self, request: Frame) -> Frame:
        """Return what a program gives, or why it does not."""
        try:
            return self._run(request)
        except Exception as error:
            family = "bad_program" if isinstance(error, InvalidProgram) else "run"
            words = str(error)[:4000]
            return Frame(
                {"error": {"kind": type(error).__name__, "words": words, "family": family}}
            )

    def _run(self, request: Frame) -> Frame:
        asked = request.header
        program, *numbers = request.buffers
        mesh = host_mesh(asked["mesh"] or {"axes": {"data": 1}})
        arrays = [
            jax.device_put(
                array_from(ArrayLeaf(0, tuple(shape), dtype), buffer), _sharding(mesh, spec)
            )
            for (shape, dtype, spec), buffer in zip(asked["arrays"], numbers, strict=True)
        ]
        key = (program, str(asked["mesh"]), str(asked["arrays"]))
        if key not in self._ready:
            self._ready[key] = _ready(program, asked["arrays"], arrays, mesh)
        ready = self._ready[key]
        outputs = jax.block_until_ready(ready.run(*arrays))
        told, buffers = _held(outputs)
        if sum(map(len, buffers)) > _MOST_SENT:
            raise InvalidProgram(f"what the devices hold is more than {_MOST_SENT:,} bytes")
        return Frame({"outputs": told, **ready.told}, tuple(buffers))


def _sharding(mesh: Mesh, spec: str) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*parse_spec(spec).entries))


def _ready(program: bytes, asked: Sequence[Any], arrays: Sequence[Any], mesh: Mesh) -> Ready:
    """Return a program compiled for a mesh; raise `InvalidProgram` where it is not one for it."""
    shapes = [(shape, dtype) for shape, dtype, _ in asked]
    exported, found = read_program(program, shapes, mesh.size)
    whole = NamedSharding(mesh, PartitionSpec())
    # A program that names no mesh does the same on every device.
    is_alone = exported.nr_devices == 1
    # One that takes no array and has its mesh from the context is exported for one device too.
    is_whole = is_alone and "sdy.sharding_constraint" not in found.operations
    places = [whole] * len(arrays) if is_alone else list(exported.in_shardings_jax(mesh))
    # Where no array is used nothing says which devices are meant: one bit on all of them does.
    token = jax.device_put(np.zeros((), np.bool_), whole)
    call = jax.jit(
        lambda token, *arrays: exported.call(*arrays),
        in_shardings=[whole, *places],
        out_shardings=whole if is_whole else None,
        keep_unused=not exported.module_kept_var_idx,
    )
    compiled = quickly(call.lower(token, *arrays))
    memory = compiled.memory_analysis()
    told = {
        "calls": calls_of(found.collectives, compiled.as_text()) if mesh.size > 1 else [],
        "peak_bytes": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
        "has_shard_map": found.has_shard_map,
    }
    return Ready(lambda *arrays: compiled(token, *arrays), told)


def _held(outputs: Any) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return what every device holds of every output."""
    told, buffers = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(outputs):
        pieces = [
            Piece(shard.device.id, ranges_of(shard.index, leaf.shape), np.asarray(shard.data))
            for shard in leaf.addressable_shards
        ]
        data, numbers = output(jax.tree_util.keystr(path), leaf.shape, leaf.dtype.name, pieces)
        told.append(data)
        buffers += numbers
    return told, buffers


def main(requests: int, answers: int) -> None:
    """Answer requests until there are no more."""
    from shardlab.sandbox.frame import read_frame, write_frame

    jax.devices()  # starts the backend while nobody waits: a runner is forked before it is asked
    lower_quickly()
    runner = Runner()
    while (request := read_frame(requests, max_body=1 << 28)) is not None:
        write_frame(answers, runner.answer(request))
