"""Jits without shard_map, whose shardings and collectives the compiler decides.

Each maker gets a mesh and returns a jit and its arguments as shapes with shardings. The programs of
`sharded_programs.py` are compared too; these add what they do not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sharded_programs import PROGRAMS as SHARDED
from sharded_programs import array, constrain, gradients


class JitProgram(NamedTuple):
    """A program for one mesh of 8 devices."""

    mesh: str
    make: Callable[[Any], tuple[Any, tuple[Any, ...]]]


def matmul(x: P, w: P, out: P | None = None) -> Any:
    """Return a maker of x @ w."""

    def make(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
        out_sharding = None if out is None else NamedSharding(mesh, out)
        f = jax.jit(lambda x, w: x @ w, out_shardings=out_sharding)
        return f, (array(mesh, (8, 16), x), array(mesh, (16, 24), w))

    return make


def column_then_row(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    def f(x: Any, w1: Any, b1: Any, w2: Any) -> Any:
        hidden = jax.nn.gelu(x @ w1 + b1)
        return hidden @ w2

    x, b1 = array(mesh, (4, 8), P("data")), array(mesh, (16,), P("model"))
    w1, w2 = array(mesh, (8, 16), P(None, "model")), array(mesh, (16, 8), P("model"))
    return jax.jit(f), (x, w1, b1, w2)


def constraints_between(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """Rows, then columns, then replicated: an all-to-all and an all-gather."""

    def f(x: Any) -> Any:
        rows = constrain(x * 2, mesh, P("model"))
        columns = constrain(jnp.sin(rows), mesh, P(None, "model"))
        return constrain(columns + 1, mesh, P())

    return jax.jit(f), (array(mesh, (8, 12), P("model")),)


def slice_of_replicated(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """From replicated to sharded: each device takes its slice, and nothing is sent."""

    def f(x: Any) -> Any:
        return constrain(x + 1, mesh, P("data", "model")) * 3

    return jax.jit(f), (array(mesh, (8, 12), P()),)


def batch_norm(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """Mean and variance over a sharded batch: two all-reduces of one number per channel."""

    def f(x: Any, scale: Any) -> Any:
        mean = x.mean(0)
        variance = ((x - mean) ** 2).mean(0)
        return (x - mean) * lax.rsqrt(variance + 1e-5) * scale

    return jax.jit(f), (array(mesh, (16, 6), P("data")), array(mesh, (6,), P()))


def softmax_over_sharded(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """A maximum and a sum over the sharded dimension."""

    def f(scores: Any) -> Any:
        largest = scores.max(-1, keepdims=True)
        weights = jnp.exp(scores - largest)
        return weights / weights.sum(-1, keepdims=True)

    return jax.jit(f), (array(mesh, (4, 16), P("data", "model")),)


def embedding(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """A lookup by ids that are sharded over data, in a table whose columns are over model."""

    def f(table: Any, ids: Any, w: Any) -> Any:
        return table[ids] @ w

    table, ids = array(mesh, (8, 16), P(None, "model")), array(mesh, (4, 3), P("data"), jnp.int32)
    return jax.jit(f), (table, ids, array(mesh, (16, 4), P("model")))


def uneven(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """Six rows cannot be divided by 4: XLA pads, and the argument must be replicated."""

    def f(x: Any, w: Any) -> Any:
        y = constrain(x @ w, mesh, P("model", None))
        return y.sum()

    return jax.jit(f), (array(mesh, (6, 8), P()), array(mesh, (8, 4), P()))


def transposed_product(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """x.T @ x contracts the sharded batch; the result is wanted in shards."""

    def f(x: Any) -> Any:
        return x.T @ x

    f_jit = jax.jit(f, out_shardings=NamedSharding(mesh, P("data")))
    return f_jit, (array(mesh, (16, 8), P("data")),)


def attention(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """Heads over model: no communication until the output projection."""

    def f(q: Any, k: Any, v: Any, wo: Any) -> Any:
        scores = jnp.einsum("bshe,bthe->bhst", q, k) / 2
        mixed = jnp.einsum("bhst,bthe->bshe", jax.nn.softmax(scores), v)
        return jnp.einsum("bshe,hed->bsd", mixed, wo)

    qkv = array(mesh, (2, 3, 4, 5), P("data", None, "model"))
    return jax.jit(f), (qkv, qkv, qkv, array(mesh, (4, 5, 6), P("model")))


def remat_mlp(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """The gradient of a checkpointed layer."""

    def loss(params: Any, x: Any) -> Any:
        @jax.checkpoint
        def layer(x: Any, w: Any) -> Any:
            return constrain(jnp.sin(x @ w[0]) @ w[1], mesh, P("data"))

        return jnp.mean(layer(x, params) ** 2)

    specs = P(None, "model"), P("model")
    params = array(mesh, (8, 16), specs[0]), array(mesh, (16, 8), specs[1])
    return gradients(loss, mesh, specs), (params, array(mesh, (4, 8), P("data")))


def adam_step(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """One training step with optax.adam; its moments are sharded like the weights."""
    optimizer = optax.adam(1e-2)
    specs = {"w": P("data", "model"), "b": P("model")}
    shapes = {"w": (8, 12), "b": (12,)}

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params = {name: array(mesh, shapes[name], specs[name]) for name in specs}
    scale, *rest = jax.eval_shape(optimizer.init, params)
    state = (scale._replace(count=array(mesh, (), P(), jnp.int32), mu=params, nu=params), *rest)
    x, y = array(mesh, (4, 8), P("data")), array(mesh, (4, 12), P("data", "model"))
    return jax.jit(step), (params, state, x, y)


def scanned_layers(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """Three layers in a scan, forward only."""

    def f(params: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, Any]:
            hidden = jnp.tanh(x @ w[0])
            out = hidden @ w[1]
            return out, out.sum()

        return lax.scan(layer, x, params)

    shapes = ((3, 8, 16), P(None, None, "model")), ((3, 16, 8), P(None, "model"))
    params = tuple(array(mesh, shape, spec) for shape, spec in shapes)
    return jax.jit(f), (params, array(mesh, (4, 8), P("data")))


ROW_AND_COLUMN = "data=2,model=4"
PROGRAMS = {
    "matmul, rows": JitProgram("data=8", matmul(P("data"), P())),
    "matmul, columns": JitProgram("model=8", matmul(P(), P(None, "model"))),
    "matmul, both": JitProgram(ROW_AND_COLUMN, matmul(P("data"), P(None, "model"))),
    "matmul, contracted": JitProgram("model=8", matmul(P(None, "model"), P("model"))),
    "matmul, contracted and scattered": JitProgram(
        "model=8", matmul(P(None, "model"), P("model"), P("model"))
    ),
    "column then row": JitProgram(ROW_AND_COLUMN, column_then_row),
    "constraints between layouts": JitProgram("model=4,rest=2", constraints_between),
    "slice of a replicated array": JitProgram(ROW_AND_COLUMN, slice_of_replicated),
    "batch norm": JitProgram("data=8", batch_norm),
    "softmax over a sharded dimension": JitProgram(ROW_AND_COLUMN, softmax_over_sharded),
    "embedding": JitProgram(ROW_AND_COLUMN, embedding),
    "uneven": JitProgram("model=4,rest=2", uneven),
    "transposed product": JitProgram("data=8", transposed_product),
    "attention over heads": JitProgram(ROW_AND_COLUMN, attention),
    "remat": JitProgram(ROW_AND_COLUMN, remat_mlp),
    "adam step": JitProgram(ROW_AND_COLUMN, adam_step),
    "scan over layers": JitProgram(ROW_AND_COLUMN, scanned_layers),
    **{name: JitProgram(program.mesh, program.make) for name, program in SHARDED.items()},
}
