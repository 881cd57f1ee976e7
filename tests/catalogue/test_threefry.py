"""Random numbers for references: bit for bit those of JAX, and of Flax's Linear."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx

from shardlab.catalogue import threefry

SEEDS = [0, 3, 2**31 - 1, 4_000_000_000]


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_are_those_of_jax(seed):
    ours, theirs = threefry.key(seed), jax.random.key(seed)
    np.testing.assert_array_equal(ours, jax.random.key_data(theirs))
    np.testing.assert_array_equal(
        threefry.split(ours, 5), jax.random.key_data(jax.random.split(theirs, 5))
    )
    for data in (0, 1, 2**32 - 1):
        folded = jax.random.key_data(jax.random.fold_in(theirs, data))
        np.testing.assert_array_equal(threefry.fold_in(ours, data), folded)


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 5)])
def test_uniform_and_bernoulli_are_those_of_jax_bit_for_bit(shape):
    for seed in SEEDS:
        ours, theirs = threefry.key(seed), jax.random.key(seed)
        same = np.testing.assert_array_equal
        same(threefry.random_bits(ours, shape), jax.random.bits(theirs, shape))
        same(threefry.uniform(ours, shape), jax.random.uniform(theirs, shape))
        same(threefry.bernoulli(ours, 0.3, shape), jax.random.bernoulli(theirs, 0.3, shape))
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


def test_a_kernel_that_no_memory_holds_is_refused_before_it_is_drawn():
    with pytest.raises(MemoryError, match="3 x 2000000000 elements"):
        threefry.linear_kernel(0, 3, 2_000_000_000)
