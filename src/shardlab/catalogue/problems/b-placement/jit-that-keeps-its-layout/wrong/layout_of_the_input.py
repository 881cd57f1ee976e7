# SHARD: nothing is said about the result, so it is laid out as x is: whole on every device
import jax
import jax.numpy as jnp


def scale(x, mesh):
    @jax.jit
    def scaled(x):
        return x / jnp.max(jnp.abs(x))

    return scaled(x)
