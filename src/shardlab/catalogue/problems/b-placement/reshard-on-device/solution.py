import jax
from jax.sharding import NamedSharding


def reshard(x, mesh, spec):
    """Return x resharded to spec on the mesh, moving data between devices only."""
    # The target layout is enough. The compiler knows the layout of x and inserts the
    # collectives that send every device the data it lacks.
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, spec))(x)
