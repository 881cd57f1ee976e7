"""Jits with NamedShardings, and what each must communicate, derived by hand.

A mesh axis of size g; every device holds batch B, sequence S, width D, hidden F, heads H (of keys
and values K) of size E, each divided by the mesh axes that shard it. f32 unless stated otherwise.

Rules that all lists follow: a product over a sharded width or hidden axis leaves partial sums, one
psum over that axis (a psum_scatter if the result is sharded over it). A weight that is sharded
over 'data' (FSDP) is gathered once, for forward and backward alike, and its gradient scattered; one
that is not has its gradient summed over 'data'. The mean of the loss is a psum of one number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

B, S, D, F = 16, 8, 32, 96
H, K, E = 8, 4, 6
N_LAYERS = 2

# operation, mesh axes, payload bytes, phase -> total count
Calls = dict[tuple[str, str, int, str], int]


@dataclasses.dataclass(frozen=True)
class Sharded:
    """A program for one mesh, and the calls that the compiler must insert."""

    mesh: str
    make: Callable[[Any], tuple[Any, tuple[Any, ...]]]  # mesh -> jit and arguments
    calls: Calls


def array(mesh: Any, shape: tuple[int, ...], spec: P, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def constrain(x: Any, mesh: Any, spec: P | None) -> Any:
    return x if spec is None else lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def gradients(loss: Any, mesh: Any, specs: Any) -> Any:
    """Return value and gradients, these sharded as the parameters are."""
    outs = jax.tree.map(lambda spec: NamedSharding(mesh, spec), (P(), specs))
    return jax.jit(jax.value_and_grad(loss), out_shardings=outs)


# ---------------------------------------------------------------------------------------------- MLP


def mlp(up: P, down: P, x: P, between: P | None = None, hidden: P | None = None) -> Any:
    """Return a maker of two layers: relu(x @ up) @ down, the mean square as loss."""
    rank = 3 if hidden is not None and len(hidden) == 3 else 2

    def make(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
        def loss(params: Any, x: Any) -> Any:
            for w_up, w_down in params:
                h = jax.nn.relu(constrain(x @ w_up, mesh, hidden))
                x = constrain(h @ w_down, mesh, between)
            return jnp.mean(x**2)

        specs = [(up, down)] * N_LAYERS
        layer = array(mesh, (D, F), up), array(mesh, (F, D), down)
        inputs = array(mesh, (B, S, D) if rank == 3 else (B, D), x)
        return gradients(loss, mesh, specs), ([layer] * N_LAYERS, inputs)

    return make


def scanned_mlp(n_layers: int, dtype: Any) -> Any:
    """Return a maker of the FSDP and tensor-parallel MLP as a scan over stacked layers."""

    def make(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
        def loss(params: Any, x: Any) -> Any:
            def layer(x: Any, w: Any) -> tuple[Any, None]:
                h = jax.nn.relu(constrain(x @ w[0], mesh, P("data", "model")))
                return constrain(h @ w[1], mesh, P("data")), None

            x, _ = lax.scan(layer, x, params)
            return jnp.mean(x.astype(jnp.float32) ** 2)

        specs = P(None, "data", "model"), P(None, "model", "data")
        shapes = (n_layers, D, F), (n_layers, F, D)
        params = tuple(
            array(mesh, shape, spec, dtype) for shape, spec in zip(shapes, specs, strict=True)
        )
        return gradients(loss, mesh, specs), (params, array(mesh, (B, D), P("data"), dtype))

    return make


# -------------------------------------------------------------------------------------------- Llama


def llama(data: str | None, between: P) -> Any:
    """Return a maker of one block: grouped-query attention and SwiGLU, tensor parallel.

    `data` is the mesh axis that shards the weights too (FSDP), or None.
    """
    specs = {
        "norm1": P(),
        "q": P(data, "model"),
        "k": P(data, "model"),
        "v": P(data, "model"),
        "o": P("model", None, data),
        "norm2": P(),
        "gate": P(data, "model"),
        "up": P(data, "model"),
        "down": P("model", data),
    }
    shapes = {"norm1": (D,), "q": (D, H, E), "k": (D, K, E), "v": (D, K, E), "o": (H, E, D)}
    shapes |= {"norm2": (D,), "gate": (D, F), "up": (D, F), "down": (F, D)}

    def make(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
        params = {name: array(mesh, shapes[name], specs[name]) for name in shapes}
        loss = _llama_loss(mesh, between)
        return gradients(loss, mesh, specs), (params, array(mesh, (B, S, D), between))

    return make


def _llama_loss(mesh: Any, between: P) -> Any:
    heads, hidden = P("data", None, "model"), P("data", None, "model")

    def normalise(x: Any, scale: Any) -> Any:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale

    def attention(p: Any, y: Any) -> Any:
        q, k, v = (
            constrain(jnp.einsum("bsd,dhe->bshe", y, p[name]), mesh, heads) for name in "qkv"
        )
        q = q.reshape(*q.shape[:2], K, H // K, E)
        scores = jnp.einsum("bskge,btke->bkgst", q, k) * E**-0.5
        past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(past, scores, -1e9))
        mixed = jnp.einsum("bkgst,btke->bskge", weights, v)
        mixed = constrain(mixed.reshape(*y.shape[:2], H, E), mesh, heads)
        return jnp.einsum("bshe,hed->bsd", mixed, p["o"])

    def loss(p: Any, x: Any) -> Any:
        x = constrain(x + attention(p, normalise(x, p["norm1"])), mesh, between)
        y = normalise(x, p["norm2"])
        h = constrain(jax.nn.silu(y @ p["gate"]) * (y @ p["up"]), mesh, hidden)
        x = constrain(x + h @ p["down"], mesh, between)
        return jnp.mean(x**2)

    return loss


# ----------------------------------------------------------------------------------- expected calls

WEIGHT = D * F * 4  # of up, or of down
LOSS = 4
# Per device on data=2, model=4.
ACTIVATION = B // 2 * D * 4
SEQUENCE = B // 2 * S * D * 4
ATTENTION = {"q": D * H * E * 4, "k": D * K * E * 4, "v": D * K * E * 4, "o": H * E * D * 4}
LLAMA = [*ATTENTION.values(), WEIGHT, WEIGHT, WEIGHT]
NORM = D * 4


def tally(*calls: tuple[str, str, int, str, int]) -> Calls:
    """Return the count of each call; equal calls are added up."""
    counts: Calls = {}
    for *key, count in calls:
        op, axes, payload, phase = key
        counts[op, axes, payload, phase] = counts.get((op, axes, payload, phase), 0) + count
    return counts


PROGRAMS = {
    # Replicated weights, a batch of 2 each: only the loss and four gradients communicate.
    "data parallel": Sharded(
        "data=8",
        mlp(P(), P(), P("data")),
        tally(
            ("psum", "data", LOSS, "forward", 1),
            ("psum", "data", WEIGHT, "backward", 4),
        ),
    ),
    # Each device stores an eighth of each weight: gathered for use, gradients scattered.
    "FSDP": Sharded(
        "data=8",
        mlp(P("data"), P("data"), P("data"), between=P("data"), hidden=P("data")),
        tally(
            ("all_gather", "data", WEIGHT // 8, "forward", 4),
            ("psum", "data", LOSS, "forward", 1),
            ("psum_scatter", "data", WEIGHT, "backward", 4),
        ),
    ),
    # Two psums of the full batch forward; backward only that of the input of layer 2, because the
    # gradient of x is not requested.
    "tensor parallel": Sharded(
        "model=8",
        mlp(P(None, "model"), P("model"), P()),
        tally(
            ("psum", "model", B * D * 4, "forward", 2),
            ("psum", "model", B * D * 4, "backward", 1),
        ),
    ),
    # Each psum is a psum_scatter over the sequence and a gather before the next product; backward
    # it is the reverse: the gradient of each output is gathered, that of the input of layer 2
    # scattered.
    "sequence parallel": Sharded(
        "model=8",
        mlp(
            P(None, "model"),
            P("model"),
            P(None, "model"),
            between=P(None, "model"),
            hidden=P(None, None, "model"),
        ),
        tally(
            ("all_gather", "model", B * S * D * 4 // 8, "forward", 2),
            ("psum_scatter", "model", B * S * D * 4, "forward", 2),
            ("psum", "model", LOSS, "forward", 1),
            ("all_gather", "model", B * S * D * 4 // 8, "backward", 2),
            ("psum_scatter", "model", B * S * D * 4, "backward", 1),
        ),
    ),
    "data and tensor parallel": Sharded(
        "data=2,model=4",
        mlp(P(None, "model"), P("model"), P("data")),
        tally(
            ("psum", "model", ACTIVATION, "forward", 2),
            ("psum", "data", LOSS, "forward", 1),
            ("psum", "model", ACTIVATION, "backward", 1),
            ("psum", "data", WEIGHT // 4, "backward", 4),
        ),
    ),
    "FSDP and tensor parallel": Sharded(
        "data=2,model=4",
        mlp(
            P("data", "model"),
            P("model", "data"),
            P("data"),
            between=P("data"),
            hidden=P("data", "model"),
        ),
        tally(
            ("all_gather", "data", WEIGHT // 8, "forward", 4),
            ("psum", "model", ACTIVATION, "forward", 2),
            ("psum", "data", LOSS, "forward", 1),
            ("psum", "model", ACTIVATION, "backward", 1),
            ("psum_scatter", "data", WEIGHT // 4, "backward", 4),
        ),
    ),
    # The loss is summed over 'model' as well, because the sequence is sharded over it.
    "FSDP, tensor and sequence parallel": Sharded(
        "data=2,model=4",
        mlp(
            P("data", "model"),
            P("model", "data"),
            P("data", "model"),
            between=P("data", "model"),
            hidden=P("data", None, "model"),
        ),
        tally(
            ("all_gather", "data", WEIGHT // 8, "forward", 4),
            ("all_gather", "model", SEQUENCE // 4, "forward", 2),
            ("psum_scatter", "model", SEQUENCE, "forward", 2),
            ("psum", "data", LOSS, "forward", 1),
            ("psum", "model", LOSS, "forward", 1),
            ("all_gather", "model", SEQUENCE // 4, "backward", 2),
            ("psum_scatter", "model", SEQUENCE, "backward", 1),
            ("psum_scatter", "data", WEIGHT // 4, "backward", 4),
        ),
    ),
    # Megatron: one psum after attention and one after the MLP, and as many backward, where the
    # three gradients that reach the input of q, k and v (and the two of gate and up) are added
    # first. Weights are summed over 'data', the scales of both norms too.
    "Llama, data and tensor parallel": Sharded(
        "data=2,model=4",
        llama(None, P("data")),
        tally(
            ("psum", "model", SEQUENCE, "forward", 2),
            ("psum", "data", LOSS, "forward", 1),
            ("psum", "model", SEQUENCE, "backward", 2),
            *(("psum", "data", weight // 4, "backward", 1) for weight in LLAMA),
            ("psum", "data", NORM, "backward", 2),
        ),
    ),
    "Llama, FSDP and tensor parallel": Sharded(
        "data=2,model=4",
        llama("data", P("data")),
        tally(
            *(("all_gather", "data", weight // 8, "forward", 1) for weight in LLAMA),
            ("psum", "model", SEQUENCE, "forward", 2),
            ("psum", "data", LOSS, "forward", 1),
            ("psum", "model", SEQUENCE, "backward", 2),
            *(("psum_scatter", "data", weight // 4, "backward", 1) for weight in LLAMA),
            ("psum", "data", NORM, "backward", 2),
        ),
    ),
    # Between blocks each device has a quarter of the sequence, and so do the norms: the gradients
    # of their scales are also summed over 'model'.
    "Llama, tensor and sequence parallel": Sharded(
        "data=2,model=4",
        llama(None, P("data", "model")),
        tally(
            ("all_gather", "model", SEQUENCE // 4, "forward", 2),
            ("psum_scatter", "model", SEQUENCE, "forward", 2),
            ("psum", "data", LOSS, "forward", 1),
            ("psum", "model", LOSS, "forward", 1),
            ("all_gather", "model", SEQUENCE // 4, "backward", 2),
            ("psum_scatter", "model", SEQUENCE, "backward", 2),
            *(("psum", "data", weight // 4, "backward", 1) for weight in LLAMA),
            ("psum", "data", NORM, "backward", 2),
            ("psum", "model", NORM, "backward", 2),
        ),
    ),
    # Six layers in a scan: everything inside happens six times, forward and backward; bf16 is 2
    # bytes. A scan does not save gathered weights for the backward pass: they are gathered again
    # there. The loss is f32.
    "scanned layers in bf16": Sharded(
        "data=2,model=4",
        scanned_mlp(6, jnp.bfloat16),
        tally(
            ("all_gather", "data", WEIGHT // 2 // 8, "forward", 6 * 2),
            ("psum", "model", ACTIVATION // 2, "forward", 6),
            ("psum", "data", LOSS, "forward", 1),
            ("all_gather", "data", WEIGHT // 2 // 8, "backward", 6 * 2),
            ("psum", "model", ACTIVATION // 2, "backward", 6),
            ("psum_scatter", "data", WEIGHT // 2 // 4, "backward", 6 * 2),
        ),
    ),
}
