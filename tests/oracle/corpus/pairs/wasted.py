"""Programs that are right but communicate or store more than necessary."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table(grads=False)


# --------------------------------------------------------------------- waste.replicated


@pair.wrong("waste.replicated", "data=8", f32(24, 64), f32(64, 300_000), read_only=True)
def embedding_whole_on_every_device(x, table):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))  # <- here
    def logits(x, table):
        return jax.nn.logsumexp(x @ table, 1)

    return logits(x, table)  # <- here


@pair.right
def embedding_cut_over_the_devices(x, table):
    @jax.shard_map(in_specs=(P(), P(None, "data")), out_specs=P())
    def logits(x, table):
        part = x @ table
        largest = lax.pmax(part.max(1), "data")
        return jnp.log(lax.psum(jnp.exp(part - largest[:, None]).sum(1), "data")) + largest

    return logits(x, table)


@pair.wrong("waste.replicated", "data=2,model=4", f32(4, 4100), f32(4100, 4104), read_only=True)
def kernel_left_whole(x, w):
    specs = (P("data"), P(None, None))

    @jax.shard_map(in_specs=specs, out_specs=P("data"), check_vma=False)  # <- here
    def dense(x, w):
        return jnp.tanh(x @ w)

    return dense(x, w)  # <- here


@pair.right
def kernel_cut_over_model(x, w):
    @jax.shard_map(in_specs=(P("data"), P(None, "model")), out_specs=P("data", "model"))
    def dense(x, w):
        return jnp.tanh(x @ w)

    return dense(x, w)


# -------------------------------------------------------------- waste.all_gather_then_slice


@pair.wrong("waste.all_gather_then_slice", "data=4", f32(24, 5))
def all_rows_gathered_to_use_ones_own(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        full = lax.all_gather(x, "data", tiled=True)  # <- here
        mine = lax.dynamic_slice_in_dim(full, lax.axis_index("data") * x.shape[0], x.shape[0])
        return jnp.tanh(mine)

    return step(x)


@pair.right
def own_rows_used(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        return jnp.tanh(x)

    return step(x)


@pair.wrong("waste.all_gather_then_slice", "model=4", f32(6, 16), f32(16, 5))
def weights_gathered_to_use_the_shard(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model")), out_specs=P())
    def matmul(x, w):
        full = lax.all_gather(w, "model", tiled=True)  # <- here
        rows = w.shape[0]
        first = lax.axis_index("model") * rows
        return lax.psum(x @ lax.dynamic_slice(full, (first, 0), (rows, 5)), "model")

    return matmul(x, w)


@pair.right
def weights_used_as_they_are_cut(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model")), out_specs=P())
    def matmul(x, w):
        return lax.psum(x @ w, "model")

    return matmul(x, w)


@pair.wrong("waste.all_gather_then_slice", "model=4", f32(4, 6, 16))
def heads_gathered_and_one_taken(x):
    @jax.shard_map(in_specs=P("model"), out_specs=P("model"), check_vma=False)
    def attention(x):
        heads = lax.all_gather(x, "model")  # <- here
        mine = lax.dynamic_index_in_dim(heads, lax.axis_index("model"), 0, keepdims=False)
        return jax.nn.softmax(mine)

    return attention(x)


@pair.right
def heads_gathered_and_all_used(x):
    @jax.shard_map(in_specs=P("model"), out_specs=P(), check_vma=False)
    def attention(x):
        heads = lax.all_gather(x, "model", tiled=True)
        return jax.nn.softmax(heads, 0)

    return attention(x)


# ---------------------------------------------------------------- waste.psum_then_slice


@pair.wrong("waste.psum_then_slice", "data=4", f32(24, 8))
def gradients_summed_to_use_ones_own_rows(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def reduce(x):
        full = lax.psum(x.T @ x, "data")  # <- here
        rows = 8 // lax.axis_size("data")
        return lax.dynamic_slice_in_dim(full, lax.axis_index("data") * rows, rows)

    return reduce(x)


@pair.right
def gradients_summed_and_scattered(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def reduce(x):
        return lax.psum_scatter(x.T @ x, "data", scatter_dimension=0, tiled=True)

    return reduce(x)


@pair.wrong("waste.psum_then_slice", "model=4", f32(8, 16), f32(16, 5))
def activations_summed_then_cut_along_the_sequence(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model")), out_specs=P("model"))
    def row_parallel(x, w):
        full = lax.psum(x @ w, "model")  # <- here
        rows = 8 // lax.axis_size("model")
        first = lax.axis_index("model") * rows
        return jnp.tanh(lax.dynamic_slice(full, (first, 0), (rows, 5)))

    return row_parallel(x, w)


@pair.right
def activations_scattered_along_the_sequence(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model")), out_specs=P("model"))
    def row_parallel(x, w):
        return jnp.tanh(lax.psum_scatter(x @ w, "model", scatter_dimension=0, tiled=True))

    return row_parallel(x, w)


@pair.wrong("waste.psum_then_slice", "data=2,model=4", f32(4, 8, 16))
def mean_over_model_cut_again_over_model(x):
    @jax.shard_map(in_specs=P("data", None, "model"), out_specs=P("data", "model"), check_vma=False)
    def step(x):
        total = lax.pmean(x.sum(2), "model")  # <- here
        width = total.shape[1] // lax.axis_size("model")
        part = lax.dynamic_slice_in_dim(total, lax.axis_index("model") * width, width, 1)
        return part * lax.axis_size("model")

    return step(x)


@pair.right
def sum_over_model_scattered_over_model(x):
    @jax.shard_map(in_specs=P("data", None, "model"), out_specs=P("data", "model"), check_vma=False)
    def step(x):
        return lax.psum_scatter(x.sum(2), "model", scatter_dimension=1, tiled=True)

    return step(x)


# ----------------------------------------------------------------- waste.loop_invariant_collective


@pair.wrong("waste.loop_invariant_collective", "data=4", f32(24, 6), f32(8, 6))
def weights_gathered_again_in_every_step(x, w):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P("data"), check_vma=False)
    def run(x, w):
        def step(x, _):
            full = lax.all_gather(w, "data", tiled=True)  # <- here
            return jnp.tanh(x @ full[:6]), None

        return lax.scan(step, x, None, length=5)[0]

    return run(x, w)


@pair.right
def weights_gathered_once_before_the_loop(x, w):
    @jax.shard_map(in_specs=(P("data"), P("data")), out_specs=P("data"), check_vma=False)
    def run(x, w):
        full = lax.all_gather(w, "data", tiled=True)

        def step(x, _):
            return jnp.tanh(x @ full[:6]), None

        return lax.scan(step, x, None, length=5)[0]

    return run(x, w)


@pair.wrong("waste.loop_invariant_collective", "data=4", f32(24, 6))
def norm_of_the_inputs_summed_in_every_turn(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def iterate(x):
        def turn(i, state):
            norm = lax.psum((x**2).sum(), "data")  # <- here
            return state + x / norm

        return lax.fori_loop(0, 7, turn, x)

    return iterate(x)


@pair.right
def norm_of_the_inputs_summed_once(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def iterate(x):
        norm = lax.psum((x**2).sum(), "data")
        return lax.fori_loop(0, 7, lambda i, state: state + x / norm, x)

    return iterate(x)


@pair.wrong("waste.loop_invariant_collective", "data=4", f32(24, 6), f32(3, 6, 6))
def mask_count_summed_in_every_layer(x, ws):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def forward(x, ws):
        used = (x > 0).sum()

        def layer(h, w):
            n_used = lax.psum(used, "data")  # <- here
            return jnp.tanh(h @ w) / n_used, None

        return lax.scan(layer, x, ws)[0]

    return forward(x, ws)


@pair.right
def mask_count_of_each_layer(x, ws):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def forward(x, ws):
        def layer(h, w):
            n_used = lax.psum((h > 0).sum(), "data")
            return jnp.tanh(h @ w) / n_used, None

        return lax.scan(layer, x, ws)[0]

    return forward(x, ws)
