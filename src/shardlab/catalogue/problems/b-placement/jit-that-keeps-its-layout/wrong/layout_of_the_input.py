# SHARD: no out_shardings, so the result has the layout of x: replicated
import jax
import jax.numpy as jnp


def scale(x, mesh):
    @jax.jit
    def divide_by_max(x):
        return x / jnp.max(jnp.abs(x))

    return divide_by_max(x)
