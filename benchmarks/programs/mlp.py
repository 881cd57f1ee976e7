"""A train step of a two-layer MLP: batch over `data`, hidden units over `model`, SGD.

Two sizes, both about 70 ms on 2 cores, because they reveal different problems. In the default size
the batch is as large as the widths, as in training; forced host devices copy the weights (13 MB) to
every data row, and larger weights would favor the simulator in that comparison. In `WIDE`, weights
(42 MB) dominate, so a gradient that is copied, transposed or stored once per device slows the step.
A 32x32 mesh still gives each device at least 8 examples and at least 48 hidden units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.programs.program import Program, identity

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Size:
    """Batch size and widths of the MLP."""

    batch: int = 1024
    features: int = 1024
    hidden: int = 1536


WIDE = Size(batch=256, hidden=5120)


# As square as a power of two allows: both mesh axes communicate.
_MESHES = {8: (4, 2), 64: (8, 8), 256: (16, 16), 512: (16, 32), 1024: (32, 32)}


def make_program(n_devices: int, size: Size | None = None) -> Program:
    n_data, n_model = _MESHES[n_devices]
    specs = {"up": P(None, "model"), "up_bias": P("model"), "down": P("model"), "down_bias": P()}
    return Program(
        mesh={"data": n_data, "model": n_model},
        body=_per_device_step,
        in_specs=(specs, P("data"), P("data")),
        out_specs=(P(), specs),
        unsharded=train_step,
        inputs=lambda: _make_inputs(size or Size()),
    )


def train_step(
    params: Params,
    x: Any,
    y: Any,
    psum_model: Callable[[Any], Any] = identity,
    pmean_data: Callable[[Any], Any] = identity,
) -> tuple[Any, Params]:
    def loss_function(params: Params) -> Any:
        hidden = jax.nn.relu(x @ params["up"] + params["up_bias"])
        # The bias is added after the psum, or it would count once per device along `model`.
        out = psum_model(hidden @ params["down"]) + params["down_bias"]
        return pmean_data(jnp.mean((out - y) ** 2))

    loss, grads = jax.value_and_grad(loss_function)(params)
    return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def _per_device_step(params: Params, x: Any, y: Any) -> tuple[Any, Params]:
    return train_step(
        params,
        x,
        y,
        psum_model=lambda partial: lax.psum(partial, "model"),
        pmean_data=lambda mean: lax.pmean(mean, "data"),
    )


def _make_inputs(size: Size) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> Any:
        return rng.standard_normal(shape, np.float32) * np.float32(scale)

    params = {
        "up": normal(size.features, size.hidden, scale=size.features**-0.5),
        "up_bias": normal(size.hidden, scale=0.1),
        "down": normal(size.hidden, size.features, scale=size.hidden**-0.5),
        "down_bias": normal(size.features, scale=0.1),
    }
    return params, normal(size.batch, size.features), normal(size.batch, size.features)
