# RTE: x is copied to host memory and sent back from there
import jax
import numpy as np
from jax.sharding import NamedSharding


def reshard(x, mesh, spec):
    return jax.device_put(np.asarray(x), NamedSharding(mesh, spec))
