"""An answer is proven before it is offered; a disproven one is discarded for the next best."""

from __future__ import annotations

import json

import jax.numpy as jnp
import pytest
from autoshard_programs import array, mlp_args, mlp_step

import shardlab
from shardlab.autoshard.answer_text import answer_text
from shardlab.errors import ShardingsDisproven
from shardlab.sharding.spec import Spec


def find(f, *args, **options):
    # Searches and proofs end by themselves, however slow the machine is.
    options = {"mesh": "data=4", "budget": 3600.0, "proof_limit": 3600.0, **options}
    return shardlab.autoshard(f, *args, **options)


def running_sum(x):
    """Shardy claims that a sum over a sharded dimension needs no collective; XLA gathers."""
    return jnp.cumsum(x, axis=0)


@pytest.fixture(scope="module")
def proven():
    steps = []
    answer = find(mlp_step, *mlp_args(batch=64, width=16, hidden=48), on_progress=steps.append)
    return answer, steps


@pytest.fixture(scope="module")
def second_best():
    return find(running_sum, array(256, 64, dtype=jnp.float32))


def proof_section(answer):
    """Return the section `Proof` of the text, its lines joined."""
    _, _, rest = answer_text(answer, 120).partition("\nProof\n")
    return " ".join(rest.partition("\n\n")[0].split())


def test_the_answer_for_a_train_step_is_proven(proven):
    answer, steps = proven
    assert answer.proof.verdict == "proven", str(answer.proof)
    assert answer.discarded == ()
    assert answer.proof.memory.limit_bytes == answer.memory_limit
    assert "proving values: a run on host devices" in steps
    text = answer_text(answer, 120)
    assert "Proven: collectives, values" in text
    for name in ("Collectives", "Values", "Memory"):
        assert f"  {name}: proven. " in text


def test_a_proven_answer_survives_json(proven, second_best):
    for answer in (proven[0], second_best):
        assert shardlab.Autosharding.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_a_disproven_answer_is_discarded_and_the_next_one_is_offered(second_best):
    [discarded] = second_best.discarded
    assert discarded.specs == (Spec("data", None),)
    # XLA gathers the other three shards of 256 / 4 * 64 floats.
    assert discarded.reason.startswith("collectives: XLA's partitioner sends 49.2 kB per device")
    assert second_best.specs == (Spec(None, "data"),)
    assert second_best.proof.verdict == "proven", str(second_best.proof)


def test_the_text_says_what_was_discarded_and_why(second_best):
    assert "1 better answer failed a proof." in answer_text(second_best, 200)
    section = proof_section(second_best)
    assert "Discarded: a step of" in section
    assert "on data=4, disproven by collectives: XLA's partitioner sends 49.2 kB" in section


def test_without_a_proof_the_best_answer_of_the_search_is_returned(second_best):
    answer = find(running_sum, array(256, 64, dtype=jnp.float32), prove=False)
    assert answer.specs == second_best.discarded[0].specs
    assert answer.proof is None


def test_no_answer_is_offered_if_all_are_disproven():
    # 63 columns cannot be sharded over 4 devices, and the unsharded array does not fit.
    with pytest.raises(ShardingsDisproven) as raised:
        find(running_sum, array(256, 63, dtype=jnp.float32), memory=70_000)
    assert "the best one failed a proof" in str(raised.value)
    assert "all_gather over data" in str(raised.value)


def test_an_answer_for_whose_proof_there_is_no_time_is_offered_as_not_proven():
    answer = find(running_sum, array(256, 64, dtype=jnp.float32), proof_limit=0.0)
    assert answer.specs == (Spec("data", None),)
    assert answer.proof.verdict == "not proven"
    assert "Not proven: collectives, values, memory;" in answer_text(answer, 200)
    assert "Values: not proven. The 0 s for proofs were over." in proof_section(answer)
