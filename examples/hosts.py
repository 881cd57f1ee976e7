"""Data-parallel training on several hosts: each host loads its own data, host 0 logs and decides.

shardlab run --hosts 4 --devices 16 examples/hosts.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

TARGET = np.array([1.0, -2.0, 0.5, 3.0], np.float32)


def load_batch(step, host):
    """Four examples of this host; on a cluster each host would read its own files."""
    x = np.random.default_rng([step, host]).normal(size=(4, 4)).astype(np.float32)
    return x, x @ TARGET


def mean_error(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


@jax.jit
def train_step(w, x, y):
    loss, gradient = jax.value_and_grad(mean_error)(w, x, y)
    return w - 0.1 * gradient, loss


def main():
    jax.distributed.initialize()
    host = jax.process_index()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    by_example = NamedSharding(mesh, P("data"))
    w = jax.device_put(np.zeros(4, np.float32), NamedSharding(mesh, P()))
    for step in range(3):
        x, y = load_batch(step, host)
        batch = [jax.make_array_from_process_local_data(by_example, part) for part in (x, y)]
        w, loss = train_step(w, *batch)
        if host == 0:
            print(f"step {step}: batch {batch[0].shape}, loss {float(loss):.2f}")
    examples = multihost_utils.process_allgather(np.int32(3 * len(x)))
    if host == 0:
        print("examples of each host:", examples, "weights:", np.round(np.asarray(w), 2))
    own_loss = float(mean_error(np.asarray(w), x, y))
    print(f"loss on the data of host {host}: {own_loss:.2f}")


if __name__ == "__main__":
    main()
