"""Collectives that some devices never reach, in the places where users put them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32, i32, mask
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table(grads=False)


# ------------------------------------------------------------------------------------- lax.cond


@pair.wrong("hazard.deadlock", "data=8", f32(24, 5), really="hangs")
def metrics_summed_on_the_first_device_only(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        first = lax.axis_index("data") == 0
        return lax.cond(first, lambda x: x - lax.psum(x, "data"), lambda x: x, x)  # <- here

    return step(x)


@pair.right
def metrics_summed_by_all_and_used_by_the_first(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        total = lax.psum(x.sum(), "data")
        rows = x.shape[0] * lax.axis_index("data") + jnp.arange(x.shape[0])
        return jnp.where((rows == 0)[:, None], x - total, x)

    return step(x)


@pair.wrong("hazard.deadlock", "data=4", f32(24, 5), f32(5, 3), really="hangs")
def gradients_clipped_where_the_local_norm_is_large(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P(), check_vma=False)
    def step(x, w):
        grad = jax.grad(lambda w: ((x @ w) ** 2).mean())(w)
        norm = jnp.sqrt((grad**2).sum())

        def clipped(grad):
            return lax.pmean(grad / norm, "data")  # <- here

        return lax.cond(norm > 1.6, clipped, lambda grad: grad, grad)

    return step(x, w)


@pair.right
def gradients_averaged_then_clipped(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P(), check_vma=False)
    def step(x, w):
        grad = lax.pmean(jax.grad(lambda w: ((x @ w) ** 2).mean())(w), "data")
        norm = jnp.sqrt((grad**2).sum())
        return lax.cond(norm > 1.6, lambda grad: grad / norm, lambda grad: grad, grad)

    return step(x, w)


@pair.wrong("hazard.deadlock", "data=4", f32(24, 5), f32(5), really="hangs")
def step_skipped_where_the_loss_is_not_finite(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=(P(), P()), check_vma=False)
    def step(x, w):
        loss, grad = jax.value_and_grad(lambda w: jnp.log(x @ w).mean())(w)
        finite = jnp.isfinite(loss)
        update = lax.cond(
            finite,
            lambda g: lax.pmean(g, "data"),  # <- here
            jnp.zeros_like,
            grad,
        )
        return lax.pmean(jnp.where(finite, loss, 0.0), "data"), w - 0.1 * update

    return step(x, w)


@pair.right
def step_skipped_by_all_if_any_loss_is_not_finite(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=(P(), P()), check_vma=False)
    def step(x, w):
        loss, grad = jax.value_and_grad(lambda w: jnp.log(x @ w).mean())(w)
        finite = lax.pmin(jnp.isfinite(loss).astype(jnp.int32), "data") == 1
        update = lax.cond(finite, lambda g: lax.pmean(g, "data"), jnp.zeros_like, grad)
        return jnp.where(finite, lax.pmean(loss, "data"), 0.0), w - 0.1 * update

    return step(x, w)


@pair.wrong("hazard.deadlock", "expert=4", f32(8, 12, 5), i32(8, below=3), really="hangs")
def tokens_exchanged_where_there_are_any(tokens, counts):
    @jax.shard_map(in_specs=(P("expert"), P("expert")), out_specs=P("expert"))
    def dispatch(tokens, counts):
        def send(tokens):
            return lax.all_to_all(tokens, "expert", 1, 1, tiled=True)  # <- here

        return lax.cond(counts.sum() > 2, send, lambda tokens: tokens, tokens)

    return dispatch(tokens, counts)


@pair.right
def tokens_exchanged_always_and_masked(tokens, counts):
    @jax.shard_map(in_specs=(P("expert"), P("expert")), out_specs=P("expert"))
    def dispatch(tokens, counts):
        kept = jnp.where((counts > 0)[:, None, None], tokens, 0.0)
        sent = lax.all_to_all(kept, "expert", 1, 0, tiled=True)
        return lax.all_to_all(sent, "expert", 0, 1, tiled=True)

    return dispatch(tokens, counts)


@pair.wrong("hazard.deadlock", "data=2,model=4", f32(4, 16), f32(16, 6), really="hangs")
def weights_gathered_where_the_mask_asks(x, w):
    @jax.shard_map(in_specs=(P("data"), P("model")), out_specs=P("data"), check_vma=False)
    def layer(x, w):
        needed = w.max() > 1.7
        full = lax.cond(
            needed,
            lambda w: lax.all_gather(w, "model", tiled=True),  # <- here
            lambda w: jnp.zeros((16, 6)),
            w,
        )
        return lax.pmean(x @ full, "model")

    return layer(x, w)


@pair.right
def weights_gathered_where_all_agree(x, w):
    @jax.shard_map(in_specs=(P("data"), P("model")), out_specs=P("data"), check_vma=False)
    def layer(x, w):
        needed = lax.pmax(w.max(), "model") > 1.7
        full = lax.cond(
            needed,
            lambda w: lax.all_gather(w, "model", tiled=True),
            lambda w: jnp.zeros((16, 6)),
            w,
        )
        return x @ full

    return layer(x, w)


@pair.wrong("hazard.deadlock", "data=2,model=4", f32(4, 16), really="hangs")
def halo_exchanged_along_data_by_some_of_model(x):
    # The rendezvous of a ppermute spans all devices, not only those along its axis.
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data", "model"))
    def stencil(x):
        inner = lax.axis_index("model") < 2
        n = lax.axis_size("data")
        ring = [(i, (i + 1) % n) for i in range(n)]
        return lax.cond(inner, lambda x: lax.ppermute(x, "data", ring), lambda x: x, x)  # <- here

    return stencil(x)


@pair.right
def halo_exchanged_along_data_by_all(x):
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data", "model"))
    def stencil(x):
        n = lax.axis_size("data")
        ring = [(i, (i + 1) % n) for i in range(n)]
        edge = lax.ppermute(x[-1:], "data", ring)
        return x - jnp.concatenate([edge, x[:-1]])

    return stencil(x)


@pair.also_right("data=2,model=4", f32(4, 16))
def psum_over_data_under_a_predicate_that_varies_over_model(x):
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data", "model"))
    def step(x):
        # Devices that meet along 'data' share their place in 'model', and so the predicate.
        place = lax.axis_index("model") / lax.axis_size("model")
        total = lax.cond(
            place < 0.5,
            lambda x: lax.psum(x.sum(0), "data"),
            lambda x: lax.psum(x.sum(0), "data"),
            x,
        )
        return x - total

    return step(x)


@pair.wrong("hazard.deadlock", "stage=4", f32(4, 6), f32(4, 6, 6), really="hangs")
def activations_sent_on_by_all_stages_but_the_last(x, w):
    @jax.shard_map(in_specs=(P("stage"), P("stage")), out_specs=P("stage"), check_vma=False)
    def pipeline(x, w):
        out = jnp.tanh(x @ w[0])
        n = lax.axis_size("stage")
        last = lax.axis_index("stage") == n - 1
        send = [(i, i + 1) for i in range(n - 1)]
        return lax.cond(last, lambda y: y, lambda y: lax.ppermute(y, "stage", send), out)  # <- here

    return pipeline(x, w)


@pair.right
def activations_sent_by_all_and_kept_by_the_last(x, w):
    @jax.shard_map(in_specs=(P("stage"), P("stage")), out_specs=P("stage"), check_vma=False)
    def pipeline(x, w):
        out = jnp.tanh(jnp.einsum("bi,bij->bj", x, w))
        n = lax.axis_size("stage")
        sent = lax.ppermute(out[-1:], "stage", [(i, i + 1) for i in range(n - 1)])
        return out + jnp.concatenate([sent, out[:-1]])

    return pipeline(x, w)


@pair.wrong("hazard.deadlock", "data=2,model=4", f32(4, 16), mask(16), really="hangs")
def norm_over_both_axes_under_a_mask_along_one(x, use):
    @jax.shard_map(in_specs=(P("data", "model"), P("model")), out_specs=P("data", "model"))
    def norm(x, use):
        total = lax.cond(
            use.mean() > 0.6,
            lambda x: lax.psum((x**2).sum(), ("data", "model")),  # <- here
            lambda x: jnp.float32(1.0),
            x,
        )
        return x / total

    return norm(x, use)


@pair.right
def norm_over_both_axes_with_the_mask_in_the_sum(x, use):
    @jax.shard_map(in_specs=(P("data", "model"), P("model")), out_specs=P("data", "model"))
    def norm(x, use):
        return x / lax.psum((use * x**2).sum(), ("data", "model"))

    return norm(x, use)


@pair.wrong("hazard.deadlock", "data=2,model=4", f32(4, 16), really="hangs")
def predicate_agreed_over_the_wrong_axis(x):
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data", "model"), check_vma=False)
    def step(x):
        large = lax.pmax(jnp.abs(x).max(), "data") > 1.9
        return lax.cond(large, lambda x: x - lax.pmean(x, "model"), lambda x: x, x)  # <- here

    return step(x)


@pair.right
def predicate_agreed_over_both_axes(x):
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data", "model"), check_vma=False)
    def step(x):
        large = lax.pmax(jnp.abs(x).max(), ("data", "model")) > 1.9
        mean = lambda x: lax.pmean(x.mean(1, keepdims=True), "model")  # noqa: E731 - used twice
        return lax.cond(large, lambda x: x - mean(x), lambda x: x, x)

    return step(x)


# ----------------------------------------------------------------------------------- lax.switch


@pair.wrong("hazard.deadlock", "expert=4", f32(8, 5), really="hangs")
def expert_chosen_by_place_and_only_one_communicates(x):
    def shared(x):
        return x - lax.pmean(x, "expert")  # <- here

    @jax.shard_map(in_specs=P("expert"), out_specs=P("expert"))
    def layer(x):
        kind = lax.axis_index("expert") % 3
        return lax.switch(kind, [shared, jnp.tanh, jnp.sin], x)

    return layer(x)


@pair.right
def expert_chosen_by_place_after_the_sum(x):
    @jax.shard_map(in_specs=P("expert"), out_specs=P("expert"), check_vma=False)
    def layer(x):
        mean = lax.pmean(x.mean(), "expert")
        first = lax.axis_index("expert") * x.shape[0]
        kinds = (first + jnp.arange(x.shape[0])) % 3
        shared = lambda x: x - mean  # noqa: E731 - used twice
        return jax.vmap(lambda k, x: lax.switch(k, [shared, jnp.tanh, jnp.sin], x))(kinds, x)

    return layer(x)


# --------------------------------------------------------------------------------------- loops


@pair.wrong("hazard.deadlock", "data=4", f32(24, 5), really="hangs")
def solver_that_stops_when_its_own_residual_is_small(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def solve(x):
        def unfinished(state):
            return jnp.abs(state).max() > 0.6

        def improve(state):
            return 0.5 * state - 0.01 * lax.pmean(state, "data")  # <- here

        return lax.while_loop(unfinished, improve, x)

    return solve(x)


@pair.right
def solver_that_stops_when_all_residuals_are_small(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def solve(x):
        def unfinished(state):
            return lax.pmax(jnp.abs(state).max(), "data") > 0.6

        def improve(state):
            return 0.5 * state - 0.01 * lax.pmean(state.mean(), "data")

        return lax.while_loop(unfinished, improve, x)

    return solve(x)


@pair.wrong("hazard.deadlock", "data=4", f32(24, 5), i32(4, below=9), really="hangs")
def steps_counted_by_each_device_for_itself(x, n_steps):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P("data"))
    def train(x, n_steps):
        def step(i, x):
            return x - 0.1 * lax.psum(x, "data")  # <- here

        return lax.fori_loop(0, n_steps[0], step, x)

    return train(x, n_steps)


@pair.right
def steps_counted_for_all(x, n_steps):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def train(x, n_steps):
        def step(i, x):
            return x - 0.1 * lax.pmean(x.mean(0), "data")

        return lax.fori_loop(0, n_steps[0], step, x)

    return train(x, n_steps)


@pair.wrong("hazard.deadlock", "data=4", f32(24, 5), i32(4, below=9), really="hangs")
def agreement_asked_for_in_a_condition_with_a_limit_of_its_own(x, limit):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P("data"))
    def solve(x, limit):
        def unfinished(state):
            i, x = state
            worst = lax.pmax(jnp.abs(x).max(), "data")  # <- here
            return (worst > 1e-3) & (i < limit[0])

        return lax.while_loop(unfinished, lambda s: (s[0] + 1, 0.5 * s[1]), (0, x))[1]

    return solve(x, limit)


@pair.right
def agreement_asked_for_in_a_condition_with_one_limit(x, limit):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def solve(x, limit):
        def unfinished(state):
            i, x = state
            worst = lax.pmax(jnp.abs(x).max(), "data")
            return (worst > 1e-3) & (i < limit.max())

        return lax.while_loop(unfinished, lambda s: (s[0] + 1, 0.5 * s[1]), (0, x))[1]

    return solve(x, limit)


@pair.also_right("data=2,model=4", f32(4, 16), f32(16, 16))
def decoding_until_the_rows_of_one_place_are_done(x, w):
    @jax.shard_map(in_specs=(P("data"), P("model")), out_specs=P("data"))
    def decode(x, w):
        # Devices along 'model' hold the same rows, and leave the loop together.
        def unfinished(x):
            return (jnp.abs(x).max(1) > 0.5).any()

        def step(x):
            place = lax.axis_index("model") * w.shape[0]
            mine = lax.dynamic_slice_in_dim(x, place, w.shape[0], 1)
            after = 0.4 * jnp.tanh(lax.psum(mine @ w, "model"))
            return jnp.where(jnp.abs(x).max(1, keepdims=True) > 0.5, after, x)

        return lax.while_loop(unfinished, step, x)

    return decode(x, w)


# -------------------------------------------------------------- inside other things of JAX


@pair.wrong("hazard.deadlock", "data=4", f32(24, 6), f32(3, 6, 6), really="hangs")
def layers_in_a_scan_that_some_devices_skip(x, ws):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
    def forward(x, ws):
        def layer(x, w):
            def normed(x):
                return x @ w - lax.pmean((x @ w).mean(), "data")  # <- here

            return lax.cond(x.mean() > 0, normed, lambda x: x @ w, x), None

        return lax.scan(layer, x, ws)[0]

    return forward(x, ws)


@pair.right
def layers_in_a_scan_that_all_devices_skip_together(x, ws):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
    def forward(x, ws):
        def layer(x, w):
            def normed(x):
                return x @ w - lax.pmean((x @ w).mean(), "data")

            return lax.cond(lax.pmean(x.mean(), "data") > 0, normed, lambda x: x @ w, x), None

        return lax.scan(layer, x, ws)[0]

    return forward(x, ws)


@pair.wrong("hazard.deadlock", "data=4", f32(24, 6), f32(2), really="hangs")
def branch_of_one_device_inside_a_branch_of_all(x, scale):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def step(x, scale):
        def inner(x):
            positive = x.sum() > 0
            return lax.cond(positive, lambda x: x - lax.psum(x, "data"), lambda x: x, x)  # <- here

        return lax.cond(scale.max() > -9, inner, lambda x: x, x)

    return step(x, scale)


@pair.right
def branch_of_all_inside_a_branch_of_all(x, scale):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def step(x, scale):
        def inner(x):
            positive = lax.psum(x.sum(), "data") > 0
            return lax.cond(positive, lambda x: x - lax.psum(x.sum(), "data"), lambda x: x, x)

        return lax.cond(scale.max() > -9, inner, lambda x: x, x)

    return step(x, scale)


@pair.wrong("hazard.deadlock", "data=4", f32(24, 5), f32(5), really="hangs")
def loss_whose_gradient_is_taken_through_a_parted_branch(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P(), check_vma=False)
    def step(x, w):
        def loss(w):
            out = x @ w
            centred = lax.cond(
                x.sum() > 0,
                lambda out: out - lax.pmean(out.mean(), "data"),  # <- here
                lambda out: out,
                out,
            )
            return (centred**2).sum()

        return lax.psum(jax.grad(loss)(w), "data")

    return step(x, w)


@pair.right
def loss_whose_gradient_is_taken_through_a_branch_of_all(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def step(x, w):
        def loss(w):
            out = x @ w
            centred = lax.cond(
                lax.psum(x.sum(), "data") > 0,
                lambda out: out - lax.pmean(out.mean(), "data"),
                lambda out: out,
                out,
            )
            return lax.psum((centred**2).sum(), "data")

        return jax.grad(loss)(w)

    return step(x, w)


@pair.wrong("hazard.deadlock", "data=4", f32(24, 6), f32(6, 6), really="hangs")
def stochastic_depth_with_a_key_for_each_device(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def block(x, w):
        key = jax.random.fold_in(jax.random.key(5), lax.axis_index("data"))

        @jax.checkpoint
        def sublayer(x):
            out = x @ w
            return out - lax.pmean(out.mean(), "data")  # <- here

        return lax.cond(jax.random.bernoulli(key, 0.5), sublayer, lambda x: x, x)

    return block(x, w)


@pair.right
def stochastic_depth_with_one_key(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def block(x, w):
        @jax.checkpoint
        def sublayer(x):
            out = x @ w
            return out - lax.pmean(out.mean(), "data")

        return lax.cond(jax.random.bernoulli(jax.random.key(5), 0.5), sublayer, lambda x: x, x)

    return block(x, w)


@pair.wrong("hazard.deadlock", "data=4", f32(24, 8), really="hangs")
def gradients_scattered_by_devices_that_have_large_ones(x):
    @jax.jit
    def reduced(grad):
        return lax.psum_scatter(grad, "data", scatter_dimension=0, tiled=True)  # <- here

    @jax.shard_map(in_specs=P("data"), out_specs=P("data"), check_vma=False)
    def update(x):
        grad = x.T @ x
        large = jnp.trace(grad) > 42
        return lax.cond(large, reduced, lambda grad: grad[: 8 // lax.axis_size("data")], grad)

    return update(x)


@pair.right
def gradients_scattered_by_all(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"), check_vma=False)
    def update(x):
        return lax.psum_scatter(x.T @ x, "data", scatter_dimension=0, tiled=True)

    return update(x)


@pair.also_right("data=4", f32(24, 6), mask(24))
def branches_of_single_rows_under_vmap(x, use):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P("data"), check_vma=False)
    def step(x, use):
        # Under vmap a cond becomes a select: every device computes both sides.
        total = lax.psum(x.sum(0), "data")
        return jax.vmap(lambda u, x: lax.cond(u, lambda x: x - total, lambda x: x, x))(use, x)

    return step(x, use)
