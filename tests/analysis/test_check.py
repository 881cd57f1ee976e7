"""`shardlab.check`: traces, runs, compares, and reports each cause once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.findings.report import Report

OWN = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))


def total(x):
    return jax.shard_map(
        lambda x: lax.psum(x.mean(), "data"), mesh=OWN, in_specs=P("data"), out_specs=P()
    )(x)


def test_without_a_mesh_the_programs_own_axes_get_several_sizes():
    progress = []
    report = shardlab.check(total, "f32[24]", on_progress=progress.append)
    (finding,) = report.findings
    assert (finding.code, finding.cause) == ("hazard.mesh_dependent", "factor_of_n")
    assert finding.where.file == __file__
    assert finding.where.function == "<lambda>"
    assert report.meshes == ("data=2", "data=3", "data=4", "data=8")
    assert progress == ["tracing the program", "running on one device"] + [
        f"running on {mesh}" for mesh in report.meshes
    ]
    assert not report.ok


def test_a_right_program_gives_nothing():
    def loss(x, w):
        def body(x, w):
            return lax.pmean((jnp.tanh(x @ w) ** 2).mean(), "data")

        return jax.shard_map(body, mesh=OWN, in_specs=(P("data"), P()), out_specs=P())(x, w)

    report = shardlab.check(loss, "f32[24,3]", "f32[3,4]", meshes=["data=2", "data=3"])
    assert report.findings == ()
    assert report.ok


def test_a_program_with_a_deadlock_is_not_run():
    def diverging(x):
        def body(x):
            first = lax.axis_index("data") == 0
            return lax.cond(first, lambda x: lax.psum(x, "data"), lambda x: x, x)

        return jax.shard_map(body, in_specs=P("data"), out_specs=P("data"), check_vma=False)(x)

    report = shardlab.check(diverging, "f32[24]", mesh="data=4")
    assert report.codes == ("hazard.deadlock",)
    assert "The program was not run because of hazard.deadlock." in report.notes


def test_tracing_alone_compares_nothing():
    report = shardlab.check(total, "f32[24]", mesh="data=4", run=False)
    assert report.findings == ()
    assert "The program was traced but not run: values were not compared." in report.notes


def test_a_program_with_large_arguments_is_not_run():
    report = shardlab.check(total, "f32[4000000000]", mesh="data=4")
    assert report.findings == ()
    assert "not run: its arguments take 16.0 GB" in report.notes[-1]


def test_a_size_that_fits_many_causes_is_followed_by_more():
    def penalised(x, w):
        def body(x, w):
            return lax.psum((x**2).sum() + 0.1 * (w**2).sum(), "data")

        return jax.shard_map(body, in_specs=(P("data"), P()), out_specs=P())(x, w)

    (finding,) = shardlab.check(penalised, "f32[24]", "f32[5]", mesh="data=4", grads=False).findings
    assert finding.cause == "bias_n_times"


def test_a_psum_of_replicated_is_the_line_of_the_error_and_no_extra_warning():
    def twice(x):
        def body(x):
            part = lax.psum(x.sum(), "data")
            return lax.psum(part, "data")  # the second time

        return jax.shard_map(
            body, mesh=OWN, in_specs=P("data"), out_specs=P(), check_vma=False
        )(x)  # fmt: skip

    report = shardlab.check(twice, "f32[24]", meshes=["data=2", "data=3"], grads=False)
    assert report.codes == ("hazard.mesh_dependent",)
    with open(__file__) as file:
        marked = next(i for i, line in enumerate(file, 1) if line.endswith("# the second time\n"))
    assert report.findings[0].where.line == marked


def squares(x):
    return jax.shard_map(
        lambda x: lax.psum((x**2).sum(), "data"), in_specs=P("data"), out_specs=P()
    )(x)


def test_the_mesh_in_context_may_have_another_size():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert not shardlab.check(squares, jnp.arange(8.0), mesh="data=4").findings
        (call,) = shardlab.trace(squares, jnp.arange(8.0), mesh="data=4").collectives
        assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh
        assert float(squares(jnp.arange(8.0))) == 140.0
    assert call.wire_bytes == 6


def test_a_gradient_that_deadlocks_is_reported_though_no_line_computes_it():
    def halves(x, w, is_shared=True):
        def body(x, w):
            w = w if is_shared else lax.pcast(w, "data", to="varying")
            first = lax.axis_index("data") == 0
            # Twice the same value; the gradient of `w` is added up in one branch alone.
            return lax.cond(first, lambda x: x * w, lambda x: lax.stop_gradient(w) * x, x)

        return jax.shard_map(body, in_specs=(P("data"), P()), out_specs=P("data"))(x, w)

    (finding,) = shardlab.check(halves, "f32[8]", "f32[]", mesh="data=4").findings
    assert finding.code == "hazard.deadlock"
    assert finding.what.startswith(
        "The forward pass finishes; the backward pass does not. Some devices never reach"
    )
    assert "this psum over 'data': reached by data=0; not by data=1" in finding.what
    assert "jax.lax.pcast(value, axis, to='varying')" in finding.fix
    assert not shardlab.check(halves, "f32[8]", "f32[]", mesh="data=4", grads=False).findings
    (finding,) = shardlab.check(halves, "f32[8]", "f32[]", False, mesh="data=4").findings
    assert finding.code == "hazard.mesh_dependent"  # no longer hangs, and is still not the gradient


def test_threads_check_one_at_a_time():
    sizes = (2, 4, 8, 2)
    with ThreadPoolExecutor(len(sizes)) as pool:
        reports = list(
            pool.map(lambda n: shardlab.check(squares, "f32[16]", mesh=f"data={n}"), sizes)
        )
    assert [report.meshes for report in reports] == [(f"data={n}",) for n in sizes]
    assert not any(report.findings for report in reports)
    assert len(jax.devices()) == 1


# -------------------------------------------------------------- results that are not only arrays


def test_a_step_may_return_a_model_with_functions_in_it():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(6, 1, 4, 1, key=jax.random.key(0))

    @eqx.filter_jit
    def step(model, x):
        params, static = eqx.partition(model, eqx.is_array)

        def body(params, x):
            def loss(params):
                return (jax.vmap(eqx.combine(params, static))(x) ** 2).mean()

            return lax.pmean(jax.grad(loss)(params), "data")

        mapped = jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
        return eqx.combine(eqx.apply_updates(params, mapped(params, x)), static)

    calls = shardlab.trace(step, model, "f32[8,6]", mesh="data=2").collectives
    assert {call.op for call in calls} == {"psum"}
    report = shardlab.check(step, model, "f32[8,6]", mesh="data=2")
    assert (report.ok, report.codes, report.meshes) == (True, (), ("data=2",))


class Result:
    def __init__(self, loss):
        self.loss = loss


@pytest.mark.parametrize(
    "results",
    [
        lambda loss: None if loss is None else {"loss": loss, "name": "adam", "step": 3, "f": max},
        lambda loss: (None, loss, "done", float),
        Result,
    ],
)
def test_results_that_are_no_arrays_are_dropped_and_arrays_in_objects_are_not(results):
    def step(x):
        body = lambda x: lax.psum(x.sum(), "data")  # noqa: E731
        return results(jax.shard_map(body, in_specs=P("data"), out_specs=P())(x))

    (call,) = shardlab.trace(step, "f32[12]", mesh="data=3").collectives
    assert call.op == "psum"
    assert shardlab.check(step, "f32[12]", mesh="data=3").codes == ()
    assert shardlab.trace(lambda x: None, "f32[12]", mesh="data=3").collectives == ()


def test_a_hard_coded_device_count_that_one_device_cannot_run():
    def four(x):
        ring = [(i, (i + 1) % 4) for i in range(4)]
        body = lambda x: x + lax.ppermute(x, "data", ring)  # noqa: E731  short
        return jax.shard_map(body, in_specs=P("data"), out_specs=P("data"))(x)

    (finding,) = shardlab.check(four, "f32[16]", meshes=["data=8", "data=4"]).findings
    assert finding.what == ("The output differs from the result on data=4; the cause is not known.")
    report = shardlab.check(four, "f32[16]", mesh="data=4")
    assert report.findings == ()
    assert not report.is_compared
    assert str(report).endswith("four: nothing found; values were not compared")
    assert "ppermute index out of range: it names device 1" in report.notes[0]
    assert not Report.from_json(report.to_json()).is_compared


def test_a_gradient_that_jax_has_already_summed_is_reported_as_such():
    def step(w, x):
        def body(w, x):
            loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
            return w - 0.1 * lax.pmean(grad, "data"), grad, lax.pmean(loss, "data")

        return jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P())(w, x)

    (finding,) = shardlab.check(step, "f32[3]", "f32[24,3]", mesh="data=4").findings
    assert finding.cause == "gradient_scaled_by_n"
    assert finding.details["paths"] == ["[0]", "[1]"]
    assert "lax.pmean(loss, 'data')" in finding.fix
    assert "Output [0] changes with it." in finding.shows


def test_gradients_are_not_computed_of_values_that_differ():
    progress = []
    shardlab.check(total, "f32[24]", mesh="data=2", on_progress=progress.append)
    assert not any("gradients" in text for text in progress)
    shardlab.check(squares, "f32[24]", mesh="data=2", on_progress=progress.append)
    assert progress[-1] == "computing gradients on data=2"
