# SHARD: no out_shardings, so the result has the layout of x: replicated
import jax
import jax.numpy as jnp


def scale(x, mesh):
    @jax.jit
    def scaled(x):
        return x / jnp.max(jnp.abs(x))

    return scaled(x)
