import jax
from jax.sharding import PartitionSpec


def roll_blocks(x, k, mesh):
    """Return x with the piece of device i on device i + k, round the ring."""
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]
    pairs = [(i, i) for i in range(n)]  # of (from, to): everybody keeps what is there

    def roll(y):
        return jax.lax.ppermute(y, axis, pairs)

    spec = PartitionSpec(axis)
    return jax.shard_map(roll, mesh=mesh, in_specs=spec, out_specs=spec)(x)
