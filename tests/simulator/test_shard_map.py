"""`shardlab.shard_map` composes with everything that `jax.shard_map` composes with."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab import shard_map
from shardlab.errors import Deadlock, LabError, UnboundAxis
from shardlab.simulator.interpreter.replicas import ReplicasDiffer
from shardlab.simulator.virtual_devices.devices import virtual_mesh

X = jnp.arange(24.0).reshape(8, 3) / 7 - 1


def run_with_callbacks(f, *args):
    """Run a program and its callbacks to the end."""
    jax.block_until_ready(f(*args))
    jax.effects_barrier()


def total(mesh="data=4", **options):
    return shard_map(
        lambda x: jax.lax.psum(jnp.sum(jnp.sin(x)), "data"),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P(),
        **options,
    )


@pytest.mark.parametrize(
    "mesh",
    [
        "data=4",
        {"data": 4},
        AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,)),
        virtual_mesh("data=4"),
    ],
    ids=["text", "mapping", "abstract", "virtual"],
)
def test_mesh_accepts_every_form(mesh):
    np.testing.assert_allclose(total(mesh)(X), jnp.sum(jnp.sin(X)), rtol=1e-6)


def test_decorator_form_takes_the_body_later():
    @shard_map(mesh="data=2", in_specs=P("data"), out_specs=P("data"))
    def double(x):
        return x * 2

    np.testing.assert_array_equal(double(X), X * 2)


def test_shard_map_over_a_real_mesh_is_not_simulated():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    f = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    np.testing.assert_array_equal(jax.jit(f)(X), X * 2)
    assert "manual_computation" not in jax.jit(total()).lower(X).as_text()


@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        jax.grad,
        lambda f: jax.jit(jax.value_and_grad(f)),
        lambda f: jax.value_and_grad(jax.jit(f)),
        lambda f: jax.grad(jax.remat(f)),
        lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x, x - 1])),
        lambda f: lambda x: jax.lax.scan(lambda c, s: (c + f(x * s), c), 0.0, jnp.arange(3.0)),
        lambda f: jax.hessian(f),
        lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
    ],
    ids=["jit", "grad", "jit_vg", "vg_jit", "remat", "vmap", "scan", "hessian", "jvp"],
)
def test_transformation_equals_the_unsharded_one(transform):
    ours = transform(total())(X)
    plain = transform(lambda x: jnp.sum(jnp.sin(x)))(X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, plain)


def test_shard_map_within_shard_map():
    inner = shard_map(
        lambda x: jax.lax.psum(x, "model"),
        mesh=None,
        in_specs=P(None, "model"),
        out_specs=P(),
        axis_names={"model"},
    )
    outer = shard_map(
        lambda x: jax.lax.psum(inner(x), "data"),
        mesh="data=2,model=3",
        in_specs=P("data"),
        out_specs=P(),
        axis_names={"data"},
    )
    x = np.asarray(X)
    expected = (x[:4] + x[4:]).sum(1, keepdims=True)
    np.testing.assert_allclose(jax.jit(outer)(X), expected, rtol=1e-5, atol=1e-6)


def test_4096_devices_on_one_cpu():
    f = shard_map(
        lambda x: jax.lax.psum(x, ("a", "b")),
        mesh="a=64,b=64",
        in_specs=P(("a", "b")),
        out_specs=P(),
    )
    assert jax.jit(f)(jnp.arange(4096)) == 4096 * 4095 // 2


def test_eager_calls_do_not_compile_again(caplog):
    f, shifted = total(), X + 1
    f(X)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        f(shifted)
    assert [r for r in caplog.records if "Finished XLA compilation" in r.getMessage()] == []


def test_replicas_that_differ_are_a_warning_with_the_values():
    f = shard_map(
        lambda x: jnp.sum(x),
        mesh="data=4",
        in_specs=P("data"),
        out_specs=P(),
        check_vma=False,
    )
    with pytest.warns(ReplicasDiffer, match=r"differs on 3 of 4 devices") as caught:
        run_with_callbacks(jax.jit(f), jnp.arange(8.0))
    assert "data=2: 9." in str(caught[0].message)


def test_replicas_that_differ_warn_once_for_all_outputs_at_their_line():
    def two_outputs(x):
        return x.sum(), x.max()

    f = shard_map(
        two_outputs,
        mesh="data=4,model=2",
        in_specs=P("data"),
        out_specs=(P(), P()),
        check_vma=False,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            run_with_callbacks(f, jnp.arange(8.0))
    (text,) = (str(w.message) for w in caught)
    assert text.startswith("output 0 of 2, 1 of 2 of 'two_outputs'")
    assert "differ on 6 of 8 devices" in text
    assert caught[0].filename == __file__


def test_result_of_an_eager_call_has_shards():
    f = shard_map(lambda x: x * 2, mesh="data=4", in_specs=P("data"), out_specs=P("data"))
    device_shards = shardlab.shards(f(jnp.arange(8.0)))
    assert [(s.device, s.data.tolist()) for s in device_shards][1] == (1, [4.0, 6.0])


def test_replicas_that_agree_are_silent():
    f = shard_map(
        lambda x: jax.lax.psum(jnp.sum(x), "data"),
        mesh="data=4",
        in_specs=P("data"),
        out_specs=P(),
        check_vma=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(jnp.arange(8.0)) == 28.0
        jax.effects_barrier()


def test_uneven_shards_raise_the_error_of_jax():
    f = shard_map(lambda x: x, mesh="data=3", in_specs=P("data"), out_specs=P("data"))
    with pytest.raises(ValueError, match="evenly"):
        f(X)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: jax.lax.psum(x, "dta"),
        lambda x: jax.lax.pmax(x, "dta"),
        lambda x: jax.lax.ppermute(x, "dta", [(0, 1)]),
    ],
    ids=["psum", "pmax", "ppermute"],
)
def test_unknown_axis_error_has_the_line_and_the_nearest_name(body):
    f = shard_map(body, mesh="data=4", in_specs=P("data"), out_specs=P("data"))
    with pytest.raises(UnboundAxis) as caught:
        f(X)
    assert "over mesh axis 'dta', which this mesh does not have" in caught.value.what
    assert "test_shard_map.py" in caught.value.where
    assert caught.value.fix == "the mesh is data=4. Did you mean 'data'?"


def test_unknown_axis_error_of_jax_gets_a_note():
    f = shard_map(
        lambda x: jax.lax.all_gather(x, "dta"), mesh="data=4", in_specs=P("data"), out_specs=P()
    )
    with pytest.raises(NameError, match="unbound axis name: dta") as caught:
        f(X)
    assert caught.value.__notes__[0] == "shardlab: the mesh is data=4. Did you mean 'data'?"


def test_collective_in_a_divergent_branch_is_a_deadlock():
    def body(x):
        return jax.lax.cond(
            jax.lax.axis_index("data") == 0,
            lambda: jax.lax.psum(x, "data"),
            lambda: x,
        )

    f = shard_map(body, mesh="data=4", in_specs=P("data"), out_specs=P("data"), check_vma=False)
    with pytest.raises(Deadlock, match=r"simulate\.deadlock") as caught:
        run_with_callbacks(f, jnp.arange(4.0))
    assert "reached by data=0; not by data=1, data=2, data=3" in caught.value.what


def test_invalid_mesh_text_is_a_lab_error():
    with pytest.raises(LabError, match=r"layout\.invalid_syntax"):
        total("data=four")


@pytest.mark.parametrize("name", ["layout", "shard_map", "simulated", "shards", "peek", "peeks"])
def test_public_name_exists(name):
    assert callable(getattr(shardlab, name))
