"""Submissions to real problems that return the right numbers without doing the task."""

from dataclasses import replace

import pytest

from judge.small_problems import IMPORTS
from shardlab.catalogue.tracks import load_catalogue
from shardlab.judge.judge import judge
from shardlab.judge.worker_pool import open_worker_pool

MESH = "mesh = mesh or jax.sharding.Mesh(np.array(jax.devices()[:1]), ('data',))"
IDENTITY = "jax.shard_map(lambda y: y, mesh=mesh, in_specs=P(a), out_specs=P(a))"
WITH_MESH = f"""
    {MESH}
    a = mesh.axis_names[0]
"""
# slug -> source, and the parts in which it must fail
SUBMISSIONS = {
    "replicated-sharding": (
        """
def replicated_sharding_value(x, mesh=None):
    return jnp.sum(x)

def replicate(x, mesh):
    return jax.device_put(x, NamedSharding(mesh, P()))
""",
        {1, 2},
    ),
    "shard-map-basics": (
        f"""
def shard_map_double(x, mesh=None):{WITH_MESH}
    return {IDENTITY}(x) * 2.0
""",
        {1, 2},
    ),
    "shard-map-psum": (
        f"""
def shard_map_psum(x, mesh=None):{WITH_MESH}
    def zero(y):
        return lax.psum(0.0 * jnp.sum(y), a)
    full = jnp.sum(lax.with_sharding_constraint(x, NamedSharding(mesh, P())))
    return full + jax.shard_map(zero, mesh=mesh, in_specs=P(a), out_specs=P())(x)
""",
        {1, 2},
    ),
    "nnx-shard-map": (
        f"""
from flax import nnx

def shard_map_simulate(seed, x, num_shards, features):
    model = nnx.Linear(x.shape[-1], int(features), rngs=nnx.Rngs(int(seed)))
    rows = jnp.split(x, int(num_shards))
    return jnp.concatenate([model(part) for part in rows]).reshape(-1)

def nnx_shard_map(seed, x, mesh, features):
    a = mesh.axis_names[0]
    model = nnx.Linear(x.shape[-1], int(features), rngs=nnx.Rngs(int(seed)))
    return {IDENTITY}(model(x).reshape(-1))
""",
        {2},
    ),
    "where-am-i": (
        f"""
def global_ids(n, mesh):
    a = mesh.axis_names[0]
    return {IDENTITY}(jnp.arange(n, dtype=jnp.int32))
""",
        {1},
    ),
    "row-parallel-linear": (
        """
def row_linear(x, w, b, mesh):
    return jax.shard_map(lambda y: y, mesh=mesh, in_specs=P(), out_specs=P())(x @ w + b)
""",
        {1},
    ),
    "softmax-over-a-split-axis": (
        """
def softmax_cols(x, mesh):
    a = mesh.axis_names[0]
    rows = P(None, a)
    y = jax.nn.softmax(x, axis=1)
    return jax.shard_map(lambda y: y, mesh=mesh, in_specs=rows, out_specs=rows)(y)
""",
        {1},
    ),
}


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


@pytest.mark.parametrize("slug", SUBMISSIONS)
def test_the_right_numbers_without_the_task_are_not_accepted(pool, slug):
    source, failing_parts = SUBMISSIONS[slug]
    expected_code = "MEM" if slug == "where-am-i" else "API"
    problem = load_catalogue().load_problem(slug)
    # One mesh shows it; the meshes are in the tests of the requirements.
    parts = [
        replace(part, meshes=(f"{part.axes[0]}=2",) if "mesh" in part.arguments else ())
        for part in problem.parts
    ]
    problem = replace(problem, parts=tuple(parts))
    judgement = judge(pool, problem, IMPORTS + source, kind="run", seed=3)
    codes = {}
    for case in judgement.cases:
        codes.setdefault(case.part, set()).update(verdict.code for verdict in case.verdicts)
    for part, found in codes.items():
        if part in failing_parts:
            assert found == {expected_code}, (part, found)
        else:
            assert found == {"AC"}, (part, judgement.first_failure)
