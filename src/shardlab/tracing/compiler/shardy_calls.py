"""The quick path of a trace: the collectives that Shardy's passes insert, in this process.

Milliseconds instead of seconds, for any number of devices. XLA's own partitioner may insert others:
`tests/oracle/test_quick_trace.py` compares them, and `docs/conformance.md` lists the differences.
"""

from __future__ import annotations

from typing import NamedTuple

from shardlab._jax.partitioned_program import InsertedCall
from shardlab._jax.shardy_collectives import partition_lowered
from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.wire import wire_bytes
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.tracing.compiler.inserted_collectives import phase_of_op_name
from shardlab.tracing.hlo.hlo_module import jax_dtype_name
from shardlab.tracing.stage import StagedProgram

QUICK_NOTE = (
    "Quick trace: the inserted collectives are those of Shardy's passes. XLA's partitioner may "
    "insert others; a trace without the option quick compiles the program."
)
REJECTED_NOTE = "Shardy's passes reject this program, so XLA compiled it."
_LOOP_NOTE = "One iteration of each while loop is counted, as its length is unknown."

# JAX's names for the collectives that the partitioner inserts.
OPS_BY_KIND = {
    "all_reduce": "psum",
    "all_gather": "all_gather",
    "reduce_scatter": "psum_scatter",
    "all_to_all": "all_to_all",
    "collective_permute": "ppermute",
}
# Shardy does not say what an all-reduce computes; the operation that it completes does.
_OTHER_REDUCTIONS = {"reduce_max": "pmax", "reduce_min": "pmin"}


class ShardyObservation(NamedTuple):
    """The calls that Shardy's passes insert, and notes."""

    calls: tuple[CollectiveCall, ...]
    notes: tuple[str, ...]


def observe_with_shardy(staged: StagedProgram) -> ShardyObservation:
    """Return what Shardy's passes insert into a program, without its shard_maps' own collectives.

    Raises `PartitioningFailed` if the passes reject the program.
    """
    program = partition_lowered(staged.lower())
    calls = tuple(_collective_call(call) for call in program.collectives)
    notes = (QUICK_NOTE, *((_LOOP_NOTE,) if program.has_unknown_trip_count else ()))
    return ShardyObservation(calls, notes)


def _collective_call(call: InsertedCall) -> CollectiveCall:
    op = OPS_BY_KIND[call.kind]
    if op == "psum":
        op = _OTHER_REDUCTIONS.get(call.name_stack.rpartition("/")[2], op)
    path, _, line = call.source.rpartition(":")
    return CollectiveCall(
        op=op,
        mesh_axes=call.axes,
        shape=call.operand_shape,
        dtype=_dtype_name(call.dtype),
        payload_bytes=call.operand_bytes,
        wire_bytes=wire_bytes(op, call.operand_bytes, call.group_size),
        count=call.count,
        phase=phase_of_op_name(call.name_stack),
        source=SourceLocation(path, int(line)) if path else UNKNOWN_LOCATION,
        group_size=call.group_size,
        out_shape=call.result_shape,
        varies=call.axes,
        origin="compiler",
    )


def _dtype_name(text: str) -> str:
    """Return JAX's name of a dtype of a lowered module.

    >>> [_dtype_name(text) for text in ("bf16", "s32", "complex<f32>", "bool")]
    ['bfloat16', 'int32', 'complex64', 'bool']
    """
    complex_names = {"complex<f32>": "complex64", "complex<f64>": "complex128"}
    return complex_names.get(text) or jax_dtype_name(text)
