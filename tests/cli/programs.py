"""The programs that `trace` and `check` are pointed at in these tests, right and wrong."""

DEADLOCK = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def body(x):
    return lax.cond(
        lax.axis_index("data") == 0,
        lambda x: lax.pcast(lax.psum(x, "data"), "data", to="varying"),
        lambda x: x,
        x,
    )


step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data")))


def step_args():
    return (jnp.arange(24.0),)


if __name__ == "__main__":
    print("before")
    step(*step_args())
    print("after")
"""

RIGHT = """
import sys

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

weights = ({"w": "f32[6,3]"}, "f32[24,6]")


def shape_of_batch():
    return {"w": jnp.ones((6, 3))}, jnp.arange(144.0).reshape(24, 6)


def loss(params, x):
    print("tracing")

    def body(w, x):
        return jax.lax.psum((x @ w).sum(), "data")

    return jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P())(params["w"], x)


if __name__ == "__main__":
    print("hello", sys.argv[1:])
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.arange(32.0).reshape(8, 4), NamedSharding(mesh, P("data")))
    sums = jax.shard_map(
        lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
    )
    for _ in range(2):
        sums(x)
        jax.jit(sums)(x)
    first = jax.shard_map(
        lambda x: x[0] * 2, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False
    )
    if "--differ" in sys.argv:
        first(x)
    if "--meant" in sys.argv:
        third = jax.shard_map(
            # shardlab: ignore[hazard.replicas_differ] the first row is what is wanted
            lambda x: x[0] * 3, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False
        )
        third(x)

    @jax.jit
    def mean(x):
        return x.mean()

    if "--jit" in sys.argv:
        print(mean(x))
"""

BAD = """
import os
import subprocess
import sys
import time

import numpy as np

number = 3


def step(x, w):
    return x @ w


def raises(x):
    raise ValueError("no such luck")


def dies(x):
    os._exit(3)


def asks(x):
    return x + float(input())


def allocates(x):
    return x + np.ones(1 << 30).sum()


def needs(n):
    return (n,)


def hangs(x):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("pids", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    while True:
        print("x" * 10_000)
        time.sleep(0.001)
"""
