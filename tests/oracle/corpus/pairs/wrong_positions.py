"""Values that are right but in the wrong position, or on one device only."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table()
CODE = "hazard.mesh_dependent"


# ------------------------------------------------------------------------------- shards permuted


@pair.wrong(CODE, "data=4", f32(24, 5), cause="shards_permuted")
def shards_sent_on_and_never_back(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        n = lax.axis_size("data")
        return 2 * lax.ppermute(x, "data", [(i, (i + 1) % n) for i in range(n)])

    return step(x)


@pair.right
def shards_sent_once_around(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        n = lax.axis_size("data")
        ring = [(i, (i + 1) % n) for i in range(n)]
        there = lax.ppermute(x, "data", ring)
        return 2 * lax.ppermute(there, "data", [(b, a) for a, b in ring])

    return step(x)


@pair.wrong(CODE, "data=2,model=4", f32(24, 5), cause="shards_permuted")
def rows_gathered_in_another_order_than_cut(x):
    @jax.shard_map(in_specs=P(("data", "model")), out_specs=P(), check_vma=False)
    def gather(x):
        return lax.all_gather(x, ("model", "data"), tiled=True)

    return gather(x)


@pair.right
def rows_gathered_in_the_order_they_are_cut(x):
    @jax.shard_map(in_specs=P(("data", "model")), out_specs=P(), check_vma=False)
    def gather(x):
        return lax.all_gather(x, ("data", "model"), tiled=True)

    return gather(x)


@pair.wrong(CODE, "data=2,model=4", f32(24, 5), cause="shards_permuted")
def rows_cut_in_one_order_and_joined_in_the_other(x):
    @jax.shard_map(in_specs=P(("data", "model")), out_specs=P(("model", "data")))
    def double(x):
        return 2 * x

    return double(x)


@pair.right
def rows_cut_and_joined_in_one_order(x):
    @jax.shard_map(in_specs=P(("data", "model")), out_specs=P(("data", "model")))
    def double(x):
        return 2 * x

    return double(x)


@pair.wrong(CODE, "seq=4", f32(8, 12), cause="")
def heads_and_sequence_exchanged_once(x):
    @jax.shard_map(in_specs=P("seq"), out_specs=P("seq"))
    def attention(x):
        return jnp.tanh(lax.all_to_all(x, "seq", 1, 1, tiled=True))

    return attention(x)


@pair.right
def heads_and_sequence_exchanged_there_and_back(x):
    @jax.shard_map(in_specs=P("seq"), out_specs=P("seq"))
    def attention(x):
        heads = jnp.tanh(lax.all_to_all(x, "seq", 1, 0, tiled=True))
        return lax.all_to_all(heads, "seq", 0, 1, tiled=True)

    return attention(x)


# ------------------------------------------------------------------------------ only shard 0 right


@pair.wrong(CODE, "seq=4", f32(24, 6), f32(24, 6), cause="only_shard_0")
def positions_that_start_again_on_every_device(x, table):
    @jax.shard_map(in_specs=(P("seq"), P()), out_specs=P("seq"))
    def embed(x, table):
        return x + table[jnp.arange(x.shape[0])]

    return embed(x, table)


@pair.right
def positions_that_go_on_from_device_to_device(x, table):
    @jax.shard_map(in_specs=(P("seq"), P()), out_specs=P("seq"))
    def embed(x, table):
        first = lax.axis_index("seq") * x.shape[0]
        return x + table[first + jnp.arange(x.shape[0])]

    return embed(x, table)


@pair.wrong(CODE, "seq=4", f32(24, 5), cause="only_shard_0")
def running_sum_that_starts_again_on_every_device(x):
    @jax.shard_map(in_specs=P("seq"), out_specs=P("seq"))
    def scan(x):
        return jnp.cumsum(x, 0)

    return scan(x)


@pair.right
def running_sum_that_goes_on(x):
    @jax.shard_map(in_specs=P("seq"), out_specs=P("seq"))
    def scan(x):
        totals = lax.all_gather(x.sum(0), "seq")
        before = jnp.arange(totals.shape[0]) < lax.axis_index("seq")
        return jnp.cumsum(x, 0) + (totals * before[:, None]).sum(0)

    return scan(x)


@pair.wrong(CODE, "data=4", f32(24, 5), f32(24), cause="only_shard_0")
def targets_cut_from_the_front_on_every_device(x, targets):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def error(x, targets):
        return x.sum(1) - targets[: x.shape[0]]

    return error(x, targets)


@pair.right
def targets_cut_like_the_inputs(x, targets):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P("data"))
    def error(x, targets):
        return x.sum(1) - targets

    return error(x, targets)


# --------------------------------------------------------------- the same random numbers everywhere


@pair.wrong(CODE, "data=4", f32(24, 5), cause="same_random_numbers")
def dropout_with_one_key_on_all_shards(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def dropout(x):
        keep = jax.random.bernoulli(jax.random.key(7), 0.5, x.shape)
        return jnp.where(keep, 2 * x, 0.0)

    return dropout(x)


@pair.right
def dropout_with_one_mask_cut_like_the_array(x):
    keep = jax.random.bernoulli(jax.random.key(7), 0.5, x.shape)

    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P("data"))
    def dropout(x, keep):
        return jnp.where(keep, 2 * x, 0.0)

    return dropout(x, keep)


@pair.wrong(CODE, "data=4", f32(24, 5), cause="same_random_numbers")
def noise_repeated_on_every_shard(x):
    key = jax.random.key(3)

    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def noisy(x, key):
        return x + 0.1 * jax.random.normal(key, x.shape)

    return noisy(x, key)


@pair.right
def noise_with_a_key_for_each_row(x):
    keys = jax.random.split(jax.random.key(3), x.shape[0])

    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P("data"))
    def noisy(x, keys):
        return x + 0.1 * jax.vmap(lambda key: jax.random.normal(key, x.shape[1:]))(keys)

    return noisy(x, keys)


@pair.wrong(CODE, "data=4", f32(24, 5), cause="same_random_numbers")
def tokens_sampled_alike_on_every_shard(logits):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def sample(logits):
        gumbel = jax.random.gumbel(jax.random.key(11), logits.shape)
        return jax.nn.softmax(logits + gumbel)

    return sample(logits)


@pair.right
def tokens_sampled_with_a_key_for_each_row(logits):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def sample(logits):
        rows = lax.axis_index("data") * logits.shape[0] + jnp.arange(logits.shape[0])
        keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(11), row))(rows)
        gumbel = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:]))(keys)
        return jax.nn.softmax(logits + gumbel)

    return sample(logits)


# ------------------------------------------------------------------------- statistics of one shard


@pair.wrong(CODE, "model=4", f32(6, 16), cause="")
def layer_norm_of_the_local_features(x):
    @jax.shard_map(in_specs=P(None, "model"), out_specs=P(None, "model"))
    def norm(x):
        mean = x.mean(1, keepdims=True)
        return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + 1e-6)

    return norm(x)


@pair.right
def layer_norm_of_all_features(x):
    @jax.shard_map(in_specs=P(None, "model"), out_specs=P(None, "model"))
    def norm(x):
        mean = lax.pmean(x.mean(1, keepdims=True), "model")
        variance = lax.pmean(((x - mean) ** 2).mean(1, keepdims=True), "model")
        return (x - mean) / jnp.sqrt(variance + 1e-6)

    return norm(x)


@pair.wrong(CODE, "model=4", f32(6, 16), cause="")
def softmax_over_the_local_vocabulary(logits):
    @jax.shard_map(in_specs=P(None, "model"), out_specs=P(None, "model"))
    def probabilities(logits):
        return jax.nn.softmax(logits, 1)

    return probabilities(logits)


@pair.right
def softmax_over_the_whole_vocabulary(logits):
    @jax.shard_map(in_specs=P(None, "model"), out_specs=P(None, "model"))
    def probabilities(logits):
        largest = lax.pmax(lax.stop_gradient(logits).max(1, keepdims=True), "model")
        powers = jnp.exp(logits - largest)
        return powers / lax.psum(powers.sum(1, keepdims=True), "model")

    return probabilities(logits)


@pair.wrong(CODE, "seq=4", f32(24, 5), cause="")
def differences_without_a_halo(x):
    @jax.shard_map(in_specs=P("seq"), out_specs=P("seq"))
    def difference(x):
        return x - jnp.roll(x, 1, 0)

    return difference(x)


@pair.right
def differences_with_a_halo(x):
    @jax.shard_map(in_specs=P("seq"), out_specs=P("seq"))
    def difference(x):
        n = lax.axis_size("seq")
        last = lax.ppermute(x[-1:], "seq", [(i, (i + 1) % n) for i in range(n)])
        return x - jnp.concatenate([last, x[:-1]])

    return difference(x)


@pair.wrong(CODE, "data=4", f32(24, 5), cause="")
def variance_as_the_mean_of_local_variances(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P())
    def variance(x):
        return lax.pmean(x.var(0), "data")

    return variance(x)


@pair.right
def variance_about_the_common_mean(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P())
    def variance(x):
        mean = lax.pmean(x.mean(0), "data")
        return lax.pmean(((x - mean) ** 2).mean(0), "data")

    return variance(x)
