"""Orbax checkpoints: written by Orbax itself, read from their metadata alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import shardlab
from shardlab.errors import InvalidModel
from shardlab.planner.models.load import load_model
from shardlab.planner.models.orbax import parse_zarr, read_arrays
from shardlab.sharding.spec import Spec

SHAPES = {
    "params/embed/table": ((6, 2), "s8"),
    "params/layers/0/bias": ((4,), "f32"),
    "params/layers/0/kernel": ((8, 4), "bf16"),
    "params/layers/1/bias": ((4,), "f32"),
    "params/layers/1/kernel": ((8, 4), "bf16"),
}


def tree():
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    cut = NamedSharding(mesh, PartitionSpec("model", "data"))
    kernel = jax.device_put(jnp.ones((8, 4), jnp.bfloat16), cut)
    layer = {"kernel": kernel, "bias": jnp.zeros(4)}
    params = {"layers": [layer, layer], "embed": {"table": jnp.zeros((6, 2), jnp.int8)}}
    return {"params": params, "step": 3, "mu": np.zeros((5, 3)), "none": None}


def save(folder, **options):
    ocp.PyTreeCheckpointer(**options).save(folder, tree())
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One checkpoint of each kind, since writing one takes a while."""
    top = tmp_path_factory.mktemp("orbax")
    save(top / "ocdbt")
    save(top / "zarr", use_ocdbt=False)
    save(top / "zarr3", use_ocdbt=False, use_zarr3=True)
    with ocp.CheckpointManager(top / "steps") as manager:
        for step in (9, 10):
            manager.save(step, args=ocp.args.StandardSave(tree()))
        manager.wait_until_finished()
    return top


def shapes(model):
    return {
        path: (group.shape, group.dtype.short) for group in model.groups for path in group.paths()
    }


@pytest.mark.parametrize("kind", ["ocdbt", "zarr", "zarr3", "steps", "steps/10", "steps/9/default"])
def test_shapes_and_dtypes_are_those_that_were_saved(written, kind):
    model = load_model(str(written / kind))
    assert shapes(model) == SHAPES
    assert model.notes == ("Only the checkpoint's 'params' are planned, not its 'mu', 'step'.",)


def test_the_last_step_is_taken(written):
    assert load_model(written / "steps").source.endswith("steps/10/default")


def test_a_step_is_named_with_its_run(written):
    assert load_model(written / "steps").name == "steps"
    assert load_model(written / "steps" / "9").name == "steps/9"
    assert load_model(written / "steps" / "9" / "default").name == "steps/9/default"


def test_of_several_items_the_models_is_taken_or_proposed(tmp_path):
    def saved(**items):
        folder = tmp_path / "-".join(items)
        with ocp.CheckpointManager(folder) as manager:
            args = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
            manager.save(5, args=ocp.args.Composite(**args))
            manager.wait_until_finished()
        return folder

    model, moments = {"kernel": jnp.ones((8, 4))}, {"mu": jnp.ones((8, 4))}
    selected = load_model(saved(params=model, opt_state=moments))
    assert selected.n_parameters == 32
    assert selected.notes == ("Only the item 'params' is planned, not 'opt_state'.",)
    with pytest.raises(InvalidModel, match="several items: 'optim', 'weights'") as caught:
        load_model(saved(weights=model, optim=moments))
    assert caught.value.fix.endswith("5/weights.")


def test_a_saved_sharding_is_the_models_own_spec(written):
    model = load_model(written / "ocdbt")
    specs = {group.name: group.spec for group in model.groups}
    assert specs["params/layers/*/kernel"] == Spec("model", "data")
    assert specs["params/layers/*/bias"] is None
    result = shardlab.plan(model, "data=2,model=4")
    rows = {row.path: row.parameter for row in result.rows}
    assert rows["params/layers/*/kernel"].shard_shape == (2, 2)


def test_a_state_without_params_is_planned_completely(tmp_path):
    ocp.PyTreeCheckpointer().save(tmp_path / "all", {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)})
    assert shapes(load_model(tmp_path / "all")) == {"b": ((2,), "f32"), "w": ((3, 2), "f32")}


