"""Hand-written traces for tests of times and renderers: a training step with FSDP and TP."""

from __future__ import annotations

from math import prod

from shardlab.collectives.call import CollectiveCall, ControlScope
from shardlab.collectives.wire import wire_bytes
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.sharding.dtype import parse_dtype
from shardlab.tracing.observation import Memory
from shardlab.tracing.trace import Trace

MESH = (("data", 16), ("model", 32))
LAYERS = ControlScope(kind="scan", source=SourceLocation("model.py", 30, "layers"), id=1, length=24)


def call(op, axes, shape, mesh=MESH, *, dtype="bfloat16", count=1, phase="forward", **fields):
    """Return a call over mesh axes, with its bytes by the formula."""
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    group = prod(size for name, size in mesh if name in axes)
    payload = parse_dtype(dtype).n_bytes(prod(shape))
    sent = wire_bytes(op, payload, group)
    fields.setdefault("group_size", group)
    return CollectiveCall(
        op=op,
        mesh_axes=axes,
        shape=shape,
        dtype=dtype,
        payload_bytes=payload,
        wire_bytes=sent,
        count=count,
        phase=phase,
        **fields,
    )


def train_step():
    """Return a scan over 24 layers: weights gathered over data, activations summed over model."""

    def layer(op, axes, shape, line, phase, function="layer"):
        where = SourceLocation("model.py", line, function)
        return call(op, axes, shape, count=24, phase=phase, source=where, within=(LAYERS,))

    calls = []
    for phase in ("forward", "recompute"):
        calls += [
            layer("all_gather", "data", (256, 1024), 41, phase),
            layer("psum", "model", (8, 2048, 4096), 44, phase),
            layer("all_gather", "data", (256, 512), 47, phase),
            layer("psum", "model", (8, 2048, 4096), 52, phase),
        ]
    calls += [
        layer("psum", "model", (8, 2048, 4096), 44, "backward"),
        layer("psum_scatter", "data", (4096, 1024), 41, "backward"),
        layer("psum_scatter", "data", (4096, 512), 47, "backward"),
        call(
            "psum",
            ("data", "model"),
            (),
            dtype="float32",
            phase="backward",
            source=SourceLocation("train.py", 88, "step"),
        ),
    ]
    return Trace(
        program="train_step",
        mesh=MESH,
        collectives=tuple(calls),
        flops=12_000_000_000_000,
        memory=Memory(
            argument_bytes=3_000_000_000,
            output_bytes=3_000_000_000,
            temp_bytes=9_000_000_000,
            alias_bytes=3_000_000_000,
            compiler="cpu",
        ),
        notes=("Bytes are those of a ring.",),
    )


def with_branches():
    """Return a cond whose branches send different amounts, and a while loop."""

    def scope(branch):
        return ControlScope(
            kind="cond", source=SourceLocation("a.py", 10, "f"), id=7, branch=branch, n_branches=2
        )

    while_scope = ControlScope(kind="while", source=SourceLocation("a.py", 20, "f"), id=8)
    mesh = (("x", 4),)
    return Trace(
        program="f",
        mesh=mesh,
        collectives=(
            call(
                "psum",
                "x",
                (1024,),
                mesh,
                source=SourceLocation("a.py", 11, "f"),
                within=(scope(0),),
            ),
            call(
                "psum",
                "x",
                (4096,),
                mesh,
                source=SourceLocation("a.py", 13, "f"),
                within=(scope(1),),
            ),
            call(
                "ppermute",
                "x",
                (512,),
                mesh,
                count=None,
                source=SourceLocation("a.py", 21, "f"),
                within=(while_scope,),
                details={"pairs": [[0, 1], [1, 2], [2, 3], [3, 0]]},
            ),
        ),
        findings=(
            Finding(
                code="hazard.deadlock",
                severity="error",
                what="Devices diverge before a psum over 'x'.",
                where=SourceLocation("a.py", 11, "f"),
                fix="call it on every device.",
            ),
        ),
    )


def many_lines(n_lines):
    """Return a program of many different calls."""
    calls = [
        call("psum", "data", (n + 1, 64), source=SourceLocation("m.py", n + 1))
        for n in range(n_lines)
    ]
    return Trace(program="many", mesh=MESH, collectives=tuple(calls))
