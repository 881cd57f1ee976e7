"""Gradient accumulation in a fori_loop, one psum after it, weights updated and averaged (EMA)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=8"
MICROBATCHES, LEARNING_RATE, DECAY = 3, 0.1, 0.95


def loss_fn(params, x, label):
    logits = jax.nn.relu(x @ params["hidden"]) @ params["out"]
    log_probabilities = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probabilities, label[:, None], 1).mean()


def train_step(params, ema, count, x, label):
    """Accumulate over the microbatches, which dimension 0 of `x` and `label` is."""

    def accumulate(i, carry):
        total, grads = carry
        loss, new = jax.value_and_grad(loss_fn)(params, x[i], label[i])
        return total + loss, jax.tree.map(jnp.add, grads, new)

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, grads = lax.fori_loop(0, MICROBATCHES, accumulate, (jnp.zeros(()), zeros))
    grads = jax.tree.map(lambda g: lax.pmean(g, "data") / MICROBATCHES, grads)
    loss = lax.pmean(total, "data") / MICROBATCHES
    params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)
    # Bias correction: the average starts at zero.
    ema = jax.tree.map(lambda e, p: DECAY * e + (1 - DECAY) * p, ema, params)
    count = count + 1
    corrected = jax.tree.map(lambda e: e / (1 - DECAY**count), ema)
    return params, ema, count, {"loss": loss, "averaged": corrected}


def step(params, ema, count, x, label):
    batch = P(None, "data")
    return jax.shard_map(
        train_step,
        in_specs=(P(), P(), P(), batch, batch),
        out_specs=P(),
        check_vma=False,
    )(params, ema, count, x, label)


def reference(params, ema, count, x, label):
    loss, grads = jax.value_and_grad(loss_fn)(params, x.reshape(-1, x.shape[-1]), label.reshape(-1))
    params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)
    ema = jax.tree.map(lambda e, p: DECAY * e + (1 - DECAY) * p, ema, params)
    corrected = jax.tree.map(lambda e: e / (1 - DECAY ** (count + 1)), ema)
    return params, ema, count + 1, {"loss": loss, "averaged": corrected}


def example_args():
    rng = np.random.default_rng(53)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {"hidden": normal(6, 10), "out": normal(10, 4)}
    ema = jax.tree.map(lambda p: 0.1 * p + 0.01, params)
    x = 2 * normal(MICROBATCHES, 24, 6)
    label = jnp.asarray(rng.integers(0, 4, (MICROBATCHES, 24)))
    return params, ema, jnp.asarray(2, jnp.int32), x, label


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="running_sum_reduced_in_the_loop",
        old="        return total + loss, jax.tree.map(jnp.add, grads, new)\n",
        new="        grads = jax.tree.map(jnp.add, grads, new)\n"
        '        return total + loss, lax.psum(grads, "data")\n',
        also=(
            (
                'lambda g: lax.pmean(g, "data") / MICROBATCHES',
                'lambda g: g / MICROBATCHES / lax.axis_size("data")',
            ),
        ),
        causes=("bias_n_times",),
    ),
    Bug(
        name="summed_instead_of_averaged",
        old='lambda g: lax.pmean(g, "data") / MICROBATCHES',
        new='lambda g: lax.psum(g, "data") / MICROBATCHES',
        causes=("gradient_scaled_by_n",),
    ),
    Bug(
        name="weights_summed_into_the_average",
        old="lambda e, p: DECAY * e + (1 - DECAY) * p, ema, params)\n    count",
        new='lambda e, p: DECAY * e + (1 - DECAY) * lax.psum(p, "data"), ema, params)\n    count',
        causes=("factor_of_n", "bias_n_times"),
    ),
    Bug(
        name="only_the_last_microbatch_is_reduced",
        old="        return total + loss, jax.tree.map(jnp.add, grads, new)\n",
        new="        last = i == MICROBATCHES - 1\n"
        '        new = jax.tree.map(lambda g: jnp.where(last, lax.pmean(g, "data"), g), new)\n'
        "        return total + loss, jax.tree.map(jnp.add, grads, new)\n",
        code="hazard.replicas_differ",
        causes=("missing_pmean",),
        also=(('lambda g: lax.pmean(g, "data") / MICROBATCHES', "lambda g: g / MICROBATCHES"),),
    ),
)
