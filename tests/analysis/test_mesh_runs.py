"""Runs on several meshes: what is recorded of each, with nothing decided."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardlab.analysis.mesh_runs import MeshRunner, MeshTrial
from shardlab.analysis.run_arguments import fill_arguments
from shardlab.sharding.mesh import Mesh
from shardlab.tracing.stage import staging_mesh

ROWS = P("data")
OWN = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
W = np.random.default_rng(1).normal(size=(3,)).astype("float32")


def run_on_meshes(f, args, meshes, grads=True):
    runner = MeshRunner(f, args)
    runs = runner.run_on_meshes(meshes)
    return runner.add_gradients() if grads else runs


def run_on(f, args, mesh, grads=True, is_reference=False):
    trial = MeshTrial(f, args, mesh, is_reference)
    return trial.add_gradients() if grads else trial.run


def mapped(body, in_specs=ROWS, out_specs=ROWS, **options):
    return jax.shard_map(body, mesh=OWN, in_specs=in_specs, out_specs=out_specs, **options)


def loss(x, w):
    body = mapped(lambda x, w: lax.psum(((x @ w) ** 2).sum(), "data"), (P("data"), P()), P())
    return {"loss": body(x, w)}


def test_outputs_and_gradients_are_by_path_and_equal_those_of_plain_jax():
    runs = run_on_meshes(loss, [X, W], [Mesh(data=2), Mesh(data=3)])
    # The gradient is of a weighted sum of the outputs: one scalar, one weight.
    weight = np.random.default_rng([99, 0]).uniform(0.5, 1.5)
    expected = jax.grad(lambda x, w: weight * ((x @ w) ** 2).sum(), (0, 1))(X, W)
    for run in (runs.one, *runs.many):
        assert run.failure is None
        assert list(run.outputs) == ["['loss']"]
        np.testing.assert_allclose(run.outputs["['loss']"].value, ((X @ W) ** 2).sum(), rtol=1e-5)
        assert list(run.gradients) == ["x", "w"]
        for path, grad in zip(("x", "w"), expected, strict=True):
            np.testing.assert_allclose(run.gradients[path].value, grad, rtol=1e-4, atol=1e-5)
    assert [run.mesh for run in runs.many] == [(("data", 2),), (("data", 3),)]
    assert list(runs.arguments) == ["x", "w"]
    assert runs.source.function == "loss"


def test_only_the_run_on_one_device_measures_rounding_noise():
    runs = run_on_meshes(loss, [X, W], [Mesh(data=2)], grads=False)
    leaf = runs.one.outputs["['loss']"]
    assert 0 < leaf.noise < 1e-5 * leaf.value
    assert runs.many[0].outputs["['loss']"].noise == 0
    assert runs.one.gradients == {}


def test_replicas_are_recorded_for_every_device():
    total = mapped(lambda x: x.sum(0), out_specs=P(), check_vma=False)
    run = run_on(total, [X], Mesh(data=3), grads=False)
    (replicas,) = run.copies
    assert replicas.mesh_axes == ("data",)
    np.testing.assert_allclose(replicas.values, X.reshape(3, 4, 3).sum(1), rtol=1e-5)
    one = run_on(total, [X], Mesh(data=1), grads=False, is_reference=True)
    (expected,) = one.copies
    assert expected.key == replicas.key
    assert expected.mesh_axes == ()
    np.testing.assert_allclose(expected.values, X.sum(0), rtol=1e-4)


def test_replicas_are_joined_over_the_axes_that_the_spec_names():
    both = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    total = jax.shard_map(
        lambda x: x.sum(1), mesh=both, in_specs=P("data", "model"), out_specs=P("data"),
        check_vma=False,
    )  # fmt: skip
    (replicas,) = run_on(total, [X], Mesh(data=2, model=3), grads=False).copies
    assert replicas.mesh_axes == ("model",)
    np.testing.assert_allclose(replicas.values, X.T, rtol=1e-6)


def test_a_mesh_that_does_not_divide_is_a_failure_of_that_run_alone():
    runs = run_on_meshes(loss, [X, W], [Mesh(data=5), Mesh(data=4)], grads=False)
    assert [run.failure and run.failure.kind for run in runs.many] == ["indivisible", None]


def test_a_deadlock_ends_the_runs():
    def diverging(x):
        def body(x):
            wait = lax.axis_index("data") == 0
            return lax.cond(wait, lambda x: lax.psum(x, "data"), lambda x: x, x)

        return mapped(body, check_vma=False)(x)

    runs = run_on_meshes(diverging, [X], [Mesh(data=2), Mesh(data=3)], grads=False)
    (run,) = runs.many
    assert run.failure.kind == "deadlock"
    assert "psum over 'data': reached by data=0; not by data=1" in run.failure.message


def test_what_cannot_be_differentiated_is_noted():
    def rounded(x):
        return mapped(
            lambda x: jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        )(x)

    run = run_on(rounded, [X], Mesh(data=2))
    assert run.failure is None
    assert run.gradients == {}
    assert run.notes[0].startswith("gradients were not compared: ValueError: Pure callbacks do not")


def test_a_program_that_computes_gradients_is_not_differentiated_again():
    step = mapped(lambda x, w: jax.grad(lambda w: (x @ w).sum())(w), (P("data"), P()), P("data"))
    run = run_on(step, [X, W], Mesh(data=3))
    assert (run.failure, run.gradients) == (None, {})
    assert run.notes[0].startswith("The program computes gradients itself")


# ------------------------------------------------------------------------------ lineage


def lineage_of(body, *args, mesh=None, **options):
    run = run_on(mapped(body, check_vma=False, **options), args, mesh or Mesh(data=2), grads=False)
    return [leaf.lineage for leaf in run.outputs.values()]


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        (lambda: jax.random.key(0), {"same"}),
        (lambda: jax.random.fold_in(jax.random.key(0), lax.axis_index("data")), {"by_device"}),
    ],
    ids=["same", "by_device"],
)
def test_random_numbers_are_classified_by_their_key(key, kinds):
    (lineage,) = lineage_of(lambda x: x + jax.random.normal(key(), x.shape), X)
    assert lineage.random == kinds
    (lineage,) = lineage_of(lambda x: x * 2, X)
    assert lineage.random == set()


def test_a_sum_of_quotients_is_recorded_if_the_divisors_differ():
    def means(x):
        mask = x > 0
        own = lax.psum((x * mask).sum() / mask.sum(), "data")
        whole = lax.psum((x * mask).sum(), "data") / lax.psum(mask.sum(), "data")
        return own, whole, lax.pmean(x.mean(), "data"), jax.nn.softmax(lax.psum(x, "data")).sum()

    own, *others = lineage_of(means, X, out_specs=P())
    assert [source.function for source in own.sums_ratios] == ["means"]
    assert [other.sums_ratios for other in others] == [(), (), ()]


def test_gradients_and_outputs_without_arguments_are_recorded():
    def body(x, w):
        value, grad = jax.value_and_grad(lambda w: ((x @ w) ** 2).sum())(w)
        return value[None], grad[None], lax.axis_index("data")[None]

    value, grad, place = lineage_of(body, X, W, in_specs=(P("data"), P()))
    assert (value.is_gradient, grad.is_gradient) == (False, True)
    assert (value.has_arguments, place.has_arguments) == (True, False)


def test_the_least_precise_float_on_the_path_counts():
    def body(x):
        return x * 2, (x.astype(jnp.bfloat16) * 2).astype(jnp.float32)

    wide, narrow = lineage_of(body, X, out_specs=(P("data"), P("data")))
    assert wide.eps == np.finfo(np.float32).eps
    assert narrow.eps == float(jnp.finfo(jnp.bfloat16).eps)


def test_divisors_and_collectives_on_the_path_are_recorded():
    def body(x):
        whole = lax.psum(x.mean(), "data")
        return whole / 8, lax.pmean(x.mean(), "data"), lax.psum(x, "data").mean(), x * 2

    specs = (P(), P(), P(), ROWS)
    written, mean, later, own = lineage_of(body, X, mesh=Mesh(data=1), out_specs=specs)
    assert [lineage.divided_by for lineage in (written, mean, later, own)] == [(8,), (), (), ()]
    assert [lineage.has_collectives for lineage in (written, mean, own)] == [True, True, False]
    assert not written.checks_vma
    run = run_on(loss, [X, W], Mesh(data=2), grads=False)
    assert run.outputs["['loss']"].lineage.checks_vma


# -------------------------------------------------------------------------------------- arguments


def test_shapes_get_values_that_are_neither_constant_nor_symmetric():
    args = ["f32[4,4]", jax.ShapeDtypeStruct((6,), jnp.int32), {"k": "bool[9]"}, "relu", 3]
    array, integers, tree, text, number = fill_arguments(args)
    assert (text, number) == ("relu", 3)
    assert len(np.unique(array)) == 16
    assert not np.allclose(array, array.T)
    assert integers.dtype == jnp.int32
    assert integers.min() >= 0
    assert set(np.unique(tree["k"])) == {False, True}
    np.testing.assert_array_equal(array, fill_arguments(args)[0])


def test_keys_are_created_from_their_shape():
    dtype = jax.random.key(0).dtype
    (keys,) = fill_arguments([jax.ShapeDtypeStruct((3,), dtype)])
    assert keys.shape == (3,)
    assert keys.dtype == dtype


def test_a_parameter_named_mesh_gets_the_mesh():
    def seen(x, mesh, scale):
        sums = jax.shard_map(
            lambda x: lax.psum(x.sum(), mesh.axis_names), mesh=mesh,
            in_specs=P(mesh.axis_names), out_specs=P(),
        )  # fmt: skip
        return sums(x) * scale * mesh.size

    for n in (1, 4):
        run = run_on(seen, [X, 2.0], Mesh(data=n), grads=False)
        np.testing.assert_allclose(run.outputs[""].value, X.sum() * 2 * n, rtol=1e-4)
        assert run_on(seen, [X, OWN, 2.0], Mesh(data=n)).gradients.keys() == {"x"}
    # A mesh that is passed stays: it is replaced where the program uses it.
    assert staging_mesh(seen, [3, OWN, 2.0], "new") == ((3, OWN, 2.0), {})
    assert staging_mesh(lambda x, *, mesh: x, [3], "new") == ((3,), {"mesh": "new"})


def test_a_shard_map_without_a_mesh_takes_the_one_in_context():
    f = jax.shard_map(lambda x: lax.psum(x.sum(), "data"), in_specs=P("data"), out_specs=P())
    run = run_on(f, [X], Mesh(data=4), grads=False)
    np.testing.assert_allclose(run.outputs[""].value, X.sum(), rtol=1e-4)


def test_what_the_program_prints_is_hidden(capsys):
    def talks(x):
        print("tracing")
        jax.debug.print("running {}", x.sum())
        return mapped(lambda x: x * 2)(x)

    run_on_meshes(talks, [X], [Mesh(data=2)], grads=False)
    assert capsys.readouterr().out == ""


def test_a_program_is_traced_once_per_mesh_also_for_gradients():
    traced = []

    def counted(x):
        traced.append(x.shape)
        return mapped(lambda x: lax.psum((x**2).sum(), "data"), out_specs=P())(x)

    runner = MeshRunner(counted, [X])
    runs = runner.run_on_meshes([Mesh(data=2)])
    assert [run.gradients for run in (runs.one, *runs.many)] == [{}, {}]
    runs = runner.run_on_meshes([Mesh(data=2), Mesh(data=3)])
    later = runner.add_gradients()
    assert [run.mesh for run in later.many] == [(("data", 2),), (("data", 3),)]
    for run in (later.one, *later.many):
        weight = np.random.default_rng([99, 0]).uniform(0.5, 1.5)
        np.testing.assert_allclose(run.gradients["x"].value, 2 * weight * X, rtol=1e-5)
    assert len(traced) == 3


def test_the_smallest_mesh_that_runs_is_the_reference_if_one_device_fails():
    def four(x):
        ring = [(i, (i + 1) % 4) for i in range(4)]
        return mapped(lambda x: lax.ppermute(x, "data", ring))(x)

    runs = MeshRunner(four, [X]).run_on_meshes([Mesh(data=12), Mesh(data=2), Mesh(data=4)])
    assert runs.reference == runs.one.mesh_text == "data=4"
    assert runs.one_device_failure.kind == "rejected"
    assert [(run.mesh_text, bool(run.failure)) for run in runs.many] == [
        ("data=2", True), ("data=12", False),
    ]  # fmt: skip
    assert runs.compared_on == ("data=12",)
    assert runs.one.outputs[""].noise.max() > 0
