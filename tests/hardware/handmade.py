"""Traces made by hand for the tests of cost and render: a train step as FSDP and TP write it."""

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
LAYERS = ControlScope("scan", SourceLocation("model.py", 30, "layers"), 1, length=24)


def call(op, axes, shape, mesh=MESH, *, dtype="bfloat16", count=1, phase="forward", **fields):
    """A call over mesh axes, its bytes by the formula."""
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    group = prod(size for name, size in mesh if name in axes)
    payload = parse_dtype(dtype).n_bytes(prod(shape))
    sent = wire_bytes(op, payload, group)
    fields.setdefault("group_size", group)
    return CollectiveCall(op, axes, shape, dtype, payload, sent, count, phase, **fields)


def train_step():
    """24 layers by scan: weights gathered over data, activations summed over model."""

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
        "train_step",
        MESH,
        tuple(calls),
        flops=12_000_000_000_000,
        memory=Memory(3_000_000_000, 3_000_000_000, 9_000_000_000, 3_000_000_000, "cpu"),
        notes=("Bytes are those of a ring.",),
    )


def with_branches():
    """A cond whose two branches send differently, and a while loop."""

    def scope(branch):
        return ControlScope("cond", SourceLocation("a.py", 10, "f"), 7, branch=branch, n_branches=2)

    turn = ControlScope("while", SourceLocation("a.py", 20, "f"), 8)
    mesh = (("x", 4),)
    return Trace(
        "f",
        mesh,
        (
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
                within=(turn,),
                details={"pairs": [[0, 1], [1, 2], [2, 3], [3, 0]]},
            ),
        ),
        findings=(
            Finding(
                "hazard.deadlock",
                "error",
                "Devices part ways before a psum over 'x'.",
                SourceLocation("a.py", 11, "f"),
                "call it on every device.",
            ),
        ),
    )


def many_lines(n_lines):
    """A program of many different calls."""
    calls = [
        call("psum", "data", (n + 1, 64), source=SourceLocation("m.py", n + 1))
        for n in range(n_lines)
    ]
    return Trace("many", MESH, tuple(calls))
