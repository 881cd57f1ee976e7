"""Programs that the tests of `shardlab launch` write to files."""

from __future__ import annotations

_HEAD = """
import os, signal, sys, time
import jax, jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))

@jax.jit
def total(x):
    psum = lambda x: jax.lax.psum(x, "data")
    return jax.shard_map(psum, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

x = jnp.arange(4.0 * jax.device_count())
rank = jax.process_index()
"""

# One process leaves out a call of a jit that has a collective, and waits elsewhere.
SKIPS_A_CALL = (
    _HEAD
    + """
total(x)
if rank != 1:
    total(x + 1)
else:
    time.sleep(3600)
"""
)

# One process leaves out a call and finishes.
FINISHES_EARLY = (
    _HEAD
    + """
total(x)
if rank != 1:
    total(x + 1)
"""
)

# A branch inside of the compiled program, taken on the devices of one process only.
BRANCH_IN_THE_PROGRAM = (
    _HEAD
    + """
def body(x):
    is_last = jax.lax.axis_index("data") == jax.lax.axis_size("data") - 1
    return jax.lax.cond(is_last, lambda x: x, lambda x: jax.lax.pmean(x, "data"), x)

@jax.jit
def clipped(x):
    specs = {"in_specs": P("data"), "out_specs": P("data")}
    return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(x)

total(x)
clipped(x)
"""
)

KILLED = (
    _HEAD
    + """
total(x)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
total(x + 1)
"""
)

RAISES = (
    _HEAD
    + """
total(x)
if rank == 1:
    raise ValueError("no shard of the data on this host")
total(x + 1)
"""
)

RAISES_EVERYWHERE = _HEAD + "\nraise ValueError('the same everywhere')\n"

EXITS = (
    _HEAD
    + """
total(x)
if rank == 0:
    os._exit(7)
total(x + 1)
"""
)

STOPS_ITSELF = (
    _HEAD
    + """
total(x)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
total(x + 1)
"""
)

# Longer than any stall limit of the tests, on the processor all the time.
SLOW_ON_ONE_PROCESS = (
    _HEAD
    + """
total(x)
if rank == 1:
    end = time.process_time() + 6
    while time.process_time() < end:
        pass
total(x + 1)
"""
)

TRAINS = (
    _HEAD
    + """
@jax.jit
def step(w, x):
    def loss(w, x):
        return jax.lax.pmean(jnp.mean((x @ w) ** 2), "data")
    return jax.shard_map(
        jax.value_and_grad(loss), mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P())
    )(w, x)

w = jax.device_put(jnp.array([1.0, -1.0]), jax.sharding.NamedSharding(mesh, P()))
batch = jnp.arange(8.0 * jax.device_count()).reshape(-1, 2)
for _ in range(3):
    value, gradient = step(w, batch)
    w = w - 1e-4 * gradient
print("loss", value)
"""
)

# A jit that does not use its sharded argument runs on one device of each process.
DROPS_AN_ARGUMENT = (
    _HEAD
    + """
sharding = jax.sharding.NamedSharding(mesh, P("data"))
w = jax.device_put(x, sharding)

@jax.jit
def init(w):
    return jnp.zeros_like(w)

@jax.jit
def scale(w, m):
    return w * 2 + m

w = scale(w, init(w))
scale(x, x)  # the same jit once more, on one device
"""
)

# Without collectives nothing waits for the process that leaves out a program.
SKIPS_A_PROGRAM_WITHOUT_COLLECTIVES = (
    _HEAD
    + """
w = jax.device_put(x, jax.sharding.NamedSharding(mesh, P("data")))

@jax.jit
def square(w):
    return w ** 2

@jax.jit
def scale(w):
    return w * 2

for _ in range(2):
    w = scale(w)
    if rank == 0:
        square(w)
"""
)

PUTS_ON_ONE_PROCESS = (
    _HEAD
    + """
import numpy as np
if rank == 0:
    jax.device_put(np.ones(4, np.float32), jax.sharding.NamedSharding(mesh, P("data")))
else:
    time.sleep(3600)
"""
)