def test_reading_imports_neither_jax_nor_orbax(written):
    code = (
        "import sys; from shardlab.planner.models.load import load_model\n"
        f"assert load_model({str(written / 'ocdbt')!r}).n_tensors == 5\n"
        "assert not {'jax', 'orbax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def broken(written, tmp_path):
    """Return a function that copies a checkpoint and hands it out to be broken."""

    def copy(kind):
        return shutil.copytree(written / kind, tmp_path / kind)

    return copy


def test_truncated_metadata_is_an_error_that_names_the_file(broken):
    file = broken("zarr") / "_METADATA"
    full = file.read_bytes()
    for end in range(0, len(full) - 1, 37):
        file.write_bytes(full[:end])
        with pytest.raises(InvalidModel, match="_METADATA is not valid JSON"):
            load_model(file.parent)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "_METADATA contains a list instead of an object"),
        ("{}", "has no 'tree_metadata'"),
        ('{"tree_metadata": {}}', "has no arrays"),
        ('{"tree_metadata": {"a": 3}}', "invalid entry 'a'"),
        ('{"tree_metadata": {"a": {"value_metadata": {}}}}', "invalid entry 'a'"),
        ("[" * 100_000, "_METADATA is not valid JSON"),
        ('{"tree_metadata": NaN}', "has no 'tree_metadata'"),
        ("\xff", "is not UTF-8"),
    ],
)
def test_metadata_that_has_other_content_is_reported(broken, text, message):
    file = broken("zarr") / "_METADATA"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidModel, match=message):
        load_model(file.parent)


def test_a_missing_array_is_named(broken):
    folder = broken("zarr")
    shutil.rmtree(folder / "params.layers.1.bias")
    with pytest.raises(InvalidModel, match=r"lists an array 'params\.layers\.1\.bias'"):
        load_model(folder)


def test_an_array_outside_of_the_checkpoint_is_not_looked_at(broken):
    file = broken("zarr") / "_METADATA"
    data = json.loads(file.read_text())
    entry = data["tree_metadata"]["('params', 'layers', '1', 'bias')"]
    entry["key_metadata"] = [{"key": "../zarr3/params", "key_type": 2}]
    file.write_text(json.dumps(data | {"tree_metadata": {"a": entry}}))
    with pytest.raises(InvalidModel, match="that it does not contain"):
        load_model(file.parent)


@pytest.mark.parametrize("name", ["manifest.ocdbt", "d"])
def test_a_store_that_lost_a_part_is_reported(broken, name):
    folder = broken("ocdbt")
    part = folder / name
    shutil.rmtree(part) if part.is_dir() else part.unlink()
    with pytest.raises(InvalidModel, match=r"store of the checkpoint|that it does not contain"):
        load_model(folder)


def test_a_truncated_store_is_reported(broken):
    folder = broken("ocdbt")
    for file in [folder / "manifest.ocdbt", *(folder / "d").iterdir()]:
        file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(InvalidModel, match=r"store of the checkpoint cannot be read"):
        load_model(folder)


@pytest.mark.parametrize("text", ["{", '{"!": "{}"}', '{"cA==": "3"}', '{"cA==": "{}"}'])
def test_a_sharding_file_that_cannot_be_read_is_reported(broken, text):
    file = broken("zarr") / "_sharding"
    file.write_text(text)
    with pytest.raises(InvalidModel, match=r"_sharding is not valid JSON|The sharding of"):
        load_model(file.parent)


@pytest.mark.parametrize(
    "data",
    [
        3,
        {},
        {"shape": 3, "dtype": "<f4"},
        {"shape": [2, -1], "dtype": "<f4"},
        {"shape": [2.5], "dtype": "<f4"},
        {"shape": [float("nan")], "dtype": "<f4"},
        {"shape": [True], "dtype": "<f4"},
        {"shape": [2], "dtype": "<V4"},
        {"shape": [2], "dtype": [["a", "<f4"]]},
        {"shape": ["2"], "dtype": "<f4"},
    ],
)
def test_a_description_that_is_none_is_reported_with_the_array(broken, data):
    folder = broken("zarr")
    (folder / "params.layers.0.bias" / ".zarray").write_text(json.dumps(data))
    with pytest.raises(InvalidModel, match=r"Zarr metadata of array 'params\.layers\.0\.bias'"):
        load_model(folder)


def test_a_name_that_is_an_absolute_path_is_no_array_of_the_checkpoint(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for folder in (outside, inside):
        folder.mkdir()
        (folder / ".zarray").write_text('{"shape": [2], "dtype": "<f4"}')
    assert len(list(read_arrays(tmp_path, ["inside"], ocdbt=False))) == 1
    with pytest.raises(InvalidModel, match="that it does not contain"):
        list(read_arrays(inside, [str(outside)], ocdbt=False))


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i4", "|u1", "|b1", "<c8", "<f2"])
def test_numpys_dtypes_are_read_as_numpy_reads_them(dtype):
    assert parse_zarr({"shape": [], "dtype": dtype})[1].name == np.dtype(dtype).name
