"""Proofs of real programs: what is right is proven, and each wrong claim fails its own proof."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardlab.autoshard.answer import ConstraintSpec
from shardlab.autoshard.find_shardings import autoshard
from shardlab.autoshard.proof.proof_request import ProofOptions
from shardlab.autoshard.proof.prove import prove, prove_answer
from shardlab.errors import LabError, LayoutMismatch
from shardlab.sharding.spec import Spec

MESH = "data=4,model=2"


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def loss(params, x):
    hidden = jax.nn.relu(x @ params["up"])
    return jnp.mean(jnp.square((hidden @ params["down"]).astype(jnp.float32)))


def train_step(params, x):
    value, gradients = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value


# Leaves in JAX's order: down, up, x. Megatron: up by columns, down by rows, and the batch.
PARAMS = {"up": array(64, 256, dtype=jnp.bfloat16), "down": array(256, 64, dtype=jnp.bfloat16)}
ARGS = (PARAMS, array(128, 64, dtype=jnp.bfloat16))
SPECS = (P("model"), P(None, "model"), P("data"))
OPTIONS = ProofOptions(state={0: 0, 1: 1})


@pytest.fixture(scope="module")
def megatron():
    return prove(train_step, ARGS, MESH, SPECS, OPTIONS)


def test_megatron_shardings_of_a_train_step_are_proven_in_all_three_ways(megatron):
    assert megatron.verdict == "proven", str(megatron)
    # One all-reduce over model joins the row-parallel products, the rest are gradients.
    assert megatron.collectives.differences == ()
    assert {total.mesh_axes for total in megatron.collectives.xla} == {("data",), ("model",)}
    # The loss and two new matrices, on 2 x 2 devices.
    assert megatron.values.mesh == (("data", 2), ("model", 2))
    assert megatron.values.n_outputs == 3
    assert megatron.values.n_elements == 2 * 64 * 256 + 1
    assert "float32" in megatron.values.inputs
    # Both matrices over 2 devices, the batch over 4; two bytes each.
    assert megatron.memory.argument_bytes == 2 * (2 * 64 * 256 // 2 + 128 * 64 // 4)


def test_a_proof_is_text_and_plain_data(megatron):
    assert str(megatron).splitlines()[0] == "train_step on data=4,model=2: proven"
    data = megatron.to_json()
    assert data["mesh"] == {"data": 4, "model": 2}
    assert data["values"]["verdict"] == "proven"


def test_collectives_that_were_tampered_with_are_disproven(megatron):
    assert max(total.wire_bytes for total in megatron.collectives.claimed) > 1024
    tampered = dataclasses.replace(OPTIONS, collectives=())
    proof = prove(train_step, ARGS, MESH, SPECS, tampered)
    assert proof.collectives.verdict == "disproven"
    assert proof.verdict == "disproven"
    assert "not claimed" in proof.collectives.sentence


def test_memory_over_the_limit_is_disproven():
    limited = dataclasses.replace(OPTIONS, memory_limit=30_000)
    proof = prove(train_step, ARGS, MESH, SPECS, limited)
    assert proof.memory.verdict == "disproven"
    assert "30.0 kB" in proof.memory.sentence
    assert proof.values.verdict == "proven"


def test_a_program_whose_result_depends_on_its_mesh_is_disproven():
    def mean_of_shards(x):
        # A mean over the shard alone: each device has another one, and no copy is right.
        def center(shard):
            return shard - jnp.mean(shard)

        return jax.shard_map(center, in_specs=P("data"), out_specs=P("data"))(x)

    proof = prove(mean_of_shards, (array(16, 3),), "data=4", (P("data"),))
    assert proof.values.verdict == "disproven"
    assert proof.values.worst_error > proof.values.worst_tolerance


def test_copies_that_differ_although_they_are_declared_equal_are_disproven():
    def forgotten_psum(x):
        def total(shard):
            return jnp.sum(shard, keepdims=True)

        return jax.shard_map(total, in_specs=P("data"), out_specs=P(), check_vma=False)(x)

    proof = prove(forgotten_psum, (array(16),), "data=2", (P("data"),))
    assert proof.values.verdict == "disproven"


def test_large_arrays_are_run_with_smaller_shapes():
    args = (array(65536, 1024), array(1024, 4096))
    proof = prove(lambda x, w: jnp.tanh(x @ w), args, "data=8", (P("data"), P()))
    assert proof.values.verdict == "proven"
    assert "smaller shapes" in proof.values.sentence


def test_a_program_that_only_takes_its_own_large_shapes_is_not_proven():
    def fixed(x):
        return jnp.sum(x.reshape(4096, 4096, 4), axis=1)

    proof = prove(fixed, (array(4096 * 4096 * 4),), "data=8", (P("data"),))
    assert proof.values.verdict == "not proven"
    assert proof.values.sentence.startswith("not simulated: its arguments take 268.4 MB")
    assert proof.verdict == "not proven"


def test_an_output_without_a_finite_value_is_not_proven():
    proof = prove(lambda x: (x + 1, jnp.log(-1 - jnp.abs(x))), (array(8),), "data=2", (P("data"),))
    assert proof.values.verdict == "not proven"
    assert "no finite element" in proof.values.sentence


def test_a_compiler_that_does_not_finish_proves_nothing():
    # A time limit that no process start can meet, on any machine.
    options = ProofOptions(compile_limit_s=0.0, run_limit_s=0.0)
    proof = prove(jnp.tanh, (array(8),), "data=2", (P("data"),), options)
    verdicts = {proof.collectives.verdict, proof.values.verdict, proof.memory.verdict}
    assert verdicts == {"not proven"}
    assert "0 s" in proof.values.sentence


def test_donated_arguments_are_counted_once():
    step = jax.jit(train_step, donate_argnums=0)
    proof = prove(step, ARGS, MESH, SPECS, OPTIONS)
    assert proof.memory.alias_bytes == 2 * (2 * 64 * 256 // 2)


def square_loss(w, x):
    return jnp.mean(jnp.square(x @ w))  # the line of the constraint below


# The name of the function is on the line before.
PRODUCT_LINE = f"{__file__}:{square_loss.__code__.co_firstlineno + 1}"


def constrained(spec):
    item = ConstraintSpec(source=PRODUCT_LINE, shape=(64, 32), spec=spec, is_carry=False)
    args = (array(128, 32), array(64, 128))
    options = ProofOptions(constraints=(item,))
    return prove(square_loss, args, "data=4", (P("data"), P(None, "data")), options)


def test_a_constraint_inside_of_the_program_is_compiled_by_xla_too():
    scattered, replicated = constrained(Spec("data")), constrained(Spec(None, None))
    for proof in (scattered, replicated):
        assert proof.collectives.verdict == "proven", str(proof)
        assert proof.memory.verdict == "proven"
        assert "without the 1 constraint" in proof.values.sentence
    # Sharded over the rows, the sum of the products is a reduce-scatter: half the bytes.
    full, half = (
        max(total.wire_bytes for total in proof.collectives.xla)
        for proof in (replicated, scattered)
    )
    assert full == 2 * half


def test_a_constraint_at_another_line_is_not_proven():
    item = ConstraintSpec(source="other.py:1", shape=(64, 32), spec=Spec(), is_carry=False)
    options = ProofOptions(constraints=(item,))
    proof = prove(square_loss, (array(128, 32), array(64, 128)), "data=4", (P(), P()), options)
    assert proof.collectives.verdict == "not proven"
    assert "no place for a constraint at other.py:1" in proof.collectives.sentence


def test_an_answer_of_autoshard_is_proven():
    answer = autoshard(train_step, *ARGS, mesh=MESH, budget=60.0, prove=False)
    proof = prove_answer(train_step, ARGS, answer)
    assert proof.verdict == "proven", str(proof)
    assert proof.memory.limit_bytes == answer.memory_limit


def test_tokens_and_a_random_key_are_drawn_so_that_outputs_are_finite():
    def sample(table, ids, key):
        return jnp.take(table, ids, axis=0) + jax.random.normal(key, (ids.shape[0], 8))

    key = jax.eval_shape(lambda: jax.random.key(0))
    args = (array(32, 8), array(16, dtype=jnp.int32), key)
    proof = prove(sample, args, "data=4", (P("data"), P("data"), P()))
    assert proof.values.verdict == "proven"
    assert proof.values.n_elements == 16 * 8
    # Shardy takes the key as the array of integers that JAX lowers it to.
    assert proof.collectives.claimed != ()
    assert proof.collectives.verdict == "proven"


def test_specs_must_fit_the_arguments():
    with pytest.raises(LayoutMismatch, match="2 specs for 3 arrays"):
        prove(train_step, ARGS, MESH, SPECS[:2])
    with pytest.raises(LabError, match="divisible"):
        prove(jnp.tanh, (array(6),), "data=4", (P("data"),))
