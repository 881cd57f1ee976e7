"""A check on scaled-down meshes: what carries over to a large mesh, and that nothing else does."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest
import scaled_programs as programs
from jax import lax
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.findings.report import Report

POD = "x=65536"


def check_scaled(program, *args, mesh=POD):
    return shardlab.check(program, *args, mesh=mesh, grads=False, scaled=True)


def failed_obligations(report):
    (proof,) = report.scaled
    return {item.name for item in proof.obligations if not item.holds}


# Permutations of 65,536 devices are lists of as many pairs, so most programs get 256.
@pytest.mark.parametrize("program", programs.BROKEN, ids=lambda program: program.__name__)
def test_a_program_that_breaks_an_obligation_does_not_carry_over(program):
    report = check_scaled(program, "f32[32768]", mesh="x=256")
    assert failed_obligations(report) == {programs.BROKEN[program]}
    assert not report.scaled[0].carries_over
    assert not report.is_compared
    assert not (report.ok and repr(report)[-15:-1] == "nothing found")
    assert "not proven on x=256" in repr(report)


@pytest.mark.parametrize(
    "program",
    [programs.mean, programs.value_of_the_last_device, programs.rolls_by_one, programs.causal_sums],
    ids=lambda program: program.__name__,
)
def test_a_right_program_carries_over(program):
    report = check_scaled(program, "f32[512]", mesh="x=256")
    assert failed_obligations(report) == set()
    assert report.ok
    assert report.is_compared
    assert report.scaled[0].scaled_meshes == ("x=2", "x=3", "x=4")
    assert repr(report) == f"<Report of {report.program} on x=256: nothing found>"


def test_rows_of_an_embedding_carry_over_to_65_536_devices():
    report = check_scaled(programs.embedding, "f32[131072,3]", "i32[7]")
    assert failed_obligations(report) == set()


def test_the_line_of_a_failed_obligation_is_the_users():
    report = check_scaled(programs.doubles_device_5, "f32[65536]")
    (failed,) = [item for item in report.scaled[0].obligations if not item.holds]
    assert failed.where.file == programs.__file__
    assert failed.where.function == "doubles_device_5"
    assert "compared with 5" in failed.what


def test_a_finding_on_a_small_mesh_is_reported_and_does_not_carry_over():
    report = check_scaled(programs.divides_by_8, "f32[65536]")
    assert report.codes == ("hazard.mesh_dependent",)
    assert not report.ok


def test_a_device_must_find_its_part_of_a_replicated_array_on_the_full_mesh_too():
    # The replicated array keeps its size: a device takes two elements of it, at twice its position.
    program = programs.own_part_of_a_replicated_array
    large_enough = check_scaled(program, "f32[512]", "f32[512]", mesh="x=256")
    assert failed_obligations(large_enough) == set()
    too_small = check_scaled(program, "f32[500]", "f32[512]", mesh="x=256")
    assert failed_obligations(too_small) == {"device index"}


def test_indivisible_dimensions_of_the_full_mesh_are_jaxs_own_rejection():
    report = check_scaled(programs.mean, "f32[65537]")
    assert not report.ok
    assert not report.scaled  # the trace on the full mesh rejects it, so nothing is run
    assert "divisible" in str(report)


def test_a_mesh_is_scaled_down_only_if_it_is_too_large_to_run():
    small = shardlab.check(programs.mean, "f32[65536]", mesh=POD, grads=False)
    assert small.scaled == ()
    assert small.meshes == (POD,)

    @jax.shard_map(in_specs=(P(), P("x")), out_specs=P())
    def scaled_sum(weights, x):
        # Each device has its own copy of the weights: 65,536 x 1 MB.
        return lax.psum(weights * x.sum(), "x")

    large = shardlab.check(scaled_sum, "f32[262144]", "f32[65536]", mesh=POD, grads=False)
    (proof,) = large.scaled
    assert "68.7 GB" in proof.reason
    assert proof.carries_over


def test_without_scaling_arguments_that_are_too_large_are_not_run():
    report = shardlab.check(programs.mean, "f32[1073741824]", mesh=POD, scaled=False)
    assert not report.is_compared
    assert "its arguments take 4.3 GB" in report.notes[0]
    assert report.scaled == ()


def test_arguments_that_are_too_large_are_scaled_down_with_the_mesh():
    report = shardlab.check(programs.mean, "f32[1073741824]", mesh=POD, grads=False)
    (proof,) = report.scaled
    assert proof.reason == "the arguments take 4.3 GB"
    assert proof.carries_over


def test_a_program_that_needs_powers_of_two_gets_powers_of_two():
    @jax.shard_map(in_specs=P("x"), out_specs=P("x"))
    def exchange_twice(x):
        n = lax.axis_size("x")
        if n == 1:
            return x
        if n & (n - 1):
            raise ValueError("a power of two is needed")
        pairs = [(i, i ^ 1) for i in range(n)]
        return lax.ppermute(lax.ppermute(x, "x", pairs), "x", pairs)

    report = check_scaled(exchange_twice, "f32[512]", mesh="x=256")
    assert failed_obligations(report) == set()
    (values,) = [item for item in report.scaled[0].obligations if item.name == "values"]
    assert "powers of two" in values.what
    # The program itself rejects 192 devices, so nothing is claimed for them.
    with pytest.raises(ValueError, match="power of two"):
        check_scaled(exchange_twice, "f32[384]", mesh="x=192")


def test_several_axes_are_scaled_in_rotation():
    @jax.shard_map(in_specs=(P("data", "model"),), out_specs=P("data"))
    def row_means(x):
        return lax.pmean(x.mean(1), "model")

    report = check_scaled(row_means, "f32[256,512]", mesh="data=256,model=256")
    (proof,) = report.scaled
    assert proof.scaled_meshes == ("data=2,model=3", "data=3,model=4", "data=4,model=2")
    assert proof.carries_over


def test_concrete_arguments_keep_their_first_elements():
    shapes = []

    @jax.shard_map(in_specs=P("x"), out_specs=P())
    def total(x):
        return lax.psum(x.sum(), "x")

    def program(x):
        shapes.append(x.shape)
        return total(x)

    report = check_scaled(program, jnp.arange(512.0), mesh="x=256")
    assert failed_obligations(report) == set()
    assert {(512,), (4,), (6,), (8,)} <= set(shapes)


def test_a_report_with_a_proof_survives_json():
    report = check_scaled(programs.doubles_device_5, "f32[512]", mesh="x=256")
    again = Report.from_json(json.loads(json.dumps(report.to_json())))
    assert again.scaled == report.scaled
    assert "FAILS  device index" in str(again)
    assert "FAILS  device index" in again._repr_html_()
