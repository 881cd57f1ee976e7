"""Random numbers for references: bit for bit those of JAX, and of Flax's Linear."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.catalogue import threefry

SEEDS = st.integers(0, 2**31 - 1)
SHAPES = st.sampled_from([(), (1,), (7,), (3, 4), (2, 3, 5)])


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, data=st.integers(0, 2**32 - 1), n=st.integers(1, 9))
def test_keys_are_those_of_jax(seed, data, n):
    ours, theirs = threefry.key(seed), jax.random.key(seed)
    np.testing.assert_array_equal(ours, jax.random.key_data(theirs))
    np.testing.assert_array_equal(
        threefry.split(ours, n), jax.random.key_data(jax.random.split(theirs, n))
    )
    np.testing.assert_array_equal(
        threefry.fold_in(ours, data), jax.random.key_data(jax.random.fold_in(theirs, data))
    )


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, shape=SHAPES, p=st.sampled_from([0.1, 0.5, 0.9]))
def test_uniform_and_bernoulli_are_those_of_jax_bit_for_bit(seed, shape, p):
    ours, theirs = threefry.key(seed), jax.random.key(seed)
    np.testing.assert_array_equal(threefry.random_bits(ours, shape), jax.random.bits(theirs, shape))
    np.testing.assert_array_equal(threefry.uniform(ours, shape), jax.random.uniform(theirs, shape))
    np.testing.assert_array_equal(
        threefry.bernoulli(ours, p, shape), jax.random.bernoulli(theirs, p, shape)
    )
    np.testing.assert_allclose(
        threefry.uniform(ours, shape, -2.0, 3.0),
        jax.random.uniform(theirs, shape, minval=-2.0, maxval=3.0),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("seed", [0, 3, 4_000_000_000])
def test_normals_are_those_of_jax_to_the_last_digit(seed):
    ours, theirs = threefry.key(seed), jax.random.key(seed)
    shape = (500, 40)  # enough for the tails, where the other polynomial counts
    got = threefry.normal(ours, shape)
    assert got.dtype == np.float32
    assert np.abs(got).max() > 3.5
    np.testing.assert_allclose(got, jax.random.normal(theirs, shape), rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(
        threefry.truncated_normal(ours, -2.0, 1.5, shape),
        jax.random.truncated_normal(theirs, -2.0, 1.5, shape),
        rtol=2e-6,
        atol=1e-7,
    )


@pytest.mark.parametrize(("seed", "din", "dout"), [(0, 6, 4), (7, 3, 8), (123, 16, 5)])
def test_the_kernel_is_that_of_a_linear_layer(seed, din, dout):
    layer = nnx.Linear(din, dout, rngs=nnx.Rngs(seed))
    np.testing.assert_allclose(
        threefry.linear_kernel(seed, din, dout), layer.kernel[...], rtol=2e-6, atol=1e-7
    )
    np.testing.assert_array_equal(layer.bias[...], np.zeros(dout, np.float32))


def test_the_initializer_is_lecun_normal():
    drawn = jax.nn.initializers.lecun_normal()(jax.random.key(5), (9, 2))
    np.testing.assert_allclose(
        threefry.lecun_normal(threefry.key(5), (9, 2)), drawn, rtol=2e-6, atol=1e-7
    )
