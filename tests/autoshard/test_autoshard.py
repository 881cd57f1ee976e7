"""autoshard finds what an expert would write, keeps what the person wrote, and says what it did."""

from __future__ import annotations

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from autoshard_programs import array, layers_args, layers_step, mlp_args, mlp_loss, mlp_step
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab._jax.shardy_program import lower_once
from shardlab.autoshard import search
from shardlab.autoshard.answer_text import answer_text
from shardlab.autoshard.arguments import find_state, group_leaves, read_leaves
from shardlab.autoshard.evaluation import Evaluator, replicate_all
from shardlab.autoshard.paste_text import rules_of
from shardlab.autoshard.starts import make_starts
from shardlab.autoshard.step_cost import StepCoster
from shardlab.errors import CannotAutoshard
from shardlab.hardware.chips import parse_hardware
from shardlab.sharding.mesh import parse_mesh
from shardlab.sharding.spec import Spec
from shardlab.tracing.stage import argument_names

BUDGET = 3600.0  # the searches below end by themselves


@pytest.fixture(autouse=True)
def small_exhaustive_searches(monkeypatch):
    """Local search finds the same answers below, in a fraction of the candidates."""
    monkeypatch.setattr(search, "EXHAUSTIVE_LIMIT", 32)


def find(f, args, **options):
    """Search without proofs, which `test_proven_answer.py` tests."""
    return shardlab.autoshard(f, *args, hardware="tpu-v5p", budget=BUDGET, prove=False, **options)


@functools.cache
def layers_answer():
    """A scan over layers on a mesh of two axes, with memory for a part of the states."""
    return find(layers_step, layers_args(), mesh="data=4,model=2", memory=2 * 10**8)


@functools.cache
def sharded_layers_answer():
    """Parameters that fit only sharded, over the axis of the batch: FSDP."""
    args = layers_args(layers=8, batch=65536, width=4096, hidden=12288)
    return find(layers_step, args, mesh="data=16", memory=8 * 10**9)


def specs_by_name(answer):
    return {argument.name: argument.spec for argument in answer.arguments}


def test_a_small_model_is_data_parallel(monkeypatch):
    monkeypatch.setattr(search, "EXHAUSTIVE_LIMIT", 256)
    answer = find(mlp_step, mlp_args(batch=2**21, width=256, hidden=768), mesh="data=8")
    assert answer.specs == (Spec(), Spec(), Spec("data", None))


