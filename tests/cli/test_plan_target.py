"""`shardlab plan file.py:make_model`: a user's file creates the model, in another process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from shardlab.cli import main

MODELS = """
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

TREE = {"a": {"kernel": jax.ShapeDtypeStruct((8, 6), jnp.bfloat16)}, "name": "tree"}
NOTHING = None


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        init = nnx.with_partitioning(nnx.initializers.normal(), ("fsdp", "tensor"))
        self.linear = nnx.Linear(8, 12, kernel_init=init, rngs=rngs)


def set_mesh():
    print("making it")
    with jax.set_mesh(jax.make_mesh((4, 2), ("fsdp", "tensor"))):
        return Net(nnx.Rngs(0))


def needs(width):
    return jnp.zeros(width)


def raises():
    raise ValueError("no model today")


def cyclic():
    tree = {"a": []}
    tree["a"].append(tree)
    return tree


def sleeps():
    time.sleep(60)


def enormous():
    return np.ones((1 << 20, 1 << 20))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with models in a file."""
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)


def plan(model, *args):
    arguments = ["plan", model, "--mesh", "fsdp=4,tensor=2", *args]
    return CliRunner().invoke(main, arguments, prog_name="shardlab")


def test_a_model_is_sharded_by_its_own_annotations():
    done = plan("models.py:set_mesh", "--json", "-")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    arrays = {row["path"]: row["held"][0] for row in data["rows"]}
    assert arrays["linear/kernel"]["spec"] == ["fsdp", "tensor"]
    assert arrays["linear/kernel"]["shard_shape"] == [2, 6]
    assert (data["model"], data["source"]) == ("set_mesh", "models.py:set_mesh")


def test_a_module_and_a_tree_are_planned_as_well():
    done = plan("models:TREE")
    assert done.exit_code == 0, done.output
    assert "a/kernel" in done.stdout
    assert "name (str)" in done.stdout


def test_advice_is_given_on_it_too():
    arguments = ["advise", "models.py:Net", "--hardware", "tpu-v5p", "--devices", "4"]
    done = CliRunner().invoke(main, arguments, prog_name="shardlab")
    assert done.exit_code == 0, done.output
    assert "  shardlab plan models.py:Net --mesh data=2,fsdp=2 --strategy" in done.stdout


def test_this_process_loads_no_jax():
    code = (
        "import sys; from shardlab.cli import main\n"
        "try: main(['plan', 'models.py:Net', '--mesh', 'fsdp=4,tensor=2'])\n"
        "except SystemExit as end: assert end.code in (None, 0), end.code\n"
        "assert not {'jax', 'numpy'} & set(sys.modules), 'loaded'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "linear/kernel" in done.stdout


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("models.py:Ne", 2, "Did you mean 'Net'?"),
        ("models.py", 2, "as in models.py:make_model"),
        ("model.py:Net", 2, "No such file: 'model.py'"),
        ("models.py:NOTHING", 2, "There is no array in NOTHING"),
        ("models.py:needs", 2, "needs cannot be called without 'width'"),
        ("models.py:raises", 2, "The program raised ValueError: no model today"),
        ("models.py:cyclic", 2, "contains itself: the container at 'a/0'"),
        ("models.py:enormous", 2, "needed more memory than its"),
    ],
)
def test_an_invalid_model_is_reported(model, code, message):
    done = plan(model)
    assert done.exit_code == code, done.output
    assert message in done.stderr
    # A traceback is that of the user's file, never ours.
    assert "Traceback" not in done.stderr or 'File "models.py"' in done.stderr
    assert "src/shardlab" not in done.stderr


def test_a_file_that_never_ends_is_stopped():
    done = plan("models.py:sleeps", "--time-limit", "3")
    assert done.exit_code == 124, done.output
    assert "still running after 3 s" in done.stderr
