"""Bugs that rounding or random numbers hide, and programs that use the number of devices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab import _jax
from shardlab._jax.wide_floats import widen_array, widen_jaxpr
from shardlab.analysis.mesh_trace import computes_the_same, depends_on_mesh
from shardlab.errors import Unsupported
from shardlab.sharding.mesh import parse_mesh


def all_types(jaxpr):
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        yield from (atom.aval.dtype for atom in (*eqn.invars, *eqn.outvars))
        for body in _jax.inner_jaxprs(eqn.params):
            yield from all_types(body)


def train_step(w, x):
    """A scan with remat and a custom gradient rule, in bfloat16."""

    @jax.checkpoint
    def layer(h, w):
        return jax.nn.silu(h @ w.astype(jnp.bfloat16)), None

    def loss(w):
        h, _ = lax.scan(layer, x.astype(jnp.bfloat16), w)
        return jnp.mean(jax.nn.logsumexp(h, -1).astype(jnp.float32))

    return jax.value_and_grad(loss)(w)


def test_a_widened_program_has_no_narrow_float_and_the_values_of_float32():
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(3, 4, 4)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(2, 4)), jnp.float16)
    wide = widen_jaxpr(jax.make_jaxpr(train_step)(w, x))
    assert not {jnp.dtype("bfloat16"), jnp.dtype("float16")} & set(all_types(wide))
    loss, grads = _jax.eval_jaxpr(wide, [w, widen_array(x)])

    def in_float32(w):
        h = x.astype(jnp.float32)
        for layer in w:
            h = jax.nn.silu(h @ layer)
        return jnp.mean(jax.nn.logsumexp(h, -1))

    expected, expected_grads = jax.value_and_grad(in_float32)(w)
    assert np.allclose(loss, expected, rtol=1e-6)
    assert np.allclose(grads, expected_grads, atol=1e-6)


def test_a_bitcast_is_not_widened():
    jaxpr = jax.make_jaxpr(lambda x: lax.bitcast_convert_type(x, jnp.uint16))(jnp.bfloat16(1))
    with pytest.raises(Unsupported, match="bitcast"):
        widen_jaxpr(jaxpr)


def scaled_sum(x, w, *, term):
    @jax.shard_map(in_specs=(P(None, "model"), P("model"), P()), out_specs=P())
    def body(x, w, b):
        partial = x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
        return lax.psum(partial + (b if term else 0), "model")

    return body(x, w, jnp.full(3, 0.02, jnp.bfloat16))


@pytest.mark.parametrize("term", [False, True])
def test_a_small_term_counted_n_times_is_found_in_bfloat16(term):
    def f(x, w):
        return scaled_sum(x, w, term=term)

    report = shardlab.check(f, "f32[2,64]", "f32[64,3]", mesh="model=4")
    assert report.codes == (("hazard.mesh_dependent",) if term else ()), str(report)
    if term:
        assert "computed in float32" in str(report)


def divided_gradient(w, x):
    grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - 0.1 * grads / jax.device_count()


def plain_gradient(w, x):
    w = lax.with_sharding_constraint(w, P("data"))
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


ARGS = ("f32[8]", "f32[16,8]")


def test_a_jit_that_divides_by_the_number_of_devices_depends_on_the_mesh():
    step = jax.jit(divided_gradient, in_shardings=(P(), P("data")))
    report = shardlab.check(step, *ARGS, mesh="data=4")
    (finding,) = report.findings
    assert (finding.code, finding.cause) == ("hazard.mesh_dependent", "gradient_scaled_by_n")


def test_a_jit_that_does_not_use_the_number_of_devices_is_not_run():
    step = jax.jit(plain_gradient, in_shardings=(P(), P("data")))
    report = shardlab.check(step, *ARGS, mesh="data=4")
    assert report.findings == ()
    assert "no shard_map" in report.notes[0]
    assert depends_on_mesh(divided_gradient, ARGS, parse_mesh("data=4"))
    assert not depends_on_mesh(plain_gradient, ARGS, parse_mesh("data=4"))


def test_a_jit_is_compared_with_a_reference():
    step = jax.jit(plain_gradient, in_shardings=(P(), P("data")))

    def faster(w, x):
        return w - 0.2 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    def same(w, x):
        return (w + faster(w, x)) / 2

    for reference, codes in ((faster, ("hazard.mesh_dependent",)), (same, ())):
        report = shardlab.check(step, *ARGS, mesh="data=4", reference=reference)
        assert report.codes == codes, str(report)
        assert report.is_compared


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (lambda x: jnp.sin(x) * 2, True),
        (lambda x: jnp.sin(x) * 3, False),
        (lambda x: jnp.cos(x) * 2, False),
        (lambda x: jnp.sin(x) * x, False),
        (lambda x: jax.jit(jnp.sin)(x) * 2, False),
    ],
)
def test_programs_compute_the_same_if_their_operations_are_the_same(other, is_same):
    x = jnp.ones(3)
    first = jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(x)
    assert computes_the_same(first, jax.make_jaxpr(other)(x)) is is_same


def keyed_noise(x, key, *, by_example, factor):
    """Noise from a key of each example, or of each device, and a mean with it."""

    @jax.shard_map(in_specs=(P("data"), P()), out_specs=(P("data"), P()), check_vma=False)
    def body(x, key):
        device = lax.axis_index("data")
        if by_example:
            rows = device * x.shape[0] + jnp.arange(x.shape[0])
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, rows)
            noise = jax.vmap(lambda key: jax.random.normal(key, ()))(keys)
        else:
            noise = jax.random.normal(jax.random.fold_in(key, device), x.shape)
        return x + noise, factor() * lax.pmean((x * noise).mean(), "data")

    return body(x, key)


@pytest.mark.parametrize(
    ("by_example", "factor", "causes"),
    [
        (True, lambda: 1, []),
        (True, lambda: lax.axis_size("data"), ["factor_of_n"]),
        (False, lambda: 1, []),  # differs by design
    ],
)
def test_noise_of_each_example_is_compared_and_noise_of_each_device_is_not(
    by_example, factor, causes
):
    args = (jnp.arange(24.0) / 7 - 1, jax.random.key(3))
    step = functools.partial(keyed_noise, by_example=by_example, factor=factor)
    report = shardlab.check(step, *args, mesh="data=4")
    assert [finding.cause for finding in report.findings] == causes, str(report)


def dropout_step(w, x, key, *, reduce):
    """Dropout from a key of each device, and a gradient that is averaged or summed."""

    @jax.shard_map(in_specs=(P(), P("data"), P()), out_specs=(P(), P()), check_vma=False)
    def body(w, x, key):
        key = jax.random.fold_in(key, lax.axis_index("data"))
        keep = jax.random.bernoulli(key, 0.8, x.shape)
        loss, grads = jax.value_and_grad(lambda w: jnp.mean(((x * keep) @ w) ** 2))(w)
        return w - 0.1 * reduce(grads, "data"), lax.pmean(loss, "data")

    return body(w, x, key)


@pytest.mark.parametrize(
    ("reduce", "causes"), [(lax.pmean, []), (lax.psum, ["gradient_scaled_by_n"])]
)
def test_a_gradient_summed_twice_is_found_beside_dropout_of_each_device(reduce, causes):
    step = functools.partial(dropout_step, reduce=reduce)
    report = shardlab.check(step, "f32[6]", "f32[24,6]", jax.random.key(1), mesh="data=4")
    assert [finding.cause for finding in report.findings] == causes, str(report)
    if causes:
        assert "constants in place of random numbers" in str(report)


def sample_of_the_shard(x, key):
    def body(x, key):
        key = jax.random.fold_in(key, lax.axis_index("data"))
        return lax.pmean(x[jax.random.randint(key, (2,), 0, x.shape[0])].mean(), "data")

    return jax.shard_map(body, in_specs=(P("data"), P()), out_specs=P(), check_vma=False)(x, key)


def gamma_noise(x, key):
    def body(x, key):
        key = jax.random.fold_in(key, lax.axis_index("data"))
        return x * jax.random.gamma(key, 2.0, x.shape)  # rejection sampling, in a while loop

    return jax.shard_map(body, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)(
        x, key
    )


@pytest.mark.parametrize("program", [sample_of_the_shard, gamma_noise])
def test_random_numbers_that_constants_cannot_replace_are_no_finding(program):
    report = shardlab.check(program, "f32[24]", jax.random.key(1), mesh="data=4")
    assert report.findings == (), str(report)
    assert any("by design" in note for note in report.notes)
