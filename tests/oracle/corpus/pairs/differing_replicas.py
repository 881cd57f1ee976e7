"""Outputs declared replicated whose values differ by device, which `check_vma=False` allows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32, i32
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table()
CODE = "hazard.replicas_differ"


@pair.wrong(CODE, "model=4", f32(6, 16), f32(16, 5), cause="missing_psum", really="differs")
def row_parallel_matmul_without_psum(x, w):
    @jax.shard_map(  # <- here
        in_specs=(P(None, "model"), P("model")), out_specs=P(), check_vma=False
    )
    def matmul(x, w):
        return x @ w

    return matmul(x, w)


@pair.right
def row_parallel_matmul(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model")), out_specs=P(), check_vma=False)
    def matmul(x, w):
        return lax.psum(x @ w, "model")

    return matmul(x, w)


@pair.wrong(CODE, "data=4", f32(24, 5), f32(5), cause="missing_pmean", really="differs")
def loss_without_pmean(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P(), check_vma=False)  # <- here
    def loss(x, w):
        return ((x @ w) ** 2).mean()

    return loss(x, w)


@pair.right
def loss_with_pmean(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P(), check_vma=False)
    def loss(x, w):
        return lax.pmean(((x @ w) ** 2).mean(), "data")

    return loss(x, w)


@pair.wrong(CODE, "data=4", f32(24, 5), f32(5, 3), cause="missing_pmean", really="differs")
def parameters_that_drift_apart(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=(P(), P()), check_vma=False)  # <- here
    def step(x, w):
        loss, grad = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
        return lax.pmean(loss, "data"), w - 0.1 * grad

    return step(x, w)


@pair.right
def parameters_that_stay_together(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=(P(), P()), check_vma=False)
    def step(x, w):
        loss, grad = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
        return lax.pmean(loss, "data"), w - 0.1 * lax.pmean(grad, "data")

    return step(x, w)


@pair.wrong(CODE, "data=4", f32(24, 5), cause="missing_pmax", really="differs")
def largest_activation_without_pmax(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P(), check_vma=False)  # <- here
    def largest(x):
        return jnp.abs(x).max(0)

    return largest(x)


@pair.right
def largest_activation(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P(), check_vma=False)
    def largest(x):
        return lax.pmax(jnp.abs(x).max(0), "data")

    return largest(x)


@pair.wrong(CODE, "data=2,model=4", f32(4, 16), f32(16, 3), cause="missing_psum", really="differs")
def sum_over_one_of_two_axes(x, w):
    @jax.shard_map(  # <- here
        in_specs=(P("data", "model"), P("model")), out_specs=P(), check_vma=False
    )
    def loss(x, w):
        return lax.psum((jnp.sin(x) @ w).sum(0), "model")

    return loss(x, w)


@pair.right
def sum_over_both_axes(x, w):
    @jax.shard_map(in_specs=(P("data", "model"), P("model")), out_specs=P(), check_vma=False)
    def loss(x, w):
        return lax.psum((jnp.sin(x) @ w).sum(0), ("data", "model"))

    return loss(x, w)


@pair.wrong(CODE, "model=4", f32(6, 5), cause="", really="differs")
def dropout_with_a_key_for_each_copy(x):
    @jax.shard_map(in_specs=P(), out_specs=P(), check_vma=False)  # <- here
    def dropout(x):
        key = jax.random.fold_in(jax.random.key(0), lax.axis_index("model"))
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0.0)

    return dropout(x)


@pair.right
def dropout_with_one_key_for_all_copies(x):
    @jax.shard_map(in_specs=P(), out_specs=P(), check_vma=False)
    def dropout(x):
        return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), 2 * x, 0.0)

    return dropout(x)


@pair.wrong(CODE, "data=4", f32(24, 5), f32(5), cause="missing_pmean", really="differs")
def running_mean_of_the_local_batch(x, running):
    @jax.shard_map(  # <- here
        in_specs=(P("data"), P()), out_specs=(P("data"), P()), check_vma=False
    )
    def batch_norm(x, running):
        mean = lax.pmean(x.mean(0), "data")
        return x - mean, 0.9 * running + 0.1 * x.mean(0)

    return batch_norm(x, running)


@pair.right
def running_mean_of_the_whole_batch(x, running):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=(P("data"), P()), check_vma=False)
    def batch_norm(x, running):
        mean = lax.pmean(x.mean(0), "data")
        return x - mean, 0.9 * running + 0.1 * mean

    return batch_norm(x, running)


@pair.wrong(CODE, "model=4", f32(6, 16), cause="", really="differs")
def prediction_among_the_local_part_of_the_vocabulary(logits):
    @jax.shard_map(in_specs=P(None, "model"), out_specs=P(), check_vma=False)  # <- here
    def predict(logits):
        return jnp.argmax(logits, 1)

    return predict(logits)


@pair.right
def prediction_among_the_whole_vocabulary(logits):
    @jax.shard_map(in_specs=P(None, "model"), out_specs=P(), check_vma=False)
    def predict(logits):
        return jnp.argmax(lax.all_gather(logits, "model", axis=1, tiled=True), 1)

    return predict(logits)


@pair.wrong(CODE, "data=4", f32(24, 5), i32(24, below=5), cause="missing_psum", really="differs")
def number_of_hits_of_each_device(logits, labels):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P(), check_vma=False)  # <- here
    def hits(logits, labels):
        return (jnp.argmax(logits, 1) == labels).sum()

    return hits(logits, labels)


@pair.right
def number_of_hits_of_all_devices(logits, labels):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P(), check_vma=False)
    def hits(logits, labels):
        return lax.psum((jnp.argmax(logits, 1) == labels).sum(), "data")

    return hits(logits, labels)


@pair.wrong(CODE, "data=4", f32(24, 5), f32(5), cause="missing_psum", really="differs")
def gradients_accumulated_and_never_summed(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P(), check_vma=False)  # <- here
    def accumulate(x, w):
        def add(total, rows):
            return total + jax.grad(lambda w: (jnp.tanh(rows @ w) ** 2).sum())(w), None

        return lax.scan(add, jnp.zeros_like(w), x.reshape(2, -1, 5))[0]

    return accumulate(x, w)


@pair.right
def gradients_accumulated_then_summed(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P(), check_vma=False)
    def accumulate(x, w):
        def add(total, rows):
            return total + jax.grad(lambda w: (jnp.tanh(rows @ w) ** 2).sum())(w), None

        return lax.psum(lax.scan(add, jnp.zeros_like(w), x.reshape(2, -1, 5))[0], "data")

    return accumulate(x, w)


@pair.wrong(CODE, "data=4", f32(24, 5), cause="", really="differs")
def ring_gather_in_the_order_of_arrival(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P(), check_vma=False)  # <- here
    def gather(x):
        n = lax.axis_size("data")
        ring = [(i, (i + 1) % n) for i in range(n)]
        mine = lax.axis_index("data")
        out, block = jnp.zeros((n, *x.shape)), x
        for k in range(n):
            out = out.at[(mine + k) % n].set(block)
            block = lax.ppermute(block, "data", ring)
        return out.reshape(-1, x.shape[1])

    return gather(x)


@pair.right
def ring_gather_in_the_order_of_the_mesh(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P(), check_vma=False)
    def gather(x):
        n = lax.axis_size("data")
        ring = [(i, (i + 1) % n) for i in range(n)]
        mine = lax.axis_index("data")
        out, block = jnp.zeros((n, *x.shape)), x
        for k in range(n):
            out = out.at[(mine - k) % n].set(block)
            block = lax.ppermute(block, "data", ring)
        return out.reshape(-1, x.shape[1])

    return gather(x)
