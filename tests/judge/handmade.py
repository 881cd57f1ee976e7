"""What a run gave, made by hand: outputs in pieces on the devices of a mesh."""

import numpy as np

from shardlab.catalogue.problem import Part
from shardlab.judge.cases import Case
from shardlab.judge.grading.grade import Right, grade
from shardlab.judge.protocol.run_result import Output, Seen, Shard
from shardlab.sharding.layout import layout
from shardlab.sharding.mesh import parse_mesh


def case(mesh="data=4", *, number=0, requires=(), budget=None, is_simulated=False):
    part = Part(
        number=1,
        name="",
        call="f(x, mesh)",
        kind="program",
        axes=("data",),
        ladder=(),
        large=(),
        cases=1,
        requires=requires,
        budget=budget or {},
        rtol=1e-5,
        atol=1e-5,
    )
    return Case(
        part=part,
        number=number,
        name=mesh,
        mesh=parse_mesh(mesh),
        seed=7,
        scale=2,
        is_simulated=is_simulated,
    )


def output(values, spec, mesh, path=""):
    """Return an array cut by a spec, as devices would hold it."""
    values = np.asarray(values)
    cut = layout(values.shape, spec, mesh)
    shards = [
        Shard(
            device, tuple((s.start, s.stop) for s in cut.index(device)), values[cut.index(device)]
        )
        for device in cut.mesh.devices
    ]
    return Output(path, values.shape, values.dtype.name, tuple(shards))


def copies(values, mesh, path=""):
    """Return an output that is whole on every device, with the numbers of each in turn."""
    shards = [
        Shard(device, tuple((0, size) for size in np.shape(each)), np.asarray(each))
        for device, each in zip(parse_mesh(mesh).devices, values, strict=True)
    ]
    first = shards[0].values
    return Output(path, first.shape, first.dtype.name, tuple(shards))


def seen(*outputs, calls=(), peak_bytes=0, has_shard_map=True):
    return Seen(outputs, tuple(calls), peak_bytes, has_shard_map)


def call(op, *, count=1, payload=16, wire=24, is_inserted=False):
    return {
        "op": op,
        "count": count,
        "payload_bytes": payload,
        "wire_bytes": wire,
        "is_inserted": is_inserted,
    }


def verdicts(one_case, seen_run, expected, **right):
    return grade(one_case, seen_run, Right(expected=expected, **right)).verdicts
