"""Optimizer states, statistics and counters in a tree beside its parameters."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState

import shardlab
from shardlab.errors import InvalidModel
from shardlab.planner.models.load import load_model
from shardlab.planner.models.model_json import model_from_json, model_to_json

PARAMS = {"down": jnp.ones((6, 4)), "up": {"kernel": jnp.ones((4, 6))}}
ADAM = optax.adam(1e-3)


class Linear(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(4, 6, rngs=nnx.Rngs(0))


class Trained(nnx.Module):
    """A module that holds its optimizer."""

    def __init__(self):
        self.model = Linear()
        self.optimizer = nnx.Optimizer(self.model, ADAM, wrt=nnx.Param)


def train_state():
    return TrainState.create(apply_fn=None, params=PARAMS, tx=ADAM)


def beside():
    model = Linear()
    return {"model": model, "optimizer": nnx.Optimizer(model, ADAM, wrt=nnx.Param)}


NNX = nnx.state(Linear(), nnx.Param)
TREES = {
    "a train state of Flax": (train_state, PARAMS),
    "its shapes": (lambda: jax.eval_shape(train_state), PARAMS),
    "a dict": (lambda: {"params": PARAMS, "opt_state": ADAM.init(PARAMS)}, PARAMS),
    "a tuple": (lambda: (PARAMS, ADAM.init(PARAMS)), PARAMS),
    "t5x": (lambda: {"target": PARAMS, "state": {"param_states": ADAM.init(PARAMS)}}, PARAMS),
    "an NNX optimizer beside its model": (beside, NNX),
    "an NNX optimizer in a module": (Trained, NNX),
    "their states": (lambda: nnx.state(Trained()), NNX),
    "their names": (lambda: nnx.to_pure_dict(nnx.state(Trained())), NNX),
}


def n_bytes(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def array_kinds(result):
    """Return the kinds of bytes that are held for each path."""
    return {row.path: [array.kind for array in row.arrays] for row in result.rows}


@pytest.mark.parametrize(("tree", "params"), TREES.values(), ids=TREES)
def test_an_optimizer_in_the_tree_is_not_counted_a_second_time(tree, params):
    result = shardlab.plan(tree(), "fsdp=2", optimizer="adam")
    assert result.n_parameters == sum(map(jnp.size, jax.tree.leaves(params)))
    assert result.bytes_of("gradients") == n_bytes(params)
    assert result.bytes_of("optimizer") == n_bytes(ADAM.init(params))
    assert any("optimizer arrays in the model" in note for note in result.notes)


@pytest.mark.parametrize(("tree", "params"), TREES.values(), ids=TREES)
def test_without_another_optimizer_its_arrays_count_as_they_are(tree, params):
    result = shardlab.plan(tree(), "fsdp=2")
    counter = 4 if params is NNX else 0  # NNX counts steps itself
    assert result.bytes_of("optimizer") == n_bytes(ADAM.init(params)) + counter
    assert result.n_parameters == sum(map(jnp.size, jax.tree.leaves(params)))


@pytest.mark.parametrize("tree", [ADAM.init(PARAMS), beside()["optimizer"]], ids=["optax", "nnx"])
def test_an_optimizer_alone_is_no_model(tree):
    assert shardlab.plan(tree, "fsdp=2").n_parameters == 0
    with pytest.raises(InvalidModel, match="has optimizer states but no model"):
        shardlab.plan(tree, "fsdp=2", optimizer="adam")


def test_advice_leaves_an_optimizer_in_the_tree_out():
    best = [
        shardlab.advise(tree, "tpu-v5e", devices=4).ranked[0] for tree in (train_state(), PARAMS)
    ]
    assert best[0].bytes_per_device == best[1].bytes_per_device


def test_a_child_process_tells_what_is_an_optimizers():
    model = load_model(train_state())
    assert model_from_json(model_to_json(model)).groups == model.groups


class Normed(linen.Module):
    @linen.compact
    def __call__(self, inputs):
        inputs = linen.Dense(6)(inputs)
        attention = linen.MultiHeadDotProductAttention(num_heads=2, decode=True)
        return attention(linen.BatchNorm(use_running_average=False)(inputs))


def test_only_the_params_of_linens_collections_are_trained():
    variables = jax.eval_shape(Normed().init, jax.random.key(0), jnp.ones((2, 3, 4)))
    result = shardlab.plan(variables, "fsdp=2", optimizer="adam")
    assert variables.keys() == {"params", "batch_stats", "cache"}
    trained = {path for path, kinds in array_kinds(result).items() if "gradients" in kinds}
    assert trained
    assert all(path.startswith("params/") for path in trained)
    assert result.n_parameters == sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))


def test_equinox_states_and_flags_are_not_trained():
    class Model(eqx.Module):
        linear: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self, key):
            self.linear = eqx.nn.Linear(4, 6, key=key)
            self.norm = eqx.nn.BatchNorm(6, "batch", mode="batch")

    result = shardlab.plan(
        lambda key: eqx.nn.make_with_state(Model)(key), "fsdp=2", optimizer="sgd"
    )
    assert result.n_parameters == 4 * 6 + 6 + 6 + 6
    assert {path[0] for path, kinds in array_kinds(result).items() if "gradients" not in kinds} == {
        "1"
    }


def test_a_checkpoint_of_nnx_is_its_model(tmp_path):
    class Both(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(4, 6, rngs=nnx.Rngs(0))
            self.norm = nnx.BatchNorm(6, rngs=nnx.Rngs(0))

    model = Both()
    optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)
    saved = [nnx.to_pure_dict(nnx.state(item)) for item in (model, optimizer)]
    for number, tree in enumerate((dict(zip(("model", "optimizer"), saved, strict=True)), saved)):
        folder = tmp_path / str(number)
        ocp.PyTreeCheckpointer().save(folder, tree)
        result = shardlab.plan(folder, "fsdp=2", optimizer="adam")
        assert result.n_parameters == 4 * 6 + 6 + 6 + 6
        assert result.bytes_of("optimizer") == 2 * 4 * result.n_parameters + 4
        assert any("The optimizer states in the checkpoint" in note for note in result.notes)
