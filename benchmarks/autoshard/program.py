"""One program of the autoshard benchmark, and what its makers share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

MESHES = ("data=64", "data=16,model=4", "data=8,model=8")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkProgram:
    """A function, the shapes of its arguments, three meshes and the hardware.

    A train step takes and returns its state first: parameters, then optimizer state.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]  # pytrees of ShapeDtypeStructs
    meshes: tuple[str, str, str] = MESHES
    hardware: str = "tpu-v5p"


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def tokens(*shape: int) -> jax.ShapeDtypeStruct:
    return array(*shape, dtype=jnp.int32)


def stacked(n_layers: int, layer: Any) -> Any:
    """Return the shapes of a layer, stacked for a scan over layers."""
    return jax.tree.map(lambda leaf: array(n_layers, *leaf.shape, dtype=leaf.dtype), layer)


def train_program(
    loss: Callable[..., Any],
    params: Any,
    *batch: Any,
    optimizer: optax.GradientTransformation | None = None,
    meshes: tuple[str, str, str] = MESHES,
) -> BenchmarkProgram:
    """Return one step of an optimizer, by default Adam, on `loss(params, *batch)`."""
    transformation = optimizer or optax.adam(1e-3)

    def train_step(params: Any, opt_state: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, opt_state = transformation.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    opt_state = jax.eval_shape(transformation.init, params)
    return BenchmarkProgram(function=train_step, args=(params, opt_state, *batch), meshes=meshes)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the mean loss of integer labels."""
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[..., None], -1))
