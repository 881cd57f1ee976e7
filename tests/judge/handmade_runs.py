"""Runs made by hand: outputs sharded over the devices of a mesh."""

import numpy as np

from shardlab.catalogue.problem import Part
from shardlab.collectives.program_flow import ProgramFlow
from shardlab.judge.cases import Case
from shardlab.judge.grading.grade import ExpectedResult, grade_run
from shardlab.judge.protocol.run_result import CollectiveRecord, RunOutput, RunResult, Shard
from shardlab.sharding.layout import layout
from shardlab.sharding.mesh import parse_mesh


def make_case(mesh="data=4", *, number=0, requires=(), budget=None, is_simulated=False):
    part = Part(
        number=1,
        name="",
        call="f(x, mesh)",
        kind="program",
        axes=("data",),
        meshes=(),
        simulated_meshes=(),
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


def sharded_output(values, spec, mesh, path=""):
    """Return an array sharded by a spec."""
    values = np.asarray(values)
    array_layout = layout(values.shape, spec, mesh)
    shards = [
        Shard(device, tuple((s.start, s.stop) for s in index), values[index])
        for device in array_layout.mesh.devices
        for index in [array_layout.index(device)]
    ]
    return RunOutput(path, values.shape, values.dtype.name, tuple(shards))


def replicated_output(values, mesh, path=""):
    """Return an output that is replicated, with a value for each device in turn."""
    shards = [
        Shard(device, tuple((0, size) for size in np.shape(value)), np.asarray(value))
        for device, value in zip(parse_mesh(mesh).devices, values, strict=True)
    ]
    first = shards[0].values
    return RunOutput(path, first.shape, first.dtype.name, tuple(shards))


def make_run(*outputs, collectives=(), peak_bytes=0, flow=None, ineffective=()):
    return RunResult(
        outputs=outputs,
        collectives=tuple(collectives),
        peak_bytes=peak_bytes,
        flow=flow or ProgramFlow(constructs=(*(call.op for call in collectives), "shard_map")),
        ineffective=ineffective,
    )


def make_call(op, *, count=1, is_inserted=False):
    """Return a collective of 16 bytes between four devices: a psum sends 24."""
    return CollectiveRecord(
        op=op, shape=(4,), dtype="float32", count=count, group_size=4, is_inserted=is_inserted
    )


def grade_verdicts(case, run, value, **expected):
    return grade_run(case, run, ExpectedResult(value=value, **expected)).verdicts
