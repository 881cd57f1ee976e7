import jax
from jax.sharding import NamedSharding, PartitionSpec


def place_rows(x, mesh):
    """Return x with its rows split over the first mesh axis."""
    # One entry for array axis 0; array axis 1 is left whole, and so is every other mesh axis.
    # device_put refuses rows that do not divide, with a ValueError: nothing to check here.
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])))
