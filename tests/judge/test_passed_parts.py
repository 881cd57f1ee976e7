"""A solution of the first part alone: the headline says so, and what the next part needs."""

from __future__ import annotations

import pytest

from shardlab.catalogue.tracks import load_catalogue
from shardlab.judge.judge import judge
from shardlab.judge.judgement_text import judgement_text
from shardlab.judge.worker_pool import open_worker_pool
from shardlab.server.practice.judgement_view import view_judgement

HEAD = """
import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
"""
# The functions as the seeds write them, for one device.
ONE_DEVICE = {
    "shard-map-psum": "def shard_map_psum(x):\n"
    "    def body(x):\n"
    '        return jax.lax.psum(x.sum(), "data")\n'
    '    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)\n',
    "shard-map-basics": "def shard_map_double(x):\n"
    "    def body(x):\n"
    "        return x * 2\n"
    '    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)\n',
    "replicated-sharding": "def replicated_sharding_value(x):\n"
    "    return jax.device_put(x, NamedSharding(mesh, P())).sum()\n",
}


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


@pytest.mark.parametrize("slug", ONE_DEVICE)
def test_the_headline_says_that_part_1_passed_and_what_part_2_needs(pool, slug):
    problem = load_catalogue().load_problem(slug)
    judgement = judge(pool, problem, HEAD + ONE_DEVICE[slug], kind="submit", seed=5)
    assert all(case.passed for case in judgement.cases if case.part == 1)
    call = problem.parts[1].call
    function = problem.parts[1].function
    text = judgement_text(judgement)
    assert text.startswith("CE: part 1 passed, part 2 not yet")
    headline = view_judgement(judgement, problem).headline
    assert headline.label == "part 1 passed, part 2 not yet"
    assert headline.what.startswith(f"Part 1 passed. Part 2 calls {call}: ")
    assert f"def {function}(x, mesh=None)" in headline.fix
    assert "cannot be loaded" not in text.split("\n\n")[0]


def test_a_submission_that_fails_part_1_keeps_its_own_headline(pool):
    problem = load_catalogue().load_problem("shard-map-psum")
    source = "def shard_map_psum(x, y, z):\n    return x\n"
    judgement = judge(pool, problem, source, kind="submit", seed=5)
    assert judgement_text(judgement).startswith("CE: the submission cannot be loaded")
