"""NNX models: instances and constructors, with their own annotations, never allocated."""

from __future__ import annotations

import sys
import tracemalloc
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx
from jax._src.interpreters.partial_eval import DynamicJaxprTracer
from jax.sharding import AbstractMesh, AxisType

import shardlab
from shardlab.errors import InvalidModel
from shardlab.planner.models.pytree import iterate_tensors, model_from_pytree
from shardlab.sharding.spec import Spec

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

from nnx_transformer import Config, Decoder, Layer


class Parts(nnx.Module):
    """One of everything that a module may hold."""

    def __init__(self, rngs: nnx.Rngs):
        names = nnx.with_partitioning(nnx.initializers.normal(), ("vocab", None))
        self.embed = nnx.Embed(16, 8, embedding_init=names, rngs=rngs)
        self.head = self.embed.embedding  # tied
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.both = nnx.Param(jnp.zeros((4, 6)), out_sharding=(("fsdp", "tensor"), None))
        ruled = {"sharding_rules": (("embed", "fsdp"),)}
        self.ruled = nnx.Param(jnp.zeros((4, 6)), out_sharding=("embed", "tensor"), **ruled)
        self.held = nnx.Variable({"a": jnp.zeros(3)})


@pytest.fixture
def instance():
    with nnx.use_eager_sharding(False):
        return Parts(nnx.Rngs(0))


def by_path(model):
    return {tensor.path: tensor for tensor in iterate_tensors(model)}


def test_a_model_and_what_makes_it_have_the_same_tensors(instance):
    model = model_from_pytree(Parts)
    assert model.groups == model_from_pytree(instance).groups
    assert model.groups == model_from_pytree(nnx.state(instance)).groups
    assert model.groups == model_from_pytree(partial(Parts)).groups
    assert model.groups == model_from_pytree(lambda rngs: Parts(rngs)).groups


def test_flax_counts_the_same_parameters(instance):
    sizes = jax.tree.leaves(jax.tree.map(jnp.size, nnx.state(instance, nnx.Param)))
    assert model_from_pytree(instance).n_parameters == sum(sizes)


def test_a_tied_array_is_stored_once(instance):
    assert [path for path in by_path(instance) if "embedding" in path or "head" in path] == [
        "embed/embedding"
    ]


def test_only_params_are_trained(instance):
    trained = {path: tensor.is_trained for path, tensor in by_path(instance).items()}
    assert {path for path, is_trained in trained.items() if not is_trained} == {
        "norm/mean",
        "norm/var",
        "drop/rngs/count",
        "drop/rngs/key",
        "held/a",
    }
    result = shardlab.plan(instance, "fsdp=2,tensor=2", optimizer="adam")
    arrays = {row.path: [tensor.name for tensor in row.arrays] for row in result.rows}
    assert arrays["norm/mean"] == ["parameter"]
    assert arrays["norm/scale"] == ["parameter", "gradient", "mu", "nu"]


def test_annotations_are_names_until_there_is_a_mesh(instance):
    actual = by_path(instance)
    assert (actual["embed/embedding"].axes, actual["embed/embedding"].spec) == (
        ("vocab", None),
        None,
    )
    assert actual["both"].spec == Spec(("fsdp", "tensor"), None)
    assert actual["ruled"].axes == ("embed", "tensor")
    assert actual["ruled"].spec == Spec("fsdp", "tensor")


def test_rules_around_a_model_hold_for_its_names(instance):
    with nnx.logical_axis_rules((("vocab", "tensor"),)):
        assert by_path(instance)["embed/embedding"].spec == Spec("tensor", None)


RULES = (("embed", "fsdp"), ("mlp", "tensor"))


class Named(nnx.Module):
    """A matrix with logical names."""

    def __init__(self, *, rngs: nnx.Rngs):
        names = nnx.with_partitioning(nnx.initializers.normal(), ("embed", "mlp"))
        self.up = nnx.Linear(8, 24, kernel_init=names, use_bias=False, rngs=rngs)


