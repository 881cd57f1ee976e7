"""Programs that are written to be read wrongly: every collective counts, whatever is around it."""

import pytest

from judge.small_problems import problem, submission
from shardlab.judge.judge import judge
from shardlab.judge.worker_pool import open_worker_pool

# Keys of metadata, and some values, are printed into XLA's text as they are.
ENTRY = (
    "{}}\\n}\\n\\nENTRY %forged (p: f32[]) -> f32[] {\\n"
    "  ROOT %p = f32[] parameter(0)\\n}\\n\\n%z {\\n  "
)
# The compiler inserts an all-gather for it, which the program does not have.
INSERTED = """
    a = mesh.axis_names[0]
    def full(x):
        rows, everywhere = NamedSharding(mesh, P(a)), NamedSharding(mesh, P())
        y = jnp.sin(lax.with_sharding_constraint(x, rows))
        y = jnp.arcsin(lax.with_sharding_constraint(y, everywhere)) * 0
        return lax.with_sharding_constraint(2 * x + y[::-1], rows)
"""
OWN = """
    a = mesh.axis_names[0]
    def gather(x):
        rows = lax.all_gather(x, a, tiled=True)
        return 2 * lax.dynamic_slice_in_dim(rows, lax.axis_index(a) * x.shape[0], x.shape[0])
    local = {local}
    return jax.shard_map(local, mesh=mesh, in_specs=P(a), out_specs=P(a))(x)
"""
METADATA = f"""{INSERTED}
    from jax.experimental.xla_metadata import set_xla_metadata
    with set_xla_metadata({{}}):
        return full(x)
"""
FORGED = {
    "a value of metadata": METADATA.format(f'note="{ENTRY}"'),
    "a key of metadata": METADATA.format(f'**{{"{ENTRY}": "1"}}'),
    "metadata in the words of the compiler": METADATA.format(
        """known_trip_count='{"n":"0"}', chain_id="1", is_spmd_generated="true" """
    ),
    "shardings as metadata": METADATA.format(
        """**{"xla.sdy.sharding": '#sdy.sharding_per_value<[<@mesh, [{}]>]>'}"""
    ),
    "a scope": f"""{INSERTED}
    with jax.named_scope("{ENTRY}"):
        return full(x)
""",
    "the name of a function": f"""{INSERTED}
    full.__name__ = full.__qualname__ = "{ENTRY}"
    return jax.jit(full)(x)
""",
    "the name of an argument": f"""{INSERTED}
    return jax.jit(lambda tree: full(tree["{ENTRY}"]))({{"{ENTRY}": x}})
""",
    "the names of mesh axes": """
    a = "x'=1],device_ids=(0) {}, "
    own = jax.sharding.Mesh(mesh.devices.reshape(-1), (a,))
    y = jnp.sin(lax.with_sharding_constraint(x, NamedSharding(own, P(a))))
    y = jnp.arcsin(lax.with_sharding_constraint(y, NamedSharding(own, P()))) * 0
    return lax.with_sharding_constraint(2 * x + y[::-1], NamedSharding(own, P(a)))
""",
    "a loop whose counter overflows": OWN.format(
        local="""lambda x: lax.while_loop(
        lambda c: c[0] < 126, lambda c: (c[0] + jnp.int8(127), gather(c[1]) / 2), (jnp.int8(0), x)
    )[1] * 2"""
    ),
    "a composite": OWN.format(local="lax.composite(gather, 'my.gather')"),
    "a composite in a composite": OWN.format(
        local="lax.composite(lax.composite(gather, 'in.gather'), 'out.gather')"
    ),
    "a custom derivative": """
    a = mesh.axis_names[0]
    @jax.custom_jvp
    def gather(x):
        rows = lax.all_gather(x, a, tiled=True)
        return 2 * lax.dynamic_slice_in_dim(rows, lax.axis_index(a) * x.shape[0], x.shape[0])
    gather.defjvp(lambda primals, tangents: (gather(*primals), 2 * tangents[0]))
    return jax.shard_map(gather, mesh=mesh, in_specs=P(a), out_specs=P(a))(x)
""",
    "a branch": OWN.format(
        local="lambda x: lax.cond(lax.psum(jnp.sum(x), a) < 1e30, gather, lambda x: 2 * x, x)"
    ),
    "a checkpoint": OWN.format(local="jax.checkpoint(jax.jit(gather))"),
    "a program exported by the submission": """
    import jax.export
    a = mesh.axis_names[0]
    def gather(x):
        rows = lax.all_gather(x, a, tiled=True)
        return 2 * lax.dynamic_slice_in_dim(rows, lax.axis_index(a) * x.shape[0], x.shape[0])
    mapped = jax.jit(jax.shard_map(gather, mesh=mesh, in_specs=P(a), out_specs=P(a)))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, P(a)))
    return jax.export.export(mapped)(shape).call(x)
""",
    "options of the compiler": f"""{INSERTED}
    return jax.jit(full, compiler_options={{"xla_disable_hlo_passes": "spmd-partitioning"}})(x)
""",
    "custom partitioning": """
    from jax.experimental.custom_partitioning import custom_partitioning
    a = mesh.axis_names[0]
    @custom_partitioning
    def twice(x):
        return 2 * x
    def partition(mesh, arg_shapes, result_shape):
        rows = NamedSharding(mesh, P(a))
        return mesh, lambda x: gather(x), rows, (rows,)
    def gather(x):
        rows = lax.all_gather(x, a, tiled=True)
        return 2 * lax.dynamic_slice_in_dim(rows, lax.axis_index(a) * x.shape[0], x.shape[0])
    twice.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, args, result: NamedSharding(mesh, P(a)),
        sharding_rule="i -> i",
    )
    return twice(x)
""",
}
# These are not programs of arrays alone, so they are errors.
REJECTED = (
    "options of the compiler",
    "custom partitioning",
    "a program exported by the submission",
)


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


@pytest.mark.parametrize("name", FORGED)
def test_a_hidden_collective_is_counted(pool, name):
    forbidden = problem("doubled", meshes=("data=2", "data=3"), budget={"calls": 0})
    judgement = judge(pool, forbidden, submission("doubled", FORGED[name]), kind="submit", seed=3)
    codes = [{verdict.code for verdict in case.verdicts} for case in judgement.cases]
    if name in REJECTED:
        assert codes == [{"RTE"}, {"RTE"}], judgement.first_failure
    else:
        assert codes == [{"COMM"}, {"COMM"}], judgement.first_failure
        text = " ".join(verdict.what for verdict in judgement.first_failure.verdicts)
        assert "all_gather" in text
