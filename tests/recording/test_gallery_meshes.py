"""Every gallery program runs on other meshes: its example arguments follow the mesh."""

from __future__ import annotations

import pytest

from shardlab.recording.example_gallery import gallery_programs
from shardlab.recording.program_recording import record_source
from shardlab.sharding.mesh import parse_mesh

ONE_AXIS = [(2,), (64,)]
TWO_AXES = [(2, 1), (1, 2), (16, 4), (8, 8)]


def list_cases():
    for program in gallery_programs():
        names = parse_mesh(program.mesh).axis_names
        for sizes in ONE_AXIS if len(names) == 1 else TWO_AXES:
            mesh = ",".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
            yield pytest.param(program, mesh, id=f"{program.slug}-{mesh}")


@pytest.mark.parametrize(("program", "mesh"), [*list_cases()])
def test_a_gallery_program_is_recorded_on_a_mesh_of_other_sizes(program, mesh):
    recording = record_source(program.source, target=program.target, mesh=mesh, findings="none")
    assert dict(recording.mesh) == dict(parse_mesh(mesh).shape)
    assert recording.steps
    assert not any("own mesh" in note for note in recording.notes)
    if program.slug in ("deadlock_in_branch", "mismatched_collectives"):
        assert recording.failure.kind == "deadlock"
    else:
        assert recording.failure is None, recording.failure.message
    assert len(recording.to_json_text()) <= 2_000_000
