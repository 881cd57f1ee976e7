import jax
from jax.sharding import NamedSharding


def reshard(x, mesh, spec):
    """Return x laid out on the mesh as spec says, moved between devices and nowhere else."""
    # The target is all that has to be said. The compiler knows where x lies, and puts in the
    # collectives that bring every device what it lacks.
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, spec))(x)
