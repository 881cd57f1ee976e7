"""Values that grow or shrink with the number of devices: sums for means, means for sums, twice."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32, mask
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table()
CODE = "hazard.mesh_dependent"


# ------------------------------------------------------------------------------------ factor of n


@pair.wrong(CODE, "data=4", f32(24, 5), f32(5), cause="factor_of_n")
def loss_summed_over_devices_instead_of_averaged(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def loss(x, w):
        return lax.psum(((x @ w) ** 2).mean(), "data")

    return loss(x, w)


@pair.right
def loss_averaged_over_devices(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def loss(x, w):
        return lax.pmean(((x @ w) ** 2).mean(), "data")

    return loss(x, w)


@pair.wrong(CODE, "data=4", f32(24, 5), f32(5, 3), cause="factor_of_n")
def gradients_of_a_mean_summed(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P(), check_vma=False)
    def gradient(x, w):
        grads = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
        return lax.psum(grads, "data")

    return gradient(x, w)


@pair.right
def gradients_of_a_mean_averaged(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P(), check_vma=False)
    def gradient(x, w):
        grads = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
        return lax.pmean(grads, "data")

    return gradient(x, w)


@pair.wrong(CODE, "data=2,model=2", f32(4, 6), f32(6, 5), cause="factor_of_n")
def activations_summed_over_an_axis_that_repeats_them(x, w):
    @jax.shard_map(in_specs=(P("data"), P(None, "model")), out_specs=P())
    def norm(x, w):
        hidden = jnp.tanh(x)
        parts = lax.pcast((hidden**2).sum(), "model", to="varying") + 0.0 * w[0, 0]
        return lax.psum(parts, ("data", "model"))

    return norm(x, jnp.pad(w, ((0, 0), (0, 1))))


@pair.right
def activations_summed_over_the_axis_that_splits_them(x, w):
    @jax.shard_map(in_specs=(P("data"), P(None, "model")), out_specs=P())
    def norm(x, w):
        hidden = jnp.tanh(x @ w)
        return lax.psum((hidden**2).sum(), ("data", "model"))

    return norm(x, jnp.pad(w, ((0, 0), (0, 1))))


@pair.wrong(CODE, "data=4", f32(24, 5), mask(24), cause="factor_of_n")
def accuracy_summed_over_devices(scores, hit):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=(P(), P()))
    def metrics(scores, hit):
        return lax.pmean(scores.mean(), "data"), lax.psum(hit.mean(), "data")

    return metrics(scores, hit)


@pair.right
def accuracy_averaged_over_devices(scores, hit):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=(P(), P()))
    def metrics(scores, hit):
        return lax.pmean(scores.mean(), "data"), lax.pmean(hit.mean(), "data")

    return metrics(scores, hit)


# ----------------------------------------------------------------------------------- divided by n


@pair.wrong(CODE, "model=4", f32(6, 16), f32(16, 5), cause="divided_by_n")
def partial_products_averaged(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model")), out_specs=P())
    def matmul(x, w):
        return lax.pmean(x @ w, "model")

    return matmul(x, w)


@pair.right
def partial_products_summed(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model")), out_specs=P())
    def matmul(x, w):
        return lax.psum(x @ w, "model")

    return matmul(x, w)


@pair.wrong(CODE, "data=4", f32(24, 5), f32(5), cause="divided_by_n")
def loss_divided_by_the_whole_batch_and_by_the_devices(x, w):
    n_rows = x.shape[0]

    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def loss(x, w):
        return lax.pmean(((x @ w) ** 2).sum() / n_rows, "data")

    return loss(x, w)


@pair.right
def loss_divided_by_the_whole_batch(x, w):
    n_rows = x.shape[0]

    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def loss(x, w):
        return lax.psum(((x @ w) ** 2).sum() / n_rows, "data")

    return loss(x, w)


@pair.wrong(CODE, "data=4", f32(24, 8), cause="divided_by_n")
def scattered_gradients_averaged_twice(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def reduce(x):
        grad = x.T @ x / 24
        shard = lax.psum_scatter(grad, "data", scatter_dimension=0, tiled=True)
        return shard / lax.axis_size("data")

    return reduce(x)


@pair.right
def scattered_gradients_averaged_once(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def reduce(x):
        grad = x.T @ x / x.shape[0]
        shard = lax.psum_scatter(grad, "data", scatter_dimension=0, tiled=True)
        return shard / lax.axis_size("data")

    return reduce(x)


# ---------------------------------------------------------------------------- bias counted n times


@pair.wrong(CODE, "model=4", f32(6, 16), f32(16, 5), f32(5), cause="bias_n_times")
def bias_added_before_the_sum(x, w, b):
    @jax.shard_map(in_specs=(P(None, "model"), P("model"), P()), out_specs=P())
    def dense(x, w, b):
        return lax.psum(x @ w + b, "model")

    return dense(x, w, b)


@pair.right
def bias_added_after_the_sum(x, w, b):
    @jax.shard_map(in_specs=(P(None, "model"), P("model"), P()), out_specs=P())
    def dense(x, w, b):
        return lax.psum(x @ w, "model") + b

    return dense(x, w, b)


@pair.wrong(CODE, "data=2,model=2", f32(6, 5), f32(5, 8), f32(8, 3), f32(3), cause="bias_n_times")
def mlp_with_the_output_bias_inside_the_sum(x, w1, w2, b):
    specs = (P("data"), P(None, "model"), P("model"), P())

    @jax.shard_map(in_specs=specs, out_specs=P("data"))
    def mlp(x, w1, w2, b):
        return lax.psum(jnp.tanh(x @ w1) @ w2 + b, "model")

    return mlp(x, w1, w2, b)


@pair.right
def mlp_with_the_output_bias_after_the_sum(x, w1, w2, b):
    specs = (P("data"), P(None, "model"), P("model"), P())

    @jax.shard_map(in_specs=specs, out_specs=P("data"))
    def mlp(x, w1, w2, b):
        return lax.psum(jnp.tanh(x @ w1) @ w2, "model") + b

    return mlp(x, w1, w2, b)


@pair.wrong(CODE, "model=4", f32(6, 16), f32(16, 5), cause="bias_n_times")
def residual_added_before_the_sum(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model"), P()), out_specs=P())
    def block(x, w, residual):
        return lax.psum(x @ w + residual, "model")

    return block(x, w, x[:, :5])


@pair.right
def residual_added_after_the_sum(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model"), P()), out_specs=P())
    def block(x, w, residual):
        return lax.psum(x @ w, "model") + residual

    return block(x, w, x[:, :5])


# --------------------------------------------------------------------------- gradient scaled by n


@pair.wrong(CODE, "data=4", f32(24, 5), f32(5), cause="gradient_scaled_by_n")
def gradient_of_a_psum_with_the_check_off(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=(P(), P()), check_vma=False)
    def step(x, w):
        def loss(w):
            return lax.psum(((x @ w) ** 2).sum(), "data") / 24

        value, grad = jax.value_and_grad(loss)(w)
        return value, lax.psum(grad, "data")

    return step(x, w)


@pair.right
def gradient_of_a_psum_with_the_check_on(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=(P(), P()))
    def step(x, w):
        def loss(w):
            return lax.psum(((x @ w) ** 2).sum(), "data") / 24

        return jax.value_and_grad(loss)(w)

    return step(x, w)


@pair.wrong(CODE, "model=4", f32(6, 8), f32(8, 16), f32(16, 5), cause="gradient_scaled_by_n")
def reduction_whose_own_gradient_sums_again(x, w1, w2):
    @jax.custom_vjp
    def reduce_out(y):
        return lax.psum(y, "model")

    def backward(_, g):
        return (lax.pcast(lax.psum(g, "model"), "model", to="varying"),)

    def forward(y):
        return reduce_out(y), None

    reduce_out.defvjp(forward, backward)

    @jax.shard_map(in_specs=(P(), P(None, "model"), P("model")), out_specs=P())
    def mlp(x, w1, w2):
        return reduce_out(jnp.tanh(x @ w1) @ w2)

    return mlp(x, w1, w2)


@pair.right
def reduction_whose_own_gradient_passes_on(x, w1, w2):
    @jax.custom_vjp
    def reduce_out(y):
        return lax.psum(y, "model")

    def forward(y):
        return reduce_out(y), None

    def backward(_, g):
        return (lax.pcast(g, "model", to="varying"),)

    reduce_out.defvjp(forward, backward)

    @jax.shard_map(in_specs=(P(), P(None, "model"), P("model")), out_specs=P())
    def mlp(x, w1, w2):
        return reduce_out(jnp.tanh(x @ w1) @ w2)

    return mlp(x, w1, w2)


# ---------------------------------------------------------------------------------- mean of means


@pair.wrong(CODE, "data=4", f32(24, 5), mask(24, 5), cause="mean_of_means")
def masked_loss_averaged_by_device(losses, use):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P())
    def loss(losses, use):
        return lax.pmean((losses * use).sum() / use.sum(), "data")

    return loss(losses, use)


@pair.right
def masked_loss_averaged_by_token(losses, use):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P())
    def loss(losses, use):
        return lax.psum((losses * use).sum(), "data") / lax.psum(use.sum(), "data")

    return loss(losses, use)


@pair.wrong(CODE, "data=4", f32(24, 5), mask(24), cause="mean_of_means")
def rows_without_padding_averaged_by_device(x, valid):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P())
    def mean(x, valid):
        weight = valid.astype(x.dtype)[:, None]
        return lax.pmean((x * weight).sum(0) / weight.sum(), "data")

    return mean(x, valid)


@pair.right
def rows_without_padding_averaged_by_row(x, valid):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P())
    def mean(x, valid):
        weight = valid.astype(x.dtype)[:, None]
        return lax.psum((x * weight).sum(0), "data") / lax.psum(weight.sum(), "data")

    return mean(x, valid)
