"""What a task requires must be on the way from the arguments to the result, and change it."""

import pytest

from judge.small_problems import problem, shard_map_body, submission
from shardlab.judge.judge import judge
from shardlab.judge.worker_pool import open_worker_pool

TWICE = shard_map_body("lambda y: 2 * y", out_specs="P(a)")
TOTAL = shard_map_body("lambda y: lax.psum(jnp.sum(y), a)")
# x arrives replicated, so each device can compute the sum of all of it.
FULL_SUM = """
    a = mesh.axis_names[0]
    def local(x):
        {lines}
    return jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(x)
"""

# name -> problem, requirements, body of the function, what the verdict says (empty: accepted)
SUBMISSIONS = {
    "doubled in the body": ("doubled", ("shard_map", "in_body"), TWICE, ""),
    "doubled after the shard_map": (
        "doubled",
        ("shard_map", "in_body"),
        shard_map_body("lambda y: y", out_specs="P(a)", arguments="2 * x"),
        "outside of the shard_map: mul",
    ),
    "doubled before the shard_map": (
        "doubled",
        ("shard_map", "in_body"),
        shard_map_body("lambda y: y", out_specs="P(a)").replace("return ", "return 2 * "),
        "outside of the shard_map: mul",
    ),
    "added in a loop outside": (
        "doubled",
        ("shard_map", "in_body"),
        shard_map_body(
            "lambda y: y",
            out_specs="P(a)",
            arguments="lax.fori_loop(0, 1, lambda i, c: c + x, x)",
        ),
        "outside of the shard_map: add",
    ),
    "doubled outside in a jit that is called inside, too": (
        "doubled",
        ("shard_map", "in_body"),
        """
    a = mesh.axis_names[0]
    half = jax.jit(lambda y: y * 0.5)
    mapped = jax.shard_map(lambda y: 8 * half(y), mesh=mesh, in_specs=P(a), out_specs=P(a))
    return half(mapped(x))
""",
        "outside of the shard_map: mul",
    ),
    "doubled by every device in full": (
        "doubled",
        ("shard_map", "in_body"),
        """
    mapped = jax.shard_map(lambda y: 2 * y, mesh=mesh, in_specs=P(), out_specs=P())
    return jax.device_put(mapped(x), NamedSharding(mesh, P(mesh.axis_names[0])))
""",
        "every device computes the same",
    ),
    "a shard_map whose result is not used": (
        "doubled",
        ("shard_map",),
        """
    a = mesh.axis_names[0]
    unused = jax.shard_map(lambda y: y, mesh=mesh, in_specs=P(a), out_specs=P(a))(x)
    return lax.with_sharding_constraint(2 * x, NamedSharding(mesh, P(a)))
""",
        "no argument reaches the result through it",
    ),
    "a shard_map of zeros": (
        "doubled",
        ("shard_map",),
        """
    a = mesh.axis_names[0]
    zeros = jnp.zeros_like(x)
    zeros = jax.shard_map(lambda y: y, mesh=mesh, in_specs=P(a), out_specs=P(a))(zeros)
    return lax.with_sharding_constraint(2 * x + zeros, NamedSharding(mesh, P(a)))
""",
        "no argument reaches the result through it",
    ),
    "a shard_map times zero": (
        "doubled",
        ("shard_map",),
        """
    a = mesh.axis_names[0]
    y = jax.shard_map(lambda y: y, mesh=mesh, in_specs=P(a), out_specs=P(a))(x)
    return lax.with_sharding_constraint(2 * x + 0 * y, NamedSharding(mesh, P(a)))
""",
        "without it the result is the same",
    ),
    "one shard_map in a jit": (
        "doubled",
        ("shard_map", "one_shard_map"),
        """
    a = mesh.axis_names[0]
    double = jax.shard_map(lambda y: 2 * y, mesh=mesh, in_specs=P(a), out_specs=P(a))
    return jax.jit(jax.jit(double))(x)
""",
        "",
    ),
    "two shard_maps": (
        "doubled",
        ("shard_map", "one_shard_map"),
        """
    a = mesh.axis_names[0]
    half = jax.jit(jax.shard_map(lambda y: y / 2, mesh=mesh, in_specs=P(a), out_specs=P(a)))
    return half(half(8 * x))
""",
        "computed by 2 shard_maps",
    ),
    "sharded by in_specs": ("doubled", ("shard_map", "sharded_input"), TWICE, ""),
    "doubled in full by every device, which keeps its part": (
        "doubled",
        ("shard_map", "sharded_input", "in_body"),
        """
    a = mesh.axis_names[0]
    size = x.shape[0] // mesh.shape[a]
    def local(x):
        return lax.dynamic_slice_in_dim(2 * x, lax.axis_index(a) * size, size)
    return jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(a))(x)
""",
        "gets an argument in full",
    ),
    "selected before the shard_map": (
        "doubled",
        ("shard_map", "in_body"),
        shard_map_body(
            "lambda y: 2 * y", out_specs="P(a)", arguments="jnp.where(x.astype(bool), x, 0)"
        ),
        "outside of the shard_map: compare, select",
    ),
    "random bits that are drawn outside": (
        "doubled",
        ("shard_map", "drawn_in_body"),
        """
    a = mesh.axis_names[0]
    bits = jax.random.bits(jax.random.key(1), x.shape)
    def local(y, bits):
        return jnp.where(bits >= 0, 2 * y, 0)
    return jax.shard_map(local, mesh=mesh, in_specs=P(a), out_specs=P(a))(x, bits)
""",
        "outside of the shard_map: random_bits",
    ),
    "random bits that are drawn inside, from keys that are split outside": (
        "doubled",
        ("shard_map", "drawn_in_body"),
        """
    a = mesh.axis_names[0]
    keys = jax.random.split(jax.random.key(1), mesh.shape[a])
    def local(y, keys):
        return jnp.where(jax.random.bits(keys[0], y.shape) >= 0, 2 * y, 0)
    return jax.shard_map(local, mesh=mesh, in_specs=P(a), out_specs=P(a))(x, keys)
""",
        "",
    ),
    "a psum": ("total", ("shard_map", "psum"), TOTAL, ""),
    "a psum in a composite": (
        "total",
        ("shard_map", "psum"),
        shard_map_body("lax.composite(lambda y: lax.psum(jnp.sum(y), a), 'my.total')"),
        "",
    ),
    "a psum in a checkpoint in a scan": (
        "total",
        ("shard_map", "psum"),
        shard_map_body(
            "lambda y: lax.scan(jax.checkpoint(lambda c, _: (c, lax.psum(jnp.sum(y), a))), 0, None,"
            " length=2)[1][1]"
        ),
        "",
    ),
    "no psum": (
        "total",
        ("shard_map", "psum"),
        FULL_SUM.format(lines="return jnp.sum(x)"),
        "There is no psum",
    ),
    "a psum of zeros": (
        "total",
        ("shard_map", "psum"),
        FULL_SUM.format(lines="return jnp.sum(x) + lax.psum(jnp.zeros(()), a)"),
        "psum",
    ),
    "a psum of arguments times zero": (
        "total",
        ("shard_map", "psum"),
        FULL_SUM.format(lines="return jnp.sum(x) + lax.psum(jnp.sum(x) * 0, a)"),
        "without it the result is the same",
    ),
    "a psum times zero": (
        "total",
        ("shard_map", "psum"),
        FULL_SUM.format(lines="return jnp.sum(x) + lax.psum(jnp.sum(x), a) * 0"),
        "without it the result is the same",
    ),
    "a psum of what every device has": (
        "total",
        ("shard_map", "psum"),
        FULL_SUM.format(lines="return lax.psum(jnp.sum(x), a) / lax.axis_size(a)"),
        "without it the result is the same",
    ),
    "a psum of ones": (
        "total",
        ("shard_map", "psum"),
        FULL_SUM.format(lines="return jnp.sum(x) * lax.psum(1 + 0 * x[0], a) / lax.axis_size(a)"),
        "without it the result is the same",
    ),
    "a psum that is not used": (
        "total",
        ("shard_map", "psum"),
        FULL_SUM.format(lines="lax.psum(jnp.sum(x), a); return jnp.sum(x)"),
        "There is no psum",
    ),
    "a psum that is selected never": (
        "total",
        ("shard_map", "psum"),
        FULL_SUM.format(
            lines="return jnp.where(jnp.sum(x) < 1e30, jnp.sum(x), lax.psum(jnp.sum(x), a))"
        ),
        "without it the result is the same",
    ),
    "a psum in a branch that is never taken": (
        "total",
        ("shard_map", "psum"),
        FULL_SUM.format(
            lines="""t = jnp.sum(x)
        return lax.cond(t > 1e30, lambda t: lax.psum(t, a), lambda t: t, t)"""
        ),
        "without it the result is the same",
    ),
    "a result from a placed array": (
        "weighted",
        ("placement",),
        """
    everywhere = NamedSharding(mesh, P())
    x, w = jax.device_put((x, w), everywhere)
    return jnp.sum(x * w) / jnp.sum(w)
""",
        "",
    ),
    "arguments that are placed by a jit": (
        "weighted",
        ("placement",),
        """
    everywhere = NamedSharding(mesh, P())
    return jax.jit(lambda x, w: jnp.sum(x * w) / jnp.sum(w), in_shardings=everywhere)(x, w)
""",
        "",
    ),
    "a result that is placed by a jit": (
        "weighted",
        ("placement",),
        """
    everywhere = NamedSharding(mesh, P())
    return jax.jit(lambda x, w: jnp.sum(x * w) / jnp.sum(w), out_shardings=everywhere)(x, w)
""",
        "was not placed",
    ),
    "a result that is placed": (
        "weighted",
        ("placement",),
        """
    return jax.device_put(jnp.sum(x * w) / jnp.sum(w), NamedSharding(mesh, P()))
""",
        "was not placed",
    ),
    "nothing placed": (
        "weighted",
        ("placement",),
        "\n    return jnp.sum(x * w) / jnp.sum(w)",
        "was not placed",
    ),
    "placed, and not used": (
        "weighted",
        ("placement",),
        """
    jax.device_put((x, w), NamedSharding(mesh, P()))
    return jnp.sum(x * w) / jnp.sum(w)
""",
        "was not placed",
    ),
    "placed, and used times zero": (
        "weighted",
        ("placement",),
        """
    y = jax.device_put(x, NamedSharding(mesh, P()))
    return jnp.sum(x * w) / jnp.sum(w) + 0 * jnp.sum(y)
""",
        "was not placed",
    ),
    "a matrix product outside": (
        "linear",
        ("shard_map", "matmul_in_body"),
        shard_map_body("lambda y: y", in_specs="P()", arguments="x @ w + b"),
        "outside of the shard_map: dot_general",
    ),
    "a bias outside": (
        "linear",
        ("shard_map", "matmul_in_body"),
        shard_map_body(
            "lambda x, w: lax.psum(x @ w, a)", "(P(None, a), P(a))", arguments="x, w"
        ).rstrip()
        + " + b\n",
        "",
    ),
    "a collective of the compiler": (
        "total",
        ("explicit_collectives",),
        """
    a = mesh.axis_names[0]
    return jnp.sum(lax.with_sharding_constraint(x, NamedSharding(mesh, P(a))))
""",
        "The compiler inserts psum",
    ),
    "collectives of its own": ("total", ("explicit_collectives",), TOTAL, ""),
    "numbers by device": (
        "numbered",
        ("shard_map", "axis_index"),
        """
    a = mesh.axis_names[0]
    size = n // mesh.shape[a]
    def ids():
        return lax.axis_index(a) * size + jnp.arange(size, dtype=jnp.int32)
    return jax.shard_map(ids, mesh=mesh, in_specs=(), out_specs=P(a))()
""",
        "",
    ),
    "numbers that are created in full": (
        "numbered",
        ("shard_map", "axis_index"),
        """
    a = mesh.axis_names[0]
    ids = jnp.arange(n, dtype=jnp.int32)
    return jax.shard_map(lambda y: y, mesh=mesh, in_specs=P(a), out_specs=P(a))(ids)
""",
        "There is no axis_index",
    ),
}


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_requirements_are_read_from_the_data_flow(pool, name):
    slug, requires, body, sentence = SUBMISSIONS[name]
    required = problem(slug, meshes=("data=1", "data=2"), requires=requires)
    judgement = judge(pool, required, submission(slug, body), kind="submit", seed=3)
    verdicts = [verdict for case in judgement.cases for verdict in case.verdicts]
    if not sentence:
        assert judgement.passed, [verdict.what for verdict in verdicts]
        return
    codes = {case.name: {verdict.code for verdict in case.verdicts} for case in judgement.cases}
    assert codes["data=2"] == {"API"}, [verdict.what for verdict in verdicts]
    # There the trace is all there is, and only the shard_map is required.
    is_missing = "shard_map" in requires and any(
        "shard_map" in verdict.what and "no argument reaches" in verdict.what
        for verdict in verdicts
    )
    assert codes["data=1"] == ({"API"} if is_missing else {"AC"})
    failed = [verdict.what for verdict in verdicts if verdict.code == "API"]
    assert any(sentence in what for what in failed), failed
