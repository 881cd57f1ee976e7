import jax
from jax.sharding import PartitionSpec


def roll_blocks(x, k, mesh):
    """Return x with the shard of device i on device i + k, around the ring."""
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]
    # Pairs (source, destination). Modulo n closes the ring, for k of any size and sign.
    pairs = [(i, (i + k) % n) for i in range(n)]

    def roll(y):
        return jax.lax.ppermute(y, axis, pairs)

    spec = PartitionSpec(axis)
    return jax.shard_map(roll, mesh=mesh, in_specs=spec, out_specs=spec)(x)
