"""The quick path of a trace inserts the collectives that XLA's partitioner inserts.

`test_traced_calls.py` compares it with programs compiled for 8 host devices.
"""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jit_programs import PROGRAMS as JIT_PROGRAMS
from sharded_programs import PROGRAMS as WORKED_OUT
from sharded_programs import array, tally

import shardlab
from shardlab.errors import InvalidType
from shardlab.simulator.virtual_devices.devices import virtual_mesh
from shardlab.tracing.compiler.shardy_calls import QUICK_NOTE, observe_with_shardy
from shardlab.tracing.observe import observe_staged
from shardlab.tracing.stage import stage_program


def staged(program):
    mesh = virtual_mesh(program.mesh)
    function, args = program.make(mesh)
    return stage_program(function, args, mesh)


def counted(calls):
    counts = Counter()
    for call in calls:
        counts[call.op, call.mesh_axes, call.payload_bytes, call.dtype] += call.count
    return counts


@pytest.mark.parametrize("name", WORKED_OUT)
def test_the_quick_calls_are_those_worked_out_by_hand(name):
    program = WORKED_OUT[name]
    calls, notes = observe_with_shardy(staged(program))
    found = tally(
        *((c.op, ",".join(c.mesh_axes), c.payload_bytes, c.phase, c.count) for c in calls)
    )
    assert found == program.calls
    assert notes == (QUICK_NOTE,)
    for call in calls:
        assert call.source.file.endswith("sharded_programs.py")
        assert call.wire_bytes > 0


@pytest.mark.long
@pytest.mark.parametrize("name", JIT_PROGRAMS)
def test_the_quick_calls_are_those_that_xla_inserts(name):
    program = staged(JIT_PROGRAMS[name])
    quick = observe_staged(program, compiler_use="quick")
    compiled = observe_staged(program)
    assert counted(quick.calls) == counted(compiled.calls)
    assert quick.memory is None
    assert compiled.memory is not None


def test_a_quick_trace_says_so_and_knows_maxima_and_while_loops():
    mesh = virtual_mesh("data=4")

    def until_small(x):
        def halve(x):
            return x / jnp.max(x)

        return jax.lax.while_loop(lambda x: jnp.sum(x) > 1, halve, x)

    trace = shardlab.trace(jax.jit(until_small), array(mesh, (8,), P("data")), quick=True)
    assert {(call.op, call.payload_bytes) for call in trace.collectives} == {
        ("psum", 4),  # in the condition of the loop
        ("pmax", 4),
    }
    assert QUICK_NOTE in trace.notes
    assert any("while loop" in note for note in trace.notes)


def test_a_quick_trace_needs_no_devices_for_a_mesh_of_any_size():
    mesh = virtual_mesh("data=512,model=512")
    x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    w = array(mesh, (1024, 1024), P(None, "model"))
    trace = shardlab.trace(jax.jit(lambda x, w: jnp.sum(x @ w)), x, w, quick=True)
    assert [(call.op, call.mesh_axes) for call in trace.collectives] == [
        ("psum", ("data",)),
        ("psum", ("model",)),
    ]


def test_a_quick_trace_is_neither_compiled_nor_has_memory():
    with pytest.raises(InvalidType, match="does not compile"):
        shardlab.trace(jnp.sin, "f32[8]", mesh="data=2", quick=True, memory=True)
