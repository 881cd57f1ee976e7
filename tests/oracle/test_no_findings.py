"""The written programs are right as far as tracing shows: no check reports a finding.

They use device indices and counts on purpose, so values are not compared between meshes here; the
corpus does that.
"""

from __future__ import annotations

import contextlib

import jax
import pytest
from runtimes import device_runtime
from written import PROGRAMS

from shardlab import check

# Findings that are true, by name and reason. The programs of dtypes that have a sum sum twice over
# the same axis, on purpose; those of bool and of narrow floats have no sum.
UNSUMMED = ("bool", "float8", "float4")
EXPECTED = {
    "psum_of_replicated_value_multiplies": ("hazard.psum_of_replicated", "its name says so"),
    "ppermute_over_model_then_data": ("hazard.ppermute_axis_order", "its name says so"),
    "ppermute_with_two_messages_to_one_device": ("jax.rejected", "JAX rejects it when it compiles"),
    "ppermute_to_a_device_that_does_not_exist": ("jax.rejected", "JAX rejects it when it compiles"),
    **{
        name: ("hazard.psum_of_replicated", "the second psum has only equal copies to add")
        for name in PROGRAMS
        if name.startswith("collectives_of_") and not name.split("_")[2].startswith(UNSUMMED)
    },
}


@pytest.mark.long  # the right programs of corpus/ are checked in `make test`
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_gives_no_finding(name):
    program = PROGRAMS[name]
    mesh = ",".join(f"{axis}={size}" for axis, size in program.mesh.items())

    def run(*args):
        return program.build(device_runtime(program))(*args)

    with jax.enable_x64(True) if program.x64 else contextlib.nullcontext():
        args = [item.make(seed) for seed, item in enumerate(program.inputs)]
        report = check(run, *args, mesh=mesh, run=False)
    code, reason = EXPECTED.get(name, ("", ""))
    codes = {finding.code for finding in report.findings if finding.severity != "info"}
    assert codes == ({code} if reason else set()), str(report)


def test_few_programs_have_an_expected_finding():
    assert set(EXPECTED) <= set(PROGRAMS)
    assert len(PROGRAMS) - len(EXPECTED) >= 150
