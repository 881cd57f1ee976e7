"""Loops and branches: with collectives, with carries that gain device axes, with divergence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from program import ProgramTable, f32, i32

program = ProgramTable()

BOTH = P("data", "model")


@program("data=2,model=4", f32(6, 12))
def scan_with_collectives(w):
    def body(x):
        def step(carry, scale):
            carry = lax.ppermute(carry, "model", [(i, (i + 1) % 4) for i in range(4)])
            return jnp.sin(carry) * scale, lax.psum(carry.sum(0), "data")

        return lax.scan(step, x, jnp.arange(1.0, 4.0))

    return w.shard_map(body, in_specs=BOTH, out_specs=(BOTH, P(None, "model")))


@program("data=2,model=4", f32(6, 12))
def scan_whose_carries_gain_device_axes_one_by_one(w):
    def body(x):
        def step(carry, _):
            a, b, c = carry
            # One more carry varies in each iteration: the fixed point takes three rounds.
            return (a + 1.0, b * 0.5 + a + x.sum(), c + b), c

        zero = jnp.zeros(())
        return lax.scan(step, (zero, zero, zero), None, length=4)

    def add_device_dims(x):
        (a, b, c), history = body(x)
        return a, b.reshape(1, 1), c.reshape(1, 1), history[None]

    return w.shard_map(
        add_device_dims,
        in_specs=BOTH,
        out_specs=(P(), BOTH, BOTH, P(("data", "model"))),
        check_vma=False,
    )


@program("data=2,model=4", f32(6, 12))
def scan_in_reverse_over_sharded_inputs(w):
    def body(x):
        def step(carry, row):
            total = lax.psum(row, "model") + carry
            return total, total * row

        return lax.scan(step, jnp.zeros(3), x.T.reshape(-1, 3), reverse=True, unroll=2)

    return w.shard_map(
        lambda x: body(x)[1][None], in_specs=BOTH, out_specs=P(("data", "model")), check_vma=False
    )


@program("data=2,model=4", f32(6, 12))
def nested_scans(w):
    def body(x):
        def outer(carry, _):
            def inner(c, s):
                return c + lax.pmean(c * s, "data"), c.sum()

            carry, sums = lax.scan(inner, carry, jnp.array([0.5, 0.25]))
            return lax.ppermute(carry, "model", [(0, 1), (1, 2), (2, 3)]), sums

        out, sums = lax.scan(outer, x, None, length=3)
        return out, sums[None]

    return w.shard_map(body, in_specs=BOTH, out_specs=(BOTH, P(("data", "model"))))


@program("data=2,model=4", f32(6, 12), i32(4), grad=False)
def while_whose_trip_count_differs_between_devices(w):
    def body(x, n):
        def is_running(state):
            step, _ = state
            return step < jnp.abs(n[0]) % 7

        return lax.while_loop(is_running, lambda s: (s[0] + 1, s[1] * 1.5 + s[0]), (0, x))[1]

    return w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=BOTH, check_vma=False)


@program("data=2,model=4", f32(6, 12), grad=False)
def while_until_all_devices_agree(w):
    def body(x):
        def is_running(state):
            return state[1] > 0.1

        def step(state):
            x = state[0] * 0.5
            return x, lax.pmax(jnp.abs(x).max(), ("data", "model"))

        return lax.while_loop(is_running, step, (x, jnp.inf))

    return w.shard_map(body, in_specs=BOTH, out_specs=(BOTH, P()))


@program("data=2,model=4", f32(6, 12), i32(4), grad=False)
def while_in_a_branch_that_would_not_end_on_other_devices(w):
    def body(x, n):
        # Counting down to zero ends only for devices that start above it.
        def count_down(n):
            return lax.while_loop(lambda s: s[0] != 0, lambda s: (s[0] - 1, s[1] + s[0]), (n, 0))

        steps, total = lax.cond(n > 0, count_down, lambda n: (n, n * 2), n)
        return x * total + steps

    return w.shard_map(
        lambda x, n: body(x, n[0]), in_specs=(BOTH, P("model")), out_specs=BOTH, check_vma=False
    )


@program("data=2,model=4", f32(6, 12))
def fori_loop_with_ppermute(w):
    def body(x):
        def step(i, acc):
            return acc + lax.ppermute(acc, "data", [(0, 1), (1, 0)]) * (i + 1)

        return lax.fori_loop(0, 3, step, x)

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12), i32(4), grad=False)
def fori_loop_with_a_bound_that_differs(w):
    def body(x, n):
        return lax.fori_loop(0, jnp.abs(n[0]) % 5, lambda i, acc: acc * 0.5 + i, x)

    return w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=BOTH, check_vma=False)


@program("data=2,model=4", f32(6, 12))
def cond_whose_predicate_differs(w):
    def body(x):
        return lax.cond(x.sum() > 0, jnp.sin, lambda x: x * x * 3.0, x)

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12))
def cond_whose_predicate_is_uniform(w):
    def body(x):
        large = lax.psum(x.sum(), ("data", "model")) > 100.0
        return lax.cond(
            large,
            lambda x: lax.pmean(x, "data"),
            lambda x: lax.psum(x, "data") * 2.0,
            x,
        )

    return w.shard_map(body, in_specs=BOTH, out_specs=P(None, "model"))


@program("data=2,model=4", f32(6, 12))
def cond_with_a_collective_over_another_axis_than_its_predicate(w):
    def body(x):
        is_even = lax.axis_index("model") % 2 == 0
        return lax.cond(
            is_even, lambda x: lax.psum(x, "data"), lambda x: x.sum(0, keepdims=True) + 0 * x, x
        )

    return w.shard_map(body, in_specs=BOTH, out_specs=P("data", "model"), check_vma=False)


@program("data=2,model=4", f32(6, 12))
def cond_whose_branches_vary_differently(w):
    def body(x):
        is_positive = lax.psum(x.sum(), ("data", "model")) > 0
        total = lax.pcast(lax.psum(x, "data"), "data", to="varying")
        return lax.cond(is_positive, lambda: total, lambda: x)

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12))
def switch_by_device_number(w):
    def body(x):
        branches = [jnp.sin, jnp.cos, lambda x: x**3, lambda x: x - x.mean()]
        return lax.switch(lax.axis_index("model"), branches, x)

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12))
def switch_with_an_index_out_of_range(w):
    def body(x):
        branches = [jnp.sin, jnp.cos, lambda x: x**3]
        return lax.switch(lax.axis_index("model") * 3 - 4, branches, x)

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12), i32(4))
def cond_in_scan_in_cond(w):
    def body(x, n):
        def step(carry, i):
            return lax.cond((n[0] + i) % 2 == 0, lambda c: c * 1.5, jnp.cos, carry), carry.sum()

        def loop(x):
            return lax.scan(step, x, jnp.arange(3))[0]

        return lax.cond(n[0] > 0, loop, lambda x: -x, x)

    return w.shard_map(body, in_specs=(BOTH, P("model")), out_specs=BOTH, check_vma=False)


@program("data=2,model=4", f32(6, 12))
def remat_of_a_scan(w):
    def body(x):
        @jax.checkpoint
        def step(carry, scale):
            return jnp.tanh(lax.psum(carry, "model") * scale + carry), None

        return lax.scan(step, x, jnp.array([0.1, 0.3]))[0]

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12))
def associative_scan_and_map(w):
    def body(x):
        summed = lax.associative_scan(jnp.add, x, axis=1)
        return summed + lax.map(lambda row: lax.psum(row, "data") * 2, x)

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12), grad=False)
def while_with_a_batched_predicate(w):
    def body(x):
        def count(v):
            return lax.while_loop(lambda s: s[0] > 0.1, lambda s: (s[0] * 0.7, s[1] + 1), (v, 0))[1]

        return jax.vmap(jax.vmap(count))(jnp.abs(x))

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH, check_vma=False)
