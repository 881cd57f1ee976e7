"""Every known difference between the simulation and real devices, and its reason."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec as P

from shardlab import _jax
from shardlab.errors import CannotSimulate
from shardlab.simulator.interpreter.replicas import ReplicasDiffer
from shardlab.simulator.shard_map import shard_map

BOTH = P("data", "model")
X = jnp.arange(32.0).reshape(4, 8) - 9.5


def run(body, out_specs=BOTH, x=X):
    mapped = shard_map(
        body, mesh="data=2,model=4", in_specs=BOTH, out_specs=out_specs, check_vma=False
    )
    out = jax.block_until_ready(jax.jit(mapped)(x))
    jax.effects_barrier()
    return out


# ----------------------------------------------------------------------- real devices block forever


def psum_in_one_branch(x):
    return lax.cond(x.sum() > 0, lambda x: lax.psum(x, "model"), lambda x: x, x)


def psum_in_one_branch_and_pmax_in_the_other(x):
    return lax.cond(x.sum() > 0, lambda x: lax.psum(x, "model"), lambda x: lax.pmax(x, "model"), x)


def psum_in_a_loop_with_divergent_trip_counts(x):
    n = lax.axis_index("model")
    return lax.while_loop(
        lambda s: s[0] < n, lambda s: (s[0] + 1, lax.psum(s[1], "model")), (0, x)
    )[1]


def psum_of_a_product_in_one_branch(x):
    return lax.cond(x.sum() > 0, lambda x: lax.psum(x @ x.T @ x, "model"), lambda x: x, x)


def ppermute_under_a_predicate_over_another_axis(x):
    # The rendezvous of a ppermute spans all devices, not only those along its axis.
    is_first = lax.axis_index("model") == 0
    return lax.cond(is_first, lambda x: lax.ppermute(x, "data", [(0, 1), (1, 0)]), lambda x: x, x)


@pytest.mark.parametrize(
    "body",
    [
        psum_in_one_branch,
        psum_in_one_branch_and_pmax_in_the_other,
        psum_in_a_loop_with_divergent_trip_counts,
        psum_of_a_product_in_one_branch,
        ppermute_under_a_predicate_over_another_axis,
    ],
    ids=lambda body: body.__name__,
)
def test_deadlock_error_lists_the_devices_that_never_arrive(body):
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"\[simulate\.deadlock\] Some devices never reach this p"
    ) as caught:
        run(body)
    assert "reached by" in str(caught.value)
    assert f"in {body.__name__}" in str(caught.value) or body.__name__ in str(caught.value)


def test_a_predicate_that_is_equal_on_all_devices_is_no_deadlock():
    """The predicate could differ between devices, but does not; real devices do not block."""
    x = jnp.abs(X) + 1.0
    assert jnp.allclose(run(psum_in_one_branch, x=x)[:, 0], x[:, 0::2].sum(1))


def test_a_collective_in_a_branch_that_no_device_takes_is_no_deadlock():
    def body(x):
        def divergent(x):
            return lax.cond(x.sum() > 1e9, lambda x: lax.psum(x, "model"), lambda x: -x, x)

        return lax.cond(x.sum() > 0, divergent, lambda x: x, x)

    result = run(body)
    sums = np.asarray(X).reshape(2, 2, 4, 2).sum((1, 3), keepdims=True)
    expected = np.where(sums > 0, -1, 1) * np.asarray(X).reshape(2, 2, 4, 2)
    np.testing.assert_array_equal(result, expected.reshape(4, 8))


# ----------------------------------------------------------------------------- replicas that differ


def test_replicas_that_differ_are_a_warning_and_the_first_is_returned():
    """JAX silently labels such an array replicated, and each device keeps its own values."""
    with pytest.warns(ReplicasDiffer, match="over 'model', differs on 6 of 8"):
        result = run(lambda x: x, out_specs=P("data"))
    np.testing.assert_array_equal(result, X[:, :2])


def test_equal_replicas_are_no_warning_even_if_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(lambda x: lax.psum(x, ("data", "model")) / 0.0 * 0.0, out_specs=P())


# ------------------------------------------------------------------------------- JAX cannot compile


def nested(x, mesh, **options):
    def outer(x):
        def inner(x):
            return jnp.sin(x) * (1.0 + lax.axis_index("model"))

        spec = P(None, "model")
        return shard_map(inner, in_specs=spec, out_specs=spec, axis_names={"model"}, **options)(x)

    return shard_map(
        outer, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}, **options
    )(x)


def test_the_gradient_of_a_nested_shard_map_is_computed_although_jax_cannot_compile_it():
    """JAX passes residuals from the inner forward to the inner backward pass with specs that name
    the outer axis, which its own lowering rejects ("already bound by a parent")."""
    gradient = jax.jit(jax.grad(lambda x: nested(x, "data=2,model=4").sum()))(X)
    np.testing.assert_allclose(
        gradient, jnp.cos(X) * jnp.repeat(jnp.arange(1.0, 5.0), 2), rtol=1e-6
    )


def test_the_gradient_of_a_shard_map_nested_three_deep_is_rejected():
    def inner(x):
        return shard_map(jnp.sin, in_specs=P("c"), out_specs=P("c"), axis_names={"c"})(x)

    def middle(x):
        return shard_map(inner, in_specs=P("b"), out_specs=P("b"), axis_names={"b"})(x)

    outer = shard_map(
        middle, mesh="a=2,b=2,c=2", in_specs=P("a"), out_specs=P("a"), axis_names={"a"}
    )
    np.testing.assert_allclose(jax.jit(outer)(X.reshape(-1)), jnp.sin(X).reshape(-1), rtol=1e-6)
    with pytest.raises(CannotSimulate, match="shards an array over mesh axis 'a' a second time"):
        jax.jit(jax.grad(lambda x: outer(x).sum()))(X.reshape(-1))


# ------------------------------------------------------------------------------- unknown primitives


@pytest.fixture(scope="module")
def gossip():
    """An unknown collective: its effect says that it communicates, and nothing says how."""
    primitive = Primitive("gossip")
    primitive.def_effectful_abstract_eval(
        lambda x, *, axis_name: (x, {_jax.NamedAxisEffect(axis_name)})
    )
    return lambda x, axis_name: primitive.bind(x, axis_name=axis_name)


@pytest.mark.parametrize("location", ["body", "scan", "cond", "nested"])
def test_an_unknown_collective_is_rejected_by_name(gossip, location):
    def body(x):
        if location == "scan":
            return lax.scan(lambda c, _: (gossip(c, "model"), None), x, None, length=2)[0]
        if location == "cond":
            return lax.cond(x.sum() > 0, lambda x: gossip(x, "model"), lambda x: x, x)
        if location == "nested":
            return jax.jit(lambda x: gossip(x, "model"))(x)
        return gossip(x, "model")

    with pytest.raises(
        CannotSimulate, match="'gossip' communicates over mesh axis 'model', and shardlab has no"
    ):
        run(body)


@pytest.mark.filterwarnings("ignore:jax.lax.p:DeprecationWarning")
def test_psend_and_precv_are_rejected_by_name():
    """Separate send and receive exist only on GPUs."""

    def body(x):
        token = lax.psend(x, "model", [(0, 1)])
        return lax.precv(token, jax.ShapeDtypeStruct(x.shape, x.dtype), "model", [(0, 1)])

    with pytest.raises(CannotSimulate, match="'psend' communicates over mesh axis 'model'"):
        run(body)


# --------------------------------------------------------------------------------- two-bit integers


@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_two_bit_integers_are_gathered_and_summed_although_xla_cpu_cannot(dtype):
    """Real host devices cannot sum them, and gather zeros for most of them."""
    x = jnp.arange(32, dtype=jnp.int32).reshape(4, 8) * 7 // 3 % 4
    gathered, total = run(
        lambda x: (lax.all_gather(x, "model", axis=1, tiled=True), lax.psum(x, "model")),
        out_specs=(P("data"), P("data")),
        x=x.astype(dtype),
    )
    plain = np.asarray(x.astype(dtype)).astype(int)
    np.testing.assert_array_equal(np.asarray(gathered).astype(int), plain)
    wrapped = jnp.asarray(plain.reshape(4, 4, 2).sum(1)).astype(dtype)
    np.testing.assert_array_equal(np.asarray(total).astype(int), np.asarray(wrapped).astype(int))


# ---------------------------------------------------------------------------------------- callbacks


def test_a_debug_print_starts_with_the_coordinate_of_its_device(capfd):
    def body(x):
        jax.debug.print("sum {}", x.sum())
        return x

    run(body)
    printed = capfd.readouterr().out.splitlines()
    assert len(printed) == 8
    assert printed[5] == "[data=1 model=1] sum 52.0"


def test_host_callbacks_get_numpy_arrays():
    """JAX passes its own arrays to them, with one transfer for each device."""
    kinds = set()
    run(lambda x: (jax.debug.callback(lambda a: kinds.add(type(a)), x), x)[1])
    assert kinds == {np.ndarray}
