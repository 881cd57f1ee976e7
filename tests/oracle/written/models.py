"""Small models with the usual shardings: data, tensor, expert, sequence and pipeline parallel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from program import Input, ProgramTable, f32, i32

program = ProgramTable()


@program("data=2,model=4", f32(6, 5), f32(5, 16), f32(16, 3), f32(3), grad=False)
def mlp_train_step(w):
    """Batch over data, hidden layer over model; gradients inside the body; one SGD step."""

    def step(x, w1, w2, b):
        def loss(params):
            w1, w2, b = params
            hidden = jax.nn.relu(x @ w1)
            out = lax.psum(hidden @ w2, "model") + b
            return lax.pmean((out**2).mean(), "data")

        value, grads = jax.value_and_grad(loss)((w1, w2, b))
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, (w1, w2, b), grads)

    return w.shard_map(
        step,
        in_specs=(P("data"), P(None, "model"), P("model"), P()),
        out_specs=(P(), (P(None, "model"), P("model"), P())),
    )


@program("data=2,model=4", f32(6, 5), f32(5, 16), f32(16, 3), grad=False)
def adam_steps_in_a_scan(w):
    optimizer = optax.adam(0.1)

    def body(x, w1, w2):
        def loss(params):
            out = lax.psum(jnp.tanh(x @ params[0]) @ params[1], "model")
            return lax.pmean((out**2).mean(), "data")

        def step(carry, _):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        params = (w1, w2)
        carry, values = lax.scan(step, (params, optimizer.init(params)), None, length=3)
        return carry[0], values

    return w.shard_map(
        body,
        in_specs=(P("data"), P(None, "model"), P("model")),
        out_specs=((P(None, "model"), P("model")), P()),
    )


@program("x=8", f32(16, 6), f32(6, 8), f32(8, 6))
def fully_sharded_weights_gathered_layer_by_layer(w):
    def body(x, w1, w2):
        def layer(axis):
            # Dropped after use and gathered again for the gradient.
            return jax.checkpoint(
                lambda x, shard: jnp.tanh(x @ lax.all_gather(shard, "x", axis=axis, tiled=True))
            )

        out = layer(0)(layer(1)(x, w1), w2)
        return lax.pmean((out**2).mean(), "x")

    return w.shard_map(body, in_specs=(P("x"), P(None, "x"), P("x")), out_specs=P())


def _attention(q, k, v, mask=None):
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


@program("data=2,model=4", f32(4, 6, 5), f32(3, 5, 8, 2), f32(8, 2, 5))
def attention_with_heads_over_the_model_axis(w):
    def body(x, qkv, out):
        def attend(x):
            q, k, v = jnp.einsum("sd,cdhe->chse", x, qkv)
            mask = jnp.tril(jnp.ones((6, 6), bool))
            return jnp.einsum("hse,hed->sd", _attention(q, k, v, mask), out)

        return x + lax.psum(jax.vmap(attend)(x), "model")

    return w.shard_map(
        body,
        in_specs=(P("data"), P(None, None, "model"), P("model")),
        out_specs=P("data"),
    )


@program("seq=8", f32(3, 16, 4), f32(3, 16, 4), f32(3, 16, 4))
def ring_attention(w):
    """Keys and values pass around the ring; the softmax is accumulated online."""
    ring = [(i, (i + 1) % 8) for i in range(8)]

    def body(q, k, v):
        def step(carry, _):
            k, v, total, weight, largest = carry
            scores = jnp.einsum("hqd,hkd->hqk", q, k) / 2.0
            new = jnp.maximum(largest, scores.max(-1))
            scale = jnp.exp(largest - new)
            probs = jnp.exp(scores - new[..., None])
            total = total * scale[..., None] + jnp.einsum("hqk,hkd->hqd", probs, v)
            weight = weight * scale + probs.sum(-1)
            k, v = lax.ppermute((k, v), "seq", ring)
            return (k, v, total, weight, new), None

        start = jnp.zeros_like(q), jnp.zeros_like(q[..., 0]), jnp.full_like(q[..., 0], -1e9)
        carry, _ = lax.scan(step, (k, v, *start), None, length=8)
        return carry[2] / carry[3][..., None]

    return w.shard_map(body, in_specs=P(None, "seq"), out_specs=P(None, "seq"))


@program("data=2,expert=4", f32(16, 5), f32(5, 4), f32(4, 5, 6), f32(4, 6, 5))
def mixture_of_experts_with_all_to_all(w):
    def body(x, router, w1, w2):
        n_experts, capacity = 4, 2
        logits = x @ router
        expert = jnp.argmax(logits, -1)
        gate = jnp.take_along_axis(jax.nn.softmax(logits), expert[:, None], 1)
        hot = jax.nn.one_hot(expert, n_experts, dtype=jnp.int32)
        position = (jnp.cumsum(hot, 0) - 1) * hot
        slot = position.sum(-1)
        dispatch = hot[:, :, None] * jax.nn.one_hot(slot, capacity)[:, None] * 1.0
        sent = jnp.einsum("tec,td->ecd", dispatch, x)
        arrived = lax.all_to_all(sent, "expert", 0, 1, tiled=True)
        hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", arrived, w1))
        back = lax.all_to_all(jnp.einsum("ecf,efd->ecd", hidden, w2), "expert", 1, 0, tiled=True)
        return jnp.einsum("tec,ecd->td", dispatch, back) * gate

    tokens = P(("data", "expert"))
    return w.shard_map(body, in_specs=(tokens, P(), P("expert"), P("expert")), out_specs=tokens)


@program("stage=4", f32(4, 5, 5), f32(6, 3, 5))
def pipeline_of_stages(w):
    """Micro-batches pass from stage to stage; the last stage returns them."""

    def body(weight, batches):
        stage = lax.axis_index("stage")
        forward = [(i, i + 1) for i in range(3)]

        def tick(carry, t):
            feed = batches[jnp.minimum(t, 5)]
            x = jnp.where(stage == 0, feed, carry)
            y = jnp.tanh(x @ weight[0])
            return lax.ppermute(y, "stage", forward), jnp.where(stage == 3, y, 0.0)

        start = lax.pcast(jnp.zeros((3, 5)), "stage", to="varying")
        _, outs = lax.scan(tick, start, jnp.arange(9))
        return lax.psum(outs[3:], "stage")

    return w.shard_map(body, in_specs=(P("stage"), P()), out_specs=P())


@program("data=2,model=4", i32(6, 4), f32(16, 5))
def embedding_sharded_over_the_vocabulary(w):
    def body(tokens, table):
        start = lax.axis_index("model") * 4
        local = jnp.abs(tokens) % 16 - start
        inside = (local >= 0) & (local < 4)
        rows = jnp.where(inside[..., None], table[jnp.clip(local, 0, 3)], 0.0)
        embedded = lax.psum(rows, "model")
        logits = embedded @ table.T
        largest = lax.pmax(lax.stop_gradient(logits.max(-1)), "model")
        total = lax.psum(jnp.exp(logits - largest[..., None]).sum(-1), "model")
        return jnp.log(total) + largest

    return w.shard_map(body, in_specs=(P("data"), P("model")), out_specs=P("data"))


@program("x=8", f32(16, 6), f32(6, 5))
def collective_matmul_in_a_ring(w):
    def body(x, weight):
        def step(i, carry):
            rows, out = carry
            source = (lax.axis_index("x") - i) % 8
            out = lax.dynamic_update_slice(out, rows @ weight, (source * 2, 0))
            return lax.ppermute(rows, "x", [(j, (j + 1) % 8) for j in range(8)]), out

        out = lax.pcast(jnp.zeros((16, 5)), "x", to="varying")
        return lax.fori_loop(0, 8, step, (x, out))[1][None]

    return w.shard_map(body, in_specs=(P("x"), P()), out_specs=P("x"))


@program("data=8", f32(16, 6), f32(6), f32(6))
def batch_norm_over_the_global_batch(w):
    def body(x, scale, shift):
        mean = lax.pmean(x.mean(0), "data")
        variance = lax.pmean(((x - mean) ** 2).mean(0), "data")
        return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift, mean, variance

    return w.shard_map(body, in_specs=(P("data"), P(), P()), out_specs=(P("data"), P(), P()))


@program("x=2,y=4", Input((8, 16), "bfloat16"), Input((16, 12), "bfloat16"))
def mixed_precision_product(w):
    def body(x, weight):
        product = jnp.matmul(x, weight, preferred_element_type=jnp.float32)
        return lax.psum_scatter(product, "y", scatter_dimension=1, tiled=True).astype(jnp.bfloat16)

    return w.shard_map(body, in_specs=(P("x", "y"), P("y")), out_specs=P("x", "y"))


@program("x=8", f32(8, 16), f32(3))
def halo_exchange(w):
    """A stencil over a sharded row: each device receives one column from each neighbour."""

    def body(x, kernel):
        from_left = lax.ppermute(x[:, -1:], "x", [(i, (i + 1) % 8) for i in range(8)])
        from_right = lax.ppermute(x[:, :1], "x", [(i, (i - 1) % 8) for i in range(8)])
        wide = jnp.concatenate([from_left, x, from_right], 1)
        return sum(kernel[i] * wide[:, i : i + 2] for i in range(3))

    return w.shard_map(body, in_specs=(P(None, "x"), P()), out_specs=P(None, "x"))
