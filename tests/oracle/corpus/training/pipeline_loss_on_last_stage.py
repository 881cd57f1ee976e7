"""Pipeline: embedding on the first stage, head and loss on the last, gradients inside shard_map."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "stage=4"
LAYERS, VOCABULARY, DIM, N_MICRO, LEARNING_RATE = 24, 7, 5, 4, 0.2
SPECS = {"embed": P(), "layers": P("stage"), "head": P()}


def run_stage(layers, x):
    return lax.scan(lambda x, w: (x + 0.2 * jnp.sin(x @ w), None), x, layers)[0]


def token_loss(head, x, targets):
    log_probabilities = jax.nn.log_softmax(x @ head)
    return -jnp.take_along_axis(log_probabilities, targets[..., None], -1).mean()


def local_loss(params, tokens, targets):
    """Return the loss on the last stage, and zero on all others."""
    n_stages, stage = lax.axis_size("stage"), lax.axis_index("stage")
    shift = [(i, i + 1) for i in range(n_stages - 1)]
    received = jnp.zeros((*tokens.shape[1:], DIM))
    loss = jnp.zeros(())
    for t in range(N_MICRO + n_stages - 1):
        embedded = params["embed"][tokens[min(t, N_MICRO - 1)]]
        x = jnp.where(stage == 0, embedded, received)
        x = run_stage(params["layers"], x)
        done = t - (n_stages - 1)
        if done >= 0:
            new = token_loss(params["head"], x, targets[done])
            loss = loss + jnp.where(stage == n_stages - 1, new, 0.0) / N_MICRO
        received = lax.ppermute(x, "stage", shift)
    return loss


def train_step(params, tokens, targets):
    loss, grads = jax.value_and_grad(local_loss)(params, tokens, targets)
    # Only one stage has a gradient of the embedding, and another one that of the head.
    grads["embed"] = lax.psum(grads["embed"], "stage")
    grads["head"] = lax.psum(grads["head"], "stage")
    params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)
    return params, lax.psum(loss, "stage")


@jax.jit
def step(params, tokens, targets):
    return jax.shard_map(
        train_step,
        in_specs=(SPECS, P(), P()),
        out_specs=(SPECS, P()),
        check_vma=False,
    )(params, tokens, targets)


def reference(params, tokens, targets):
    def loss_fn(params):
        x = run_stage(params["layers"], params["embed"][tokens])
        return token_loss(params["head"], x, targets)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def example_args():
    rng = np.random.default_rng(58)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    params = {
        "embed": normal(VOCABULARY, DIM),
        "layers": normal(LAYERS, DIM, DIM),
        "head": normal(DIM, VOCABULARY),
    }
    tokens, targets = (jnp.asarray(rng.integers(0, VOCABULARY, (N_MICRO, 3, 6))) for _ in range(2))
    return params, tokens, targets


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="loss_averaged_over_the_stages",
        old='    return params, lax.psum(loss, "stage")\n',
        new='    return params, lax.pmean(loss, "stage")\n',
        causes=("divided_by_n",),
    ),
    Bug(
        name="embedding_gradient_averaged",
        old='    grads["embed"] = lax.psum(grads["embed"], "stage")\n',
        new='    grads["embed"] = lax.pmean(grads["embed"], "stage")\n',
        causes=("gradient_scaled_by_n",),
    ),
    Bug(
        name="loss_of_every_stage_counted",
        old="loss = loss + jnp.where(stage == n_stages - 1, new, 0.0) / N_MICRO",
        new="loss = loss + new / N_MICRO",
    ),
    Bug(
        name="head_gradient_not_summed",
        old='    grads["head"] = lax.psum(grads["head"], "stage")\n',
        new="",
        code="hazard.replicas_differ",
        causes=("missing_psum",),
    ),
    Bug(
        name="next_microbatch_fed_a_tick_late",
        old='params["embed"][tokens[min(t, N_MICRO - 1)]]',
        new='params["embed"][tokens[min(max(t - 1, 0), N_MICRO - 1)]]',
        needs_reference=True,
    ),
)