def test_rules_inside_of_what_makes_a_model_are_obeyed_as_flax_obeys_them():
    def make():
        with nnx.logical_axis_rules(RULES):
            return Named(rngs=nnx.Rngs(0))

    mesh = jax.make_mesh((1, 1), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        theirs = make().up.kernel.get_value().sharding.spec
    (row,) = shardlab.plan(make, "fsdp=2,tensor=4").rows
    assert tuple(row.parameter.spec.entries) == tuple(theirs) == ("fsdp", "tensor")
    (after,) = shardlab.plan(Named, "fsdp=2,tensor=4").rows  # nothing is left behind
    assert after.parameter.spec == Spec()


@pytest.mark.parametrize("is_inside", [True, False])
def test_rules_of_linen_are_obeyed_as_linen_obeys_them(is_inside):
    def init():
        names = linen.with_logical_partitioning(linen.initializers.ones, ("embed", "mlp"))
        layer = linen.Dense(24, kernel_init=names, use_bias=False)
        return layer.init(jax.random.key(0), jnp.ones((2, 8)))

    def make():
        with linen.logical_axis_rules(RULES):
            return init()

    if is_inside:
        (row,) = shardlab.plan(make, "fsdp=2,tensor=4").rows
    else:
        with linen.logical_axis_rules(RULES):
            (row,) = shardlab.plan(init, "fsdp=2,tensor=4").rows
    theirs = linen.logical_to_mesh(linen.get_partition_spec(jax.eval_shape(init)), RULES)
    assert tuple(row.parameter.spec.entries) == tuple(theirs["params"]["kernel"])
    (after,) = shardlab.plan(init, "fsdp=2,tensor=4").rows
    assert after.parameter.spec == Spec()


def test_flax_gives_the_same_specs():
    with nnx.use_eager_sharding(False):
        abstract = nnx.state(nnx.eval_shape(lambda: Decoder(rngs=nnx.Rngs(0))))
    theirs = {
        "/".join(map(str, path)): tuple(spec)
        for path, spec in nnx.to_flat_state(nnx.get_partition_spec(abstract))
        for spec in [getattr(spec, "get_raw_value", lambda spec=spec: spec)()]
    }
    result = shardlab.plan(Decoder, "fsdp=4,tensor=2")
    rows = {row.path: row.parameter.spec for row in result.rows}
    for group in model_from_pytree(Decoder).groups:
        for path in group.paths():
            assert tuple(rows[group.name].entries) == theirs[path], path


def test_logical_rules_leave_mesh_axes_among_the_names_as_flax_does():
    class Mixed(nnx.Module):
        def __init__(self):
            kernel = nnx.with_partitioning(nnx.initializers.normal(), ("fsdp", "mlp"))
            self.up = nnx.Linear(8, 24, kernel_init=kernel, use_bias=False, rngs=nnx.Rngs(0))

    rules = [("mlp", "tensor")]
    mesh = jax.make_mesh((1, 1), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
        theirs = Mixed().up.kernel.get_value().sharding.spec
    result = shardlab.plan(Mixed, "fsdp=2,tensor=4", rules={"logical": rules})
    assert tuple(result.rows[0].parameter.spec.entries) == tuple(theirs) == ("fsdp", "tensor")
    assert result.choices["logical_semantics"] == "nnx"
    linen = {"logical": rules, "logical_semantics": "linen"}
    (row,) = shardlab.plan(Mixed, "fsdp=2,tensor=4", rules=linen).rows
    assert row.parameter.spec == Spec(None, "tensor")


def test_names_are_mesh_axes_where_the_mesh_has_them():
    result = shardlab.plan(Decoder, "tensor=2")
    rows = {row.path: row for row in result.rows}
    assert rows["head/kernel"].parameter.spec == Spec(None, "tensor")
    assert rows["head/kernel"].rule == "the model's own axis names"
    assert rows["norm/scale"].rule == "no rule"


class Annotated(nnx.Module):
    """One matrix whose annotation names two mesh axes, and a bias that has none."""

    def __init__(self, *, rngs: nnx.Rngs):
        cut = nnx.with_partitioning(nnx.initializers.normal(), ("fsdp", "tensor"))
        self.up = nnx.Linear(8, 24, kernel_init=cut, rngs=rngs)


@pytest.mark.parametrize(
    ("stage", "gradient"),
    [("zero1", Spec("fsdp", "tensor")), ("zero2", Spec(("fsdp", "data"), "tensor"))],
)
def test_zero_shards_states_and_leaves_annotations_as_they_are(stage, gradient):
    mesh = "data=2,fsdp=2,tensor=2"
    result = shardlab.plan(Annotated, mesh, strategy=stage, optimizer="adamw")
    kernel = next(row for row in result.rows if row.path == "up/kernel")
    states = [array.spec for array in kernel.arrays if array.kind == "optimizer"]
    assert kernel.parameter.spec == Spec("fsdp", "tensor")
    assert [array.spec for array in kernel.arrays if array.kind == "gradients"] == [gradient]
    assert states == [Spec(("fsdp", "data"), "tensor")] * 2
    alone = shardlab.plan(Annotated, mesh, optimizer="adamw")
    assert result.bytes_of("parameters") == alone.bytes_of("parameters")


def test_layers_that_are_stacked_keep_their_names_and_meaning():
    class Stacked(nnx.Module):
        def __init__(self, rngs):
            named = {nnx.PARTITION_NAME: "layers"}
            make = nnx.vmap(lambda rngs: Layer(Config(), rngs), transform_metadata=named)
            self.layers = nnx.split_rngs(splits=3)(make)(rngs)

    (group,) = (
        candidate for candidate in model_from_pytree(Stacked).groups if "q_proj" in candidate.name
    )
    assert group.shape == (3, 256, 256)
    assert group.axes == ("layers", "fsdp", "tensor")
    for strategy in (None, "fsdp+tensor"):
        result = shardlab.plan(Stacked, "fsdp=4,tensor=2", strategy=strategy)
        spec = next(row.parameter.spec for row in result.rows if "q_proj" in row.path)
        assert spec == Spec(None, "fsdp", "tensor"), strategy


def test_an_annotation_that_does_not_fit_is_reported():
    class Long(nnx.Module):
        def __init__(self):
            self.short = nnx.Param(jnp.zeros((2, 3)), out_sharding=("tensor",))
            self.long = nnx.Param(jnp.zeros((2, 3)), out_sharding=("fsdp", "tensor", None))

    result = shardlab.plan(Long, "fsdp=2,tensor=2")
    rows = {row.path: row.parameter.spec for row in result.rows}
    assert rows == {"long": Spec(), "short": Spec("tensor", None)}
    assert any(
        "long" in finding.what and "3 entries" in finding.what for finding in result.findings
    )


def test_a_model_of_a_hundred_billion_parameters_takes_no_memory():
    config = Config(vocab=128_256, layers=3, embed=65_536, heads=512, kv_heads=64, mlp=131_072)
    tracemalloc.start()
    model = model_from_pytree(lambda rngs: Decoder(config, rngs=rngs), "wide")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert model.n_parameters > 100e9
    assert peak < 50e6
    assert model.name == "wide"


def test_an_optimizer_beside_a_model_is_counted_and_not_trained():
    model = nnx.Linear(4, 6, rngs=nnx.Rngs(0))
    pair = {
        "model": model,
        "opt": nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param),
    }
    trained = [path for path, tensor in by_path(pair).items() if tensor.is_trained]
    assert trained == ["model/bias", "model/kernel"]


def test_a_class_that_needs_more_gets_an_error_with_what_it_needs():
    class Needy(nnx.Module):
        def __init__(self, width, *, rngs):
            self.linear = nnx.Linear(width, width, rngs=rngs)

    with pytest.raises(InvalidModel, match="Needy cannot be called without 'width'"):
        shardlab.plan(Needy, "data=2")


def test_an_equinox_class_gets_an_error_about_its_key():
    with pytest.raises(InvalidModel, match="MLP cannot be called without 'in_size'") as caught:
        shardlab.plan(eqx.nn.MLP, "data=2")
    assert "lambda key: MLP(..., key=key)" in caught.value.fix
    assert " at 0x" not in caught.value.where


def test_jax_does_not_seek_where_each_value_comes_from(monkeypatch):
    sought = []
    monkeypatch.setattr(DynamicJaxprTracer, "_origin_msg", lambda tracer: sought.append(1) or "")
    model_from_pytree(Parts)
    assert not sought
    if jax.__version_info__ < (0, 11):  # later JAX seeks nothing for this error
        jax.eval_shape(lambda: getattr(jnp.zeros(3), "sharding", None))
        assert sought


def test_jax_is_left_as_it_was_when_making_a_model_fails():
    def fails():
        with jax.set_mesh(AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))):
            jnp.zeros(3).sharding.spec  # noqa: B018 - a traced value has none

    before = jax.set_mesh
    with pytest.raises(AttributeError):
        model_from_pytree(fails)
    assert jax.set_mesh is before
    # Outside, JAX says again where a traced value comes from.
    with pytest.raises(TypeError, match=r"occurred while tracing"):
        jax.eval_shape(lambda: float(jnp.zeros(3).sum()))
