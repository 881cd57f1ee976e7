import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def two_layers(x, w1, w2, mesh):
    """Return relu(x @ w1) @ w2, with its rows sharded over the first mesh axis."""
    data, model = mesh.axis_names

    @jax.jit
    def forward(x, w1, w2):
        hidden = jax.nn.relu(x @ w1)
        # The layout that x @ w1 produces and that hidden @ w2 needs: nothing to send in between.
        hidden = jax.lax.with_sharding_constraint(hidden, NamedSharding(mesh, P(data, model)))
        y = hidden @ w2
        return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, P(data, None)))

    return forward(x, w1, w2)
