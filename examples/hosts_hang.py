"""On several hosts this hangs: only host 0 computes the norm of a global array.

shardlab run --hosts 4 --devices 16 examples/hosts_hang.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def log(gradient):
    if jax.process_index() == 0:
        print("norm of the gradient:", jnp.linalg.norm(gradient))


jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
rows = np.full((4, 2), jax.process_index(), np.float32)
gradient = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), rows)
log(gradient)
multihost_utils.sync_global_devices("the step has ended")
