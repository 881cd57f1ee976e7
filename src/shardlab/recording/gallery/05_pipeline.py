# title: Pipeline with microbatches
# summary: Each device has one layer. Microbatches enter at stage 0 and move one stage per
#   tick with ppermute.
# mesh: stage=4
# kind: pattern
# target: pipeline
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("stage",), axis_types=(AxisType.Auto,))


def body(w, microbatches):
    n = jax.lax.axis_size("stage")
    stage = jax.lax.axis_index("stage")
    to_next = [(i, i + 1) for i in range(n - 1)]

    def tick(received, microbatch):
        # Stage 0 takes a new microbatch, the others what the stage before has sent.
        x = jnp.where(stage == 0, microbatch, received)
        y = jnp.tanh(x @ w[0])
        sent = jax.lax.ppermute(y, "stage", to_next)
        return sent, y

    # n - 1 more ticks, with nothing new, until the last microbatch has left the last stage.
    padding = jnp.zeros((n - 1, *microbatches.shape[1:]))
    start = jax.lax.pcast(jnp.zeros_like(microbatches[0]), "stage", to="varying")
    _, ys = jax.lax.scan(tick, start, jnp.concatenate([microbatches, padding]))
    # Only the last stage has results; the sum copies them to every device.
    results = jnp.where(stage == n - 1, ys[n - 1 :], 0.0)
    return jax.lax.psum(results, "stage")


def pipeline(w, microbatches):
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())
    return mapped(w, microbatches)


def pipeline_args():
    w = jnp.stack([jnp.eye(2) * (i + 1) / 2 for i in range(mesh.shape["stage"])])
    microbatches = jnp.arange(8.0).reshape(4, 1, 2) / 4 - 1
    return w, microbatches
