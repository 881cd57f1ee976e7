import jax
from jax.sharding import PartitionSpec


def roll_blocks(x, k, mesh):
    """Return x with the piece of device i on device i + k, round the ring."""
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]
    # Pairs of (from, to). Modulo n closes the ring, and takes a k of any size and sign.
    pairs = [(i, (i + k) % n) for i in range(n)]

    def roll(y):
        return jax.lax.ppermute(y, axis, pairs)

    spec = PartitionSpec(axis)
    return jax.shard_map(roll, mesh=mesh, in_specs=spec, out_specs=spec)(x)