def test_memory_forces_column_then_row_parallel_layers():
    # Few rows and large matrices: moving activations is far cheaper than moving weights.
    args = mlp_args(batch=128, width=8192, hidden=32768)
    weights = 2 * 2 * 8192 * 32768
    answer = find(mlp_step, args, mesh="model=8", memory=weights // 2)
    specs = specs_by_name(answer)
    assert specs["params['up']"] == Spec(None, "model")
    assert specs["params['down']"] == Spec("model", None)
    assert answer.cost.memory_bytes <= weights // 2


def test_the_answer_is_never_worse_than_the_usual_shardings():
    for answer in (layers_answer(), find(mlp_step, mlp_args(), mesh="data=4")):
        fitting = [cost.seconds for cost in answer.comparison if cost.fits]
        assert {"replicated", "data parallel", "FSDP", "Megatron"} <= {
            cost.name for cost in answer.comparison
        }
        assert answer.cost.seconds <= min(fitting)


def test_local_search_finds_the_optimum_of_an_exhaustive_search(monkeypatch):
    args = mlp_args(batch=512, width=1024, hidden=3072)
    monkeypatch.setattr(search, "EXHAUSTIVE_LIMIT", 256)
    optimum = find(mlp_step, args, mesh="data=8", memory=10**7)
    assert optimum.search.is_exhaustive
    monkeypatch.setattr(search, "EXHAUSTIVE_LIMIT", 0)
    local = find(mlp_step, args, mesh="data=8", memory=10**7)
    assert not local.search.is_exhaustive
    assert local.search.is_complete
    assert local.cost.seconds == pytest.approx(optimum.cost.seconds, rel=0.003)


def test_the_same_seed_gives_the_same_answer():
    args = layers_args()
    first, second = (find(layers_step, args, mesh="data=4", seed=3) for _ in range(2))
    assert first.specs == second.specs
    assert first.search.n_candidates == second.search.n_candidates


def test_ctrl_c_ends_the_search_with_the_best_so_far():
    def interrupt(step):
        if "FSDP" in step:
            raise KeyboardInterrupt

    answer = find(layers_step, layers_args(), mesh="data=4", on_progress=interrupt)
    assert answer.search.is_interrupted
    assert {cost.name for cost in answer.comparison} == {"replicated", "data parallel"}
    assert answer.cost.seconds == min(cost.seconds for cost in answer.comparison)
    text = answer_text(answer, 200)
    assert "Not proven: interrupted. Interrupted: 2 candidates" in text
    assert shardlab.Autosharding.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_ctrl_c_before_anything_fits_is_an_interrupt():
    def interrupt(step):
        if "data parallel" in step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find(layers_step, layers_args(), mesh="data=4", memory=10**6, on_progress=interrupt)


def test_what_was_evaluated_when_the_time_is_over_is_offered():
    """A space that is tried completely may be left before its end, after its best candidate."""
    sizes = (("data", 8),)
    args = mlp_args(batch=2**21, width=256, hidden=768)
    leaves = read_leaves(argument_names(mlp_step, args), frozenset({0, 1}), ["data"])
    groups = tuple(group_leaves(leaves))
    evaluator = Evaluator(
        program=lower_once(mlp_step, args, sizes),
        groups=groups,
        coster=StepCoster(hardware=parse_hardware("tpu-v5p"), weight_shapes=frozenset()),
        memory_limit=10**12,
    )
    replicated = replicate_all(groups)
    data_parallel = (*replicated[:-1], (("data",), ()))
    better = evaluator.evaluate(sizes, data_parallel)
    late = search.Search(evaluator=evaluator, deadline=0.0)
    assert late.find([("replicated", sizes, replicated)])[0] is better
    assert not late.is_exhaustive


def test_what_the_person_annotated_is_kept():
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    params, x = mlp_args()
    kept = jax.ShapeDtypeStruct(
        params["up"].shape, params["up"].dtype, sharding=NamedSharding(mesh, P("model", "data"))
    )
    answer = find(mlp_step, ({**params, "up": kept}, x), mesh="data=4,model=2")
    assert specs_by_name(answer)["params['up']"] == Spec("model", "data")
    assert [group.is_kept for group in answer.groups if group.name == "params['up']"] == [True]


def test_a_number_of_devices_searches_meshes():
    # 24 rows do not divide over 16 devices, so a mesh with a data axis of 8 must be tried.
    args = mlp_args(batch=24, width=4096, hidden=16384)
    answer = find(mlp_step, args, devices=16)
    assert {cost.mesh for cost in answer.comparison} > {"data=16"}
    assert parse_mesh(answer.mesh).n_devices == 16
    assert answer.cost.seconds <= min(cost.seconds for cost in answer.comparison if cost.fits)


def test_numbered_layers_and_optimizer_states_are_one_group():
    def step(state, x):
        return state, x

    layers = [{"up": array(8, 24), "down": array(24, 8)} for _ in range(3)]
    state = {"mu": layers, "params": layers, "count": jnp.zeros((), jnp.int32)}
    args = (state, array(4, 8))
    leaves = read_leaves(argument_names(step, args), frozenset(find_state(step, args).values()), ())
    groups = {group.name: group for group in group_leaves(leaves)}
    assert set(groups) == {
        "state['params'][*]['up']",
        "state['params'][*]['down']",
        "state['count']",
        "x",
    }
    assert len(groups["state['params'][*]['up']"].leaves) == 6


def test_the_first_argument_of_an_inference_step_counts_as_parameters():
    args = mlp_args(batch=128, width=1024, hidden=3072)
    leaves = read_leaves(argument_names(mlp_loss, args), frozenset(), ["model"])
    groups = group_leaves(leaves)
    assert not any(group.is_state for group in groups)
    starts = dict(make_starts(groups, (("model", 8),)))
    by_name = dict(zip((group.name for group in groups), starts["Megatron"], strict=True))
    assert by_name["params['up']"] == ((), ("model",))
    assert by_name["params['down']"] == (("model",), ())
    fsdp = dict(zip(by_name, starts["FSDP"], strict=True))
    assert all(("model",) in axes for axes in fsdp.values())
    assert starts["data parallel"] == (((), ()), ((), ()), (("model",), ()))


def test_only_arguments_that_come_back_are_state():
    def forward(params, x):
        return x @ params["w"]

    assert find_state(forward, ({"w": array(8, 8), "b": array(8)}, array(4, 8))) == {}
    assert find_state(mlp_step, mlp_args()) == {0: 0, 1: 1}


def test_parameters_that_fit_only_sharded_are_gathered_layer_by_layer():
    answer = sharded_layers_answer()
    sharded = [group.spec for group in answer.groups if "weights" in group.name]
    assert all("data" in spec.mesh_axes for spec in sharded)
    kinds = {use.kind for use in answer.collectives if use.operand_bytes > 2**16}
    assert kinds == {"all_gather", "reduce_scatter"}


def test_a_sharded_array_says_what_replicating_it_would_change():
    answer = sharded_layers_answer()
    [group] = [group for group in answer.groups if group.name.endswith("['weights']['up']")]
    assert group.replicated_bytes > answer.cost.memory_bytes
    assert group.reason.startswith("sharding it over data saves ")
    assert "all-gather of" in group.reason
    assert "autoshard_programs.py:" in group.reason


def test_an_answer_survives_json():
    answer = layers_answer()
    assert shardlab.Autosharding.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_the_text_has_specs_to_paste_and_says_that_no_proof_was_made():
    answer = layers_answer()
    text = answer_text(answer, 120)
    assert "Not proven: no proof was requested." in text
    start, end = text.index("specs = {"), text.index("}", text.index("specs = {"))
    specs = eval(text[start + len("specs = ") : end + 1], {"P": P})
    assert {name: Spec(*spec) for name, spec in specs.items()} == {
        group.name: group.spec for group in answer.groups
    }


def test_the_rules_give_every_parameter_its_spec():
    answer = layers_answer()
    rules = rules_of(answer).rules
    for group in answer.groups:
        path = group.name.replace("['", ".").replace("']", "")
        first = next(rule for rule in rules if re.search(rule.pattern, path))
        assert first.spec == group.spec


def test_the_specs_run_on_devices_as_they_are():
    params, x = mlp_args(batch=16, width=8, hidden=24)
    answer = find(mlp_step, (params, x), mesh="data=4,model=2", memory=10**9)
    arrays = [
        jnp.asarray(np.linspace(0, 1, a.size), a.dtype).reshape(a.shape)
        for a in (params["down"], params["up"], x)
    ]
    expected = mlp_step({"down": arrays[0], "up": arrays[1]}, arrays[2])
    with shardlab.simulated(8):
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        placed = [
            jax.device_put(array, NamedSharding(mesh, P(*spec)))
            for array, spec in zip(arrays, answer.specs, strict=True)
        ]
        result = jax.jit(mlp_step)({"down": placed[0], "up": placed[1]}, placed[2])
    np.testing.assert_allclose(result[1], expected[1], rtol=1e-3)


def test_a_program_that_fits_nowhere_is_an_error_with_the_least_memory():
    with pytest.raises(CannotAutoshard, match="the least memory found is"):
        find(mlp_step, mlp_args(), mesh="data=4", memory=10**5)


def test_a_mesh_and_a_number_of_devices_exclude_each_other():
    with pytest.raises(CannotAutoshard, match="either a mesh or a number of devices"):
        find(mlp_step, mlp_args(), mesh="data=4", devices=4)
    with pytest.raises(CannotAutoshard, match="either a mesh or a number of devices"):
        find(mlp_step, mlp_args())
