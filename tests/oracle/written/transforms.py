"""JAX's transformations around, inside and across a shard_map."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from program import ProgramTable, f32

program = ProgramTable()

BOTH = P("data", "model")


def loss_of(w, **options):
    """Return a small loss with a sharded weight and a sharded batch."""

    def body(x, weight):
        hidden = jnp.tanh(lax.psum(x @ weight, "model"))
        return lax.pmean((hidden**2).mean(), "data")

    return w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=P(), **options)


@program("data=2,model=4", f32(6, 12), f32(12, 5), grad=False)
def value_and_grad_outside(w):
    return jax.value_and_grad(loss_of(w), argnums=(0, 1))


@program("data=2,model=4", f32(6, 12), f32(12, 5), grad=False)
def value_and_grad_outside_without_vma(w):
    return jax.value_and_grad(loss_of(w, check_vma=False), argnums=(0, 1))


@program("data=2,model=4", f32(6, 12), f32(12, 5))
def grad_inside_the_body(w):
    def body(x, weight):
        def loss(x, weight):
            return lax.psum((jnp.tanh(lax.psum(x @ weight, "model")) ** 2).sum(), "data")

        return jax.grad(loss, argnums=(0, 1))(x, weight)

    return w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=(BOTH, P("model")))


@program("data=2,model=4", f32(6, 12), f32(12, 5))
def grad_inside_the_body_without_vma(w):
    def body(x, weight):
        def loss(x, weight):
            return (jnp.tanh(lax.psum(x @ weight, "model")) ** 2).sum()

        gx, gw = jax.grad(loss, argnums=(0, 1))(x, weight)
        return gx, lax.psum(gw, "data")

    return w.shard_map(
        body, in_specs=(BOTH, P("model")), out_specs=(BOTH, P("model")), check_vma=False
    )


@program("data=2,model=4", f32(6, 12), f32(12, 5), grad=False)
def local_grad_of_an_unsummed_loss(w):
    def body(x, weight):
        varying_weight = lax.pcast(weight, "data", to="varying")
        return jax.grad(lambda weight: ((x @ weight) ** 2).sum())(varying_weight)[None]

    return w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=P("data", "model"))


@program("data=2,model=4", f32(6, 12), f32(12, 5), grad=False)
def jvp_outside(w):
    fun = loss_of(w)
    return lambda x, y: jax.jvp(fun, (x, y), (jnp.cos(x), jnp.sin(y)))


@program("data=2,model=4", f32(6, 12), f32(12, 5), grad=False)
def linearize_outside(w):
    def fun(x, y):
        out, push = jax.linearize(loss_of(w), x, y)
        return out, push(jnp.cos(x), y), push(x, jnp.sin(y))

    return fun


@program("data=2,model=4", f32(6, 12), f32(12, 5), grad=False)
def vjp_of_vjp(w):
    def fun(x, y):
        _, pull = jax.vjp(loss_of(w), x, y)
        return jax.vjp(lambda c: pull(c), jnp.float32(1.5))[1]((x, y))

    return fun


@program("data=2,model=2", f32(4), grad=False)
def hessian_outside(w):
    def body(x):
        return lax.psum((jnp.sin(x) * lax.pmean(x, "model").sum()).sum(), ("data", "model"))

    return jax.hessian(w.shard_map(body, in_specs=P(("model", "data")), out_specs=P()))


@program("data=2,model=4", f32(3, 6, 12), f32(12, 5))
def vmap_of_a_shard_map(w):
    def body(x, weight):
        return lax.psum(x @ weight, "model")

    fun = w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=P("data"))
    return jax.vmap(fun, in_axes=(0, None), out_axes=1)


@program("data=2,model=4", f32(6, 3, 12), f32(12, 5))
def vmap_of_a_shard_map_over_a_mesh_axis(w):
    def body(x, weight):
        return lax.psum(x @ weight, "model") * (1.0 + lax.axis_index("model"))

    fun = w.shard_map(body, in_specs=(P(None, "model"), P("model")), out_specs=P("model"))
    return jax.vmap(fun, in_axes=(0, None), spmd_axis_name="data")


@program("data=2,model=4", f32(6, 12))
def vmap_inside_with_an_axis_name(w):
    def body(x):
        def row(v):
            centred = v - lax.pmean(v, "rows")
            return centred * lax.psum(v, "model") + lax.axis_index("rows")

        return jax.vmap(row, axis_name="rows")(x)

    # With check_vma JAX rejects a mean over an axis that is not of the mesh.
    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH, check_vma=False)


@program("data=2,model=4", f32(12, 6))
def vmap_inside_of_collectives(w):
    def body(x):
        def row(v):
            gathered = lax.all_gather(v, "model", tiled=True)
            moved = lax.ppermute(v, "data", [(0, 1), (1, 0)])
            split = lax.psum_scatter(gathered * 2, "model", tiled=True)
            swapped = lax.all_to_all(jnp.outer(jnp.arange(4.0), v), "model", 0, 0, tiled=True)
            return gathered.sum() * moved + split + swapped.sum(0)

        return jax.vmap(row, in_axes=1, out_axes=1)(x)

    return w.shard_map(body, in_specs=P("model", "data"), out_specs=P("model", "data"))


@program("data=2,model=4", f32(3, 6, 12), f32(12, 12))
def scan_over_a_shard_map(w):
    step = w.shard_map(
        lambda x, weight: jnp.tanh(
            lax.psum_scatter(x @ weight, "model", scatter_dimension=1, tiled=True)
        ),
        in_specs=(BOTH, P("model")),
        out_specs=BOTH,
    )

    def fun(xs, weight):
        def scan_step(carry, x):
            carry = step(carry + x, weight)
            return carry, carry.sum()

        return lax.scan(scan_step, jnp.zeros((6, 12)), xs)

    return fun


@program("data=2,model=4", f32(6, 12))
def jit_in_jit_in_scan(w):
    @jax.jit
    def inner(x):
        return lax.psum(jnp.sin(x), "model")

    mapped = jax.jit(w.shard_map(lambda x: x * jax.jit(inner)(x), in_specs=BOTH, out_specs=BOTH))

    def fun(x):
        return lax.scan(lambda c, _: (jax.jit(mapped)(c), c.sum()), x, None, length=3)

    return fun


@program("data=2,model=4", f32(6, 12), f32(12, 5))
def remat_of_the_body(w):
    def body(x, weight):
        @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
        def layer(x, weight):
            return jnp.sin(lax.psum(jnp.cos(x @ weight), "model"))

        return layer(x, weight)

    return w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=P("data"))


@program("data=2,model=4", f32(6, 12), f32(12, 5))
def remat_of_the_shard_map(w):
    return jax.checkpoint(lambda x, weight: jnp.exp(loss_of(w)(x, weight)))


@program("data=2,model=4", f32(6, 12))
def custom_vjp_inside(w):
    @jax.custom_vjp
    def scaled(x):
        return lax.psum(x, "model") * 2.0

    scaled.defvjp(
        lambda x: (scaled(x), jnp.cos(x)),
        # Not the true derivative, so that the result shows which one is used.
        lambda res, ct: (res * ct * 10.0,),
    )

    return w.shard_map(lambda x: x * scaled(x), in_specs=BOTH, out_specs=BOTH, check_vma=False)


@program("data=2,model=4", f32(6, 12))
def custom_vjp_around_the_shard_map(w):
    mapped = w.shard_map(
        lambda x: lax.psum(x**3, "data"), in_specs=BOTH, out_specs=P(None, "model")
    )

    @jax.custom_vjp
    def cubed(x):
        return mapped(x)

    back = w.shard_map(lambda x, ct: x * ct, in_specs=(BOTH, P(None, "model")), out_specs=BOTH)
    cubed.defvjp(lambda x: (cubed(x), x), lambda x, ct: (back(x, ct),))
    return cubed


@program("data=2,model=4", f32(6, 12))
def custom_jvp_inside(w):
    @jax.custom_jvp
    def bent(x):
        return jnp.sqrt(jnp.abs(x))

    @bent.defjvp
    def _(primals, tangents):
        return bent(primals[0]), tangents[0] * lax.pmean(primals[0], "model")

    return w.shard_map(lambda x: bent(x) * x, in_specs=BOTH, out_specs=BOTH, check_vma=False)


@program("data=2,model=4", f32(6, 12))
def stop_gradient_inside(w):
    return w.shard_map(
        lambda x: x * lax.psum(lax.stop_gradient(jnp.exp(x)), "model"),
        in_specs=BOTH,
        out_specs=BOTH,
    )


@program("data=2,model=4", f32(6, 12), jit=False)
def without_jit(w):
    return w.shard_map(lambda x: lax.psum(jnp.sin(x), "model") * x, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12), f32(12, 5), grad=False)
def closure_over_an_array(w):
    def fun(x, y):
        total = y.sum(0)
        mapped = w.shard_map(
            lambda x: lax.psum(x, "model").sum() * total,
            in_specs=BOTH,
            out_specs=P(),
            check_vma=False,
        )
        return mapped(jnp.ones_like(x) * x[0]), total

    return fun


@program("data=2,model=4", f32(6, 12))
def outputs_that_are_inputs_or_constants(w):
    def body(x):
        return x, jnp.arange(3.0), 2.5, x, lax.axis_index("data")[None]

    return w.shard_map(
        body, in_specs=BOTH, out_specs=(BOTH, P(), P(), P("data", "model"), P("data"))
    )


@program("data=2,model=4", f32(6, 12), f32(12, 5))
def trees_in_and_out(w):
    def body(params, x):
        return {"y": x @ params["weight"][0], "sizes": (x.sum()[None], None)}

    mapped = w.shard_map(
        body,
        in_specs=({"weight": [P("model")]}, BOTH),
        out_specs={"y": P(("data", "model")), "sizes": (P(("data", "model")), None)},
    )
    return lambda x, weight: mapped({"weight": [weight]}, x)
