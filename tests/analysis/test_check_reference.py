"""`check(..., reference=g)`: results are compared with what the user says is right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.errors import InvalidType

ARGS = ("f32[4,6,6]", "f32[3,6]")


def pipeline(kernels, x, *, back=False):
    """One stage per device: the number of devices is the number of stages."""

    @jax.shard_map(in_specs=(P("stage"), P()), out_specs=P())
    def body(kernels, x):
        n, stage = lax.axis_size("stage"), lax.axis_index("stage")
        state = lax.pcast(x, "stage", to="varying")
        for _ in range(n):
            state = jnp.tanh(state @ kernels[0])
            pairs = [(i, (i + 1) % n) for i in range(n)]
            state = lax.ppermute(state, "stage", [p[::-1] for p in pairs] if back else pairs)
        return lax.psum(jnp.where(stage == 0, state, 0.0), "stage")

    return body(kernels, x)


def stack(kernels, x):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, kernels)[0]


def test_one_stage_per_device_is_no_finding_and_is_not_compared():
    report = shardlab.check(pipeline, *ARGS, mesh="stage=4")
    assert report.findings == (), str(report)
    assert not report.is_compared
    assert "4 elements of dimension 0 of 'kernels' and uses the first" in report.notes[0]
    assert "reference=" in report.notes[0]
    assert str(report).endswith("pipeline: nothing found; values were not compared")


def test_one_stage_per_device_is_compared_with_a_reference():
    report = shardlab.check(pipeline, *ARGS, mesh="stage=4", reference=stack)
    assert report.findings == (), str(report)
    assert report.is_compared
    assert report.meshes == ("stage=4",)
    wrong = shardlab.check(lambda *args: pipeline(*args, back=True), *ARGS, mesh="stage=4",
                           reference=stack)  # fmt: skip
    (finding,) = wrong.findings
    assert finding.what == (
        "The output differs from the result of the reference: a ppermute over 'stage' sends in the "
        "direction opposite to the one in which the program counts devices."
    )
    assert any(line.startswith("reference: ") for line in finding.shows)
    assert finding.fix.startswith("exchange source and destination in the pairs of the ppermute")


def test_a_first_row_that_is_used_beside_the_others_is_compared():
    def centred(x):
        return jax.shard_map(lambda x: x - x[:1], in_specs=P("data"), out_specs=P("data"))(x)

    report = shardlab.check(centred, "f32[8,3]", mesh="data=4")
    assert report.is_compared
    assert report.codes == ("hazard.mesh_dependent",)


def mean_loss(params, x):
    body = jax.shard_map(
        lambda w, x: {"loss": lax.psum(((x @ w) ** 2).mean(), "data")},
        in_specs=(P(), P("data")),
        out_specs=P(),
    )
    return body(params["w"], x)


def test_a_reference_works_with_several_meshes_and_names_leaves_and_causes():
    report = shardlab.check(
        mean_loss,
        {"w": "f32[3]"},
        "f32[24,3]",
        meshes=["data=2", "data=4"],
        reference=lambda params, x: {"loss": ((x @ params["w"]) ** 2).mean()},
    )
    (finding,) = report.findings
    assert finding.cause == "factor_of_n"
    assert finding.what.startswith("Output ['loss'] is n times the value of the reference")
    assert report.meshes == ("data=2", "data=4")


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (5, "which is not a function"),
        (lambda params, x: x.sum(), "only the program has ['loss']; only the reference has a sing"),
        (lambda params, x: {"loss": x[0]}, "output ['loss'] is (), and (3,) in the reference"),
        (lambda params: 0, "The reference does not run: TypeError"),
        (mean_loss, "The reference has a shard_map"),
    ],
)
def test_a_reference_that_cannot_be_one_is_rejected(reference, text):
    with pytest.raises(InvalidType) as caught:
        shardlab.check(mean_loss, {"w": "f32[3]"}, "f32[24,3]", mesh="data=2", reference=reference)
    assert text in caught.value.what
