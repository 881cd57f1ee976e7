"""Runs exported programs on hidden inputs, and says what every device holds and has sent.

Never loads an answer: the bytes it is given are hostile all the same, and it is confined too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardlab.cell.meshes import host_mesh
from shardlab.cell.outputs import Piece, output, ranges_of
from shardlab.frames.frame import Frame
from shardlab.frames.values import ArrayLeaf, array_from
from shardlab.hlo.exchanges import exchanges
from shardlab.hlo.module import parse_module
from shardlab.layouts.spec import parse_spec


class Runner:
    """Answers requests to run a program."""

    def answer(self, request: Frame) -> Frame:
        """Return what a program gives, or why it does not."""
        try:
            return self._run(request)
        except Exception as error:
            return Frame({"error": {"kind": type(error).__name__, "words": str(error)[:4000]}})

    def _run(self, request: Frame) -> Frame:
        asked = request.header
        program, *numbers = request.buffers
        exported = jax.export.deserialize(bytearray(program))
        mesh = host_mesh(asked["mesh"] or {"axes": {"data": 1}})
        arrays = [
            jax.device_put(
                array_from(ArrayLeaf(0, tuple(shape), dtype), buffer),
                NamedSharding(mesh, PartitionSpec(*parse_spec(spec).entries)),
            )
            for (shape, dtype, spec), buffer in zip(asked["arrays"], numbers, strict=True)
        ]
        whole = NamedSharding(mesh, PartitionSpec())
        # A program that names no mesh does the same on every device.
        is_alone = exported.nr_devices == 1
        call = jax.jit(
            exported.call,
            in_shardings=[whole] * len(arrays) if is_alone else exported.in_shardings_jax(mesh),
            out_shardings=whole if is_alone else None,
        )
        if not arrays and not is_alone:
            # Nothing that is given says which devices: one byte on all of them does.
            arrays = [jax.device_put(np.zeros((), np.bool_), whole)]
            call = jax.jit(lambda token: exported.call(), keep_unused=True)
        compiled = call.lower(*arrays).compile()
        outputs = jax.block_until_ready(compiled(*arrays))
        return _seen(exported, compiled, outputs)


def _seen(exported: Any, compiled: Any, outputs: Any) -> Frame:
    """Return every shard of every output, the exchanges, and the bytes that a device holds."""
    told, buffers = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(outputs):
        pieces = [
            Piece(shard.device.id, ranges_of(shard.index, leaf.shape), np.asarray(shard.data))
            for shard in leaf.addressable_shards
        ]
        data, numbers = output(jax.tree_util.keystr(path), leaf.shape, leaf.dtype.name, pieces)
        told.append(data)
        buffers += numbers
    memory = compiled.memory_analysis()
    header = {
        "outputs": told,
        "calls": _calls(compiled),
        "peak_bytes": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
        "has_shard_map": "manual_computation" in exported.mlir_module(),
    }
    return Frame(header, tuple(buffers))


def _calls(compiled: Any) -> list[dict[str, Any]]:
    """Return what devices send each other; exchanges of a device with itself are none."""
    found = exchanges(parse_module(compiled.as_text().splitlines()))
    return [
        {
            "op": each.op,
            "shape": list(each.operand.shape),
            "dtype": each.operand.dtype,
            "count": each.count,
            "group_size": max(map(len, each.groups), default=2),
            "pairs": [list(pair) for pair in each.pairs],
            "is_inserted": each.is_inserted,
        }
        for each in found
        if any(len(group) > 1 for group in each.groups) or any(a != b for a, b in each.pairs)
    ]


def main(requests: int, answers: int) -> None:
    """Answer requests until there are no more."""
    from shardlab.frames.frame import read_frame, write_frame

    runner = Runner()
    while (request := read_frame(requests, max_body=1 << 28)) is not None:
        write_frame(answers, runner.answer(request))
