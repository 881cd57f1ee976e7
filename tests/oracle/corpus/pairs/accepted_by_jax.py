"""Programs that JAX accepts and that do not do what they say: psums of replicated values, ignored
axis orders and constraints.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table()


# ------------------------------------------------------------------ hazard.psum_of_replicated
#
# Where nothing but the scale is wrong and the scale is then thrown away. Where it is kept, the
# result depends on the mesh, and that is the finding (scaled.py).


@pair.wrong("hazard.psum_of_replicated", "data=4", f32(24, 5), f32(5))
def sign_of_gradients_that_jax_has_summed_already(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def step(x, w):
        def loss(w):
            return lax.pmean(((x @ w) ** 2).mean(), "data")

        grads = lax.psum(jax.grad(loss)(w), "data")  # <- here
        return w - 0.1 * jnp.sign(grads)

    return step(x, w)


@pair.right
def sign_of_gradients_as_jax_has_summed_them(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def step(x, w):
        def loss(w):
            return lax.pmean(((x @ w) ** 2).mean(), "data")

        return w - 0.1 * jnp.sign(jax.grad(loss)(w))

    return step(x, w)


@pair.wrong("hazard.psum_of_replicated", "data=2,model=4", f32(4, 16), f32(16, 5))
def prediction_from_logits_summed_over_copies(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
    def predict(x, w):
        return jnp.argmax(lax.psum(x @ w, "model"), 1)  # <- here

    return predict(x, w)


@pair.right
def prediction_from_logits_summed_over_parts(x, w):
    @jax.shard_map(in_specs=(P("data", "model"), P("model")), out_specs=P("data"), check_vma=False)
    def predict(x, w):
        return jnp.argmax(lax.psum(x @ w, "model"), 1)

    return predict(x, w)


@pair.wrong("hazard.psum_of_replicated", "data=4", f32(24, 5), f32(5))
def step_accepted_by_comparing_two_sums_of_copies(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def search(x, w):
        loss = lambda w: lax.pmean(((x @ w) ** 2).mean(), "data")  # noqa: E731
        smaller = 0.9 * w
        accept = lax.psum(loss(smaller), "data") < loss(w) * lax.axis_size("data")  # <- here
        return jnp.where(accept, smaller, w)

    return search(x, w)


@pair.right
def step_accepted_by_comparing_two_losses(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def search(x, w):
        loss = lambda w: lax.pmean(((x @ w) ** 2).mean(), "data")  # noqa: E731
        smaller = 0.9 * w
        return jnp.where(loss(smaller) < loss(w), smaller, w)

    return search(x, w)


@pair.also_right("data=4", f32(24, 5))
def loss_averaged_twice(x):
    # The mean of equal copies is the copy: needless, and harmless.
    @jax.shard_map(in_specs=P("data"), out_specs=P())
    def loss(x):
        return lax.pmean(lax.pmean((x**2).mean(), "data"), "data")

    return loss(x)


@pair.also_right("data=4", f32(24, 5), f32(5))
def gradients_that_jax_has_summed_averaged_again(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def step(x, w):
        def loss(w):
            return lax.pmean(((x @ w) ** 2).mean(), "data")

        return w - 0.1 * lax.pmean(jax.grad(loss)(w), "data")

    return step(x, w)


@pair.also_right("data=4", f32(24, 5), f32(5))
def weight_decay_summed_over_copies_and_divided_again(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def loss(x, w):
        decay = lax.psum((w**2).sum(), "data") / lax.axis_size("data")
        return lax.pmean(((x @ w) ** 2).mean(), "data") + 0.1 * decay

    return loss(x, w)


@pair.also_right("data=4", f32(24, 5))
def devices_counted_with_a_sum_of_ones(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P())
    def mean(x):
        return lax.psum(x.mean(0), "data") / lax.psum(1, "data")

    return mean(x)


# ------------------------------------------------------------------ hazard.ppermute_axis_order


@pair.wrong("hazard.ppermute_axis_order", "data=2,model=4", f32(16, 5))
def exchange_over_two_axes_in_another_order_than_the_mesh(x):
    @jax.shard_map(in_specs=P(("data", "model")), out_specs=P(("data", "model")))
    def neighbours(x):
        n = lax.axis_size(("model", "data"))
        there = [(i, (i + 1) % n) for i in range(n)]
        back = [(b, a) for a, b in there]
        moved = lax.ppermute(x, ("model", "data"), there)  # <- here
        return x + lax.ppermute(moved, ("data", "model"), back)

    return neighbours(x)


@pair.right
def exchange_over_two_axes_in_the_order_of_the_mesh(x):
    @jax.shard_map(in_specs=P(("data", "model")), out_specs=P(("data", "model")))
    def neighbours(x):
        n = lax.axis_size(("data", "model"))
        there = [(i, (i + 1) % n) for i in range(n)]
        last = lax.ppermute(x[-1:], ("data", "model"), there)
        return x + jnp.concatenate([last, x[:-1]])

    return neighbours(x)


@pair.wrong("hazard.ppermute_axis_order", "stage=2,data=4", f32(16, 5))
def two_partners_named_by_data_first(x):
    @jax.shard_map(in_specs=P(("stage", "data")), out_specs=P(("stage", "data")))
    def swap(x):
        n = lax.axis_size("stage") * lax.axis_size("data")
        pairs = [(i, n - 1 - i) for i in range(n)]
        moved = lax.ppermute(x, ("data", "stage"), pairs)  # <- here
        return x * lax.ppermute(moved, ("stage", "data"), pairs)

    return swap(x)


@pair.right
def two_partners_named_by_stage_first(x):
    @jax.shard_map(in_specs=P(("stage", "data")), out_specs=P(("stage", "data")))
    def swap(x):
        n = lax.axis_size("stage") * lax.axis_size("data")
        pairs = [(i, n - 1 - i) for i in range(n)]
        moved = lax.ppermute(x, ("stage", "data"), pairs)
        return x * lax.ppermute(moved, ("stage", "data"), pairs)

    return swap(x)


# ----------------------------------------------------------- hazard.constraint_replicates


@pair.wrong("hazard.constraint_replicates", "data=2,model=4", f32(6, 10))
def hidden_layer_that_does_not_divide(x):
    @jax.jit
    def layer(x):
        hidden = jnp.tanh(x)
        return lax.with_sharding_constraint(hidden, P("data", "model")).sum()  # <- here

    return layer(x)


@pair.right
def hidden_layer_padded_to_divide(x):
    @jax.jit
    def layer(x):
        hidden = jnp.pad(jnp.tanh(x), ((0, 0), (0, 2)))
        return lax.with_sharding_constraint(hidden, P("data", "model")).sum()

    return layer(x)


@pair.wrong("hazard.constraint_replicates", "data=4", f32(24, 5))
def last_batch_that_is_too_small(x):
    @jax.jit
    def evaluate(x):
        rest = x[:22]
        rest = lax.with_sharding_constraint(rest, P("data"))  # <- here
        return (rest**2).mean()

    return evaluate(x)


@pair.right
def last_batch_padded_and_masked(x):
    @jax.jit
    def evaluate(x):
        rows = lax.with_sharding_constraint(x, P("data"))
        return jnp.where(jnp.arange(24)[:, None] < 22, rows**2, 0.0).sum() / (22 * 5)

    return evaluate(x)
