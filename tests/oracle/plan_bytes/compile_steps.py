"""Compile train steps for forced host devices and print the bytes of their arguments.

Run by test_argument_bytes.py in a process of its own: the number of devices is fixed when JAX is
first used. Reads in JSON on standard input which plans to compile, prints a line of JSON for each.
Nothing is allocated: arguments are shapes with the shardings that the plan gives.
"""

from __future__ import annotations

import json
import math
import os
import sys
from functools import partial

JOB = json.loads(sys.stdin.readline())
os.environ["JAX_PLATFORMS"] = "cpu"
# Code is compiled to be measured, not run: the compiler's last stage need not try hard.
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={JOB['devices']} --xla_backend_optimization_level=0"
)

import jax  # noqa: E402 - after the number of devices is set
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

import shardlab  # noqa: E402
from shardlab.planner.models.load import load_model  # noqa: E402
from shardlab.planner.strategies.axis_roles import batch_axes  # noqa: E402
from shardlab.sharding.dtype import parse_dtype  # noqa: E402

sys.path.insert(0, JOB["examples"])

import llama  # noqa: E402 - beside this file
import nnx_transformer  # noqa: E402 - in the folder of examples

OPTIMIZERS = {
    "adam": optax.adam(1e-3),
    "adamw": optax.adamw(1e-3),
    "adafactor": optax.adafactor(1e-3),
    "sgd": optax.sgd(1e-3),
    "momentum": optax.sgd(1e-3, momentum=0.9),
    "lion": optax.lion(1e-3),
    "muon": optax.contrib.muon(1e-3),
}


def main():
    for case in JOB["cases"]:
        prove = llama_step if case["model"] == "llama3-8b" else decoder_step
        print(json.dumps(prove(**case)), flush=True)


def llama_step(model, mesh, strategy, optimizer):
    result = shardlab.plan(model, mesh, strategy=strategy, optimizer=optimizer)
    loaded = load_model(model)
    trees = trees_of(result, loaded, jax_mesh(mesh))
    remaining = optax_state(llama.OPTIMIZER, trees["master"], trees)
    tokens = tokens_on(jax_mesh(mesh))
    state = (trees["parameter"], trees["master"], remaining)
    return measured(result, partial(llama.step, loaded.architecture), state, tokens)


def decoder_step(model, mesh, strategy, optimizer):
    result = shardlab.plan(
        nnx_transformer.Decoder, mesh, strategy=strategy or None, optimizer=optimizer
    )
    with nnx.use_eager_sharding(False):
        graph, abstract = nnx.split(
            nnx.eval_shape(lambda: nnx_transformer.Decoder(rngs=nnx.Rngs(0)))
        )
    trees = trees_of(result, load_model(nnx_transformer.Decoder), jax_mesh(mesh))
    params = nnx.from_flat_state(
        (path, variable.replace(as_planned(variable.get_value(), trees["parameter"][named(path)])))
        for path, variable in nnx.to_flat_state(abstract)
    )
    tx = OPTIMIZERS[optimizer]
    remaining = optax_state(tx, trees["parameter"], trees)

    def step(params, remaining, tokens):
        def loss(params):
            return nnx_transformer.loss(nnx.merge(graph, params), tokens)

        value, gradients = jax.value_and_grad(loss)(params)
        flat = by_path(params)
        updates, remaining = tx.update(by_path(gradients), remaining, flat)
        return optax.apply_updates(flat, updates), remaining, value

    return measured(result, step, params, remaining, tokens_on(jax_mesh(mesh)))


def named(path):
    return "/".join(map(str, path))


def by_path(state):
    """Return the arrays of a state by their paths, as a plan names them."""
    return {named(path): item[...] for path, item in nnx.to_flat_state(state)}


def as_planned(theirs, ours):
    """Return the planned array, which must be the one that is there."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), (ours, theirs)
    return ours


def jax_mesh(mesh):
    parsed = shardlab.parse_mesh(mesh)
    types = (AxisType.Auto,) * len(parsed.axis_names)
    return jax.make_mesh(parsed.axis_sizes, parsed.axis_names, axis_types=types)


def tokens_on(mesh):
    """Return a batch cut over the mesh axes that cut batches, one sequence in each part."""
    axes = batch_axes(shardlab.parse_mesh(dict(mesh.shape)))
    n = math.prod(mesh.shape[name] for name in axes)
    sharding = NamedSharding(mesh, PartitionSpec(axes))
    return jax.ShapeDtypeStruct((n, 64), jnp.int32, sharding=sharding)


def trees_of(result, model, mesh):
    """Return the arrays of a plan by name ("parameter", "mu", ...) and path, with its shardings."""
    rows = {row.path: row for row in result.rows}
    trees = {}
    for group in model.groups:
        for array in rows[group.name].arrays:
            sharding = NamedSharding(mesh, PartitionSpec(*array.spec.entries))
            dtype = parse_dtype(array.dtype).name
            struct = jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding)
            trees.setdefault(array.name, {}).update(dict.fromkeys(group.paths(), struct))
    return trees


def optax_state(tx, params, trees):
    """Return what Optax itself keeps, each array cut as the plan says of the one of that name."""

    def planned(path, leaf):
        names = [jax.tree_util.keystr((key,), simple=True) for key in path]
        ours = next(
            (trees[n][p] for n in names if n in trees for p in names if p in trees[n]), None
        )
        return leaf if ours is None else as_planned(leaf, ours)  # without a plan: a counter

    return jax.tree_util.tree_map_with_path(planned, jax.eval_shape(tx.init, params))


def measured(result, step, *args):
    """Return the plan's bytes, those of the batch by its own layout, and the compiler's."""
    # An array that the step does not read is held all the same: Adafactor's placeholders.
    compiled = jax.jit(step, keep_unused=True).lower(*args).compile()
    tokens = args[-1]
    batch = shardlab.layout(
        tokens.shape, tokens.sharding.spec, dict(result.mesh), dtype=tokens.dtype
    )
    return {
        "planned": result.bytes_of("parameters") + result.bytes_of("optimizer"),
        "batch": batch.bytes_per_device,
        "measured": compiled.memory_analysis().argument_size_in_bytes,
        "tensors": sum(row.n_tensors for row in result.rows),
    }


main()
