"""Specs that do not fit: names, ranks, sizes, and the argument they are for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table(grads=False)


# -------------------------------------------------------------------------- spec.unknown_axis


@pair.wrong("spec.unknown_axis", "data=4", f32(24, 5))
def input_cut_over_an_axis_with_a_typing_error(x):
    @jax.shard_map(in_specs=P("date"), out_specs=P("data"))  # <- here
    def double(x):
        return 2 * x

    return double(x)  # <- here


@pair.right
def input_cut_over_an_axis_of_the_mesh(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def double(x):
        return 2 * x

    return double(x)


@pair.wrong("spec.unknown_axis", "data=2,model=4", f32(4, 16))
def sum_over_an_axis_of_another_program(x):
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data"))
    def total(x):
        return lax.psum(x.sum(1), "modle")  # <- here

    return total(x)


@pair.right
def sum_over_an_axis_of_this_program(x):
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data"))
    def total(x):
        return lax.psum(x.sum(1), "model")

    return total(x)


@pair.wrong("spec.unknown_axis", "data=4", f32(24, 5))
def place_asked_for_along_an_axis_that_is_not_there(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def shifted(x):
        return x + lax.axis_index("dp")  # <- here

    return shifted(x)


@pair.right
def place_asked_for_along_an_axis_that_is_there(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def shifted(x):
        return x + lax.axis_index("data") * 0.0

    return shifted(x)


@pair.wrong("spec.unknown_axis", "data=2,fsdp=4", f32(8, 16))
def weights_gathered_over_an_unknown_axis(w):
    @jax.shard_map(in_specs=P("data", "fsdp"), out_specs=P("data"), check_vma=False)
    def gather(w):
        return lax.all_gather(w, "fdsp", axis=1, tiled=True)  # <- here

    return gather(w)


@pair.right
def weights_gathered_over_a_known_axis(w):
    @jax.shard_map(in_specs=P("data", "fsdp"), out_specs=P("data"), check_vma=False)
    def gather(w):
        return lax.all_gather(w, "fsdp", axis=1, tiled=True)

    return gather(w)


@pair.wrong("spec.unknown_axis", "data=4", f32(24, 5))
def output_joined_over_an_unknown_axis(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("batch"))  # <- here
    def double(x):
        return 2 * x

    return double(x)  # <- here


@pair.right
def output_joined_over_a_known_axis(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def double(x):
        return 2 * x - 1

    return double(x)


@pair.wrong("spec.unknown_axis", "data=2,model=4", f32(4, 16))
def constraint_over_an_unknown_axis(x):
    @jax.jit
    def layer(x):
        return lax.with_sharding_constraint(jnp.tanh(x), P("data", "tensor"))  # <- here

    return layer(x)  # <- here


@pair.right
def constraint_over_a_known_axis(x):
    @jax.jit
    def layer(x):
        return lax.with_sharding_constraint(jnp.tanh(x), P("data", "model"))

    return layer(x)


# ----------------------------------------------------------------------------------- spec.rank


@pair.wrong("spec.rank", "data=2,model=4", f32(24, 5), f32(5))
def bias_with_the_spec_of_a_matrix(x, b):
    @jax.shard_map(in_specs=(P("data"), P(None, "model")), out_specs=P("data"))  # <- here
    def add(x, b):
        return x + b

    return add(x, b)  # <- here


@pair.right
def bias_with_the_spec_of_a_vector(x, b):
    @jax.shard_map(in_specs=(P("data"), P(None)), out_specs=P("data"))
    def add(x, b):
        return x + b

    return add(x, b)


@pair.wrong("spec.rank", "data=4", f32(24, 5))
def scalar_loss_joined_like_a_vector(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))  # <- here
    def loss(x):
        return (x**2).mean()

    return loss(x)  # <- here


@pair.right
def scalar_loss_declared_a_scalar(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P())
    def loss(x):
        return lax.pmean((x**2).mean(), "data")

    return loss(x)


@pair.wrong("spec.rank", "data=2,model=4", f32(4, 16))
def constraint_longer_than_the_array(x):
    @jax.jit
    def layer(x):
        return lax.with_sharding_constraint(x.sum(1), P("data", "model"))  # <- here

    return layer(x)  # <- here


@pair.right
def constraint_as_long_as_the_array(x):
    @jax.jit
    def layer(x):
        return lax.with_sharding_constraint(x.sum(1), P("data"))

    return layer(x)


# ---------------------------------------------------------------------------- spec.indivisible


@pair.wrong("spec.indivisible", "data=4", f32(22, 5))
def batch_that_does_not_divide(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))  # <- here
    def double(x):
        return 2 * x

    return double(x)  # <- here


@pair.right
def batch_padded_to_divide(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def double(x):
        return 2 * x

    return double(jnp.pad(x, ((0, 2), (0, 0))))[:22]


@pair.wrong("spec.indivisible", "data=2,model=4", f32(4, 6), f32(6, 10), f32(10, 3))
def one_kernel_among_the_parameters(x, w1, w2):
    params = {"up": {"kernel": w1}, "down": {"kernel": w2}}
    specs = {"up": {"kernel": P(None, "model")}, "down": {"kernel": P("model")}}

    @jax.shard_map(in_specs=(P("data"), specs), out_specs=P("data"))  # <- here
    def mlp(x, params):
        return lax.psum(x @ params["up"]["kernel"] @ params["down"]["kernel"], "model")

    return mlp(x, params)  # <- here


@pair.right
def kernels_padded_among_the_parameters(x, w1, w2):
    params = {
        "up": {"kernel": jnp.pad(w1, ((0, 0), (0, 2)))},
        "down": {"kernel": jnp.pad(w2, ((0, 2), (0, 0)))},
    }
    specs = {"up": {"kernel": P(None, "model")}, "down": {"kernel": P("model")}}

    @jax.shard_map(in_specs=(P("data"), specs), out_specs=P("data"))
    def mlp(x, params):
        return lax.psum(x @ params["up"]["kernel"] @ params["down"]["kernel"], "model")

    return mlp(x, params)


@pair.wrong("spec.indivisible", "data=2,model=4", f32(12, 5))
def rows_over_both_axes_that_divide_by_each_alone(x):
    @jax.shard_map(in_specs=P(("data", "model")), out_specs=P(("data", "model")))  # <- here
    def double(x):
        return 2 * x

    return double(x)  # <- here


@pair.right
def rows_over_the_axis_that_divides_them(x):
    @jax.shard_map(in_specs=P("model"), out_specs=P("model"))
    def double(x):
        return 2 * x

    return double(x)


# ------------------------------------------------------------------------- spec.wrong_argument


@pair.wrong("spec.wrong_argument", "data=4", f32(24, 5), f32(5, 7))
def specs_of_batch_and_weights_exchanged(x, w):
    @jax.shard_map(in_specs=(P(), P("data")), out_specs=P("data"))  # <- here
    def apply(x, w):
        return x @ w

    return apply(x, w)  # <- here


@pair.right
def specs_of_batch_and_weights_in_order(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def apply(x, w):
        return x @ w

    return apply(x, w)


@pair.wrong("spec.wrong_argument", "data=2,model=4", f32(6, 5), f32(5, 16), f32(16))
def specs_of_kernel_and_bias_exchanged(x, w, b):
    @jax.shard_map(
        in_specs=(P("data"), P("model"), P(None, "model")),  # <- here
        out_specs=P("data", "model"),
    )
    def dense(x, w, b):
        return x @ w + b

    return dense(x, w, b)  # <- here


@pair.right
def specs_of_kernel_and_bias_in_order(x, w, b):
    @jax.shard_map(in_specs=(P("data"), P(None, "model"), P("model")), out_specs=P("data", "model"))
    def dense(x, w, b):
        return x @ w + b

    return dense(x, w, b)
