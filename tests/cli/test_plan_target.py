"""`shardlab plan file.py:make_model`: a person's file makes the model, in another process."""

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
        cut = nnx.with_partitioning(nnx.initializers.normal(), ("fsdp", "tensor"))
        self.linear = nnx.Linear(8, 12, kernel_init=cut, rngs=rngs)


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
    """A folder with models in a file, in which we stand."""
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)


def plan(model, *args):
    asked = ["plan", model, "--mesh", "fsdp=4,tensor=2", *args]
    return CliRunner().invoke(main, asked, prog_name="shardlab")


def test_a_model_is_cut_as_its_own_annotations_say():
    done = plan("models.py:set_mesh", "--json", "-")
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    held = {row["path"]: row["held"][0] for row in made["rows"]}
    assert held["linear/kernel"]["spec"] == ["fsdp", "tensor"]
    assert held["linear/kernel"]["shard_shape"] == [2, 6]
    assert (made["model"], made["source"]) == ("set_mesh", "models.py:set_mesh")


def test_a_module_and_a_tree_are_planned_as_well():
    done = plan("models:TREE")
    assert done.exit_code == 0, done.output
    assert "a/kernel" in done.stdout
    assert "name (str)" in done.stdout


def test_advice_is_given_on_it_too():
    asked = ["advise", "models.py:Net", "--hardware", "tpu-v5p", "--chips", "4"]
    done = CliRunner().invoke(main, asked, prog_name="shardlab")
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
    ("model", "code", "words"),
    [
        ("models.py:Ne", 2, "did you mean 'Net'?"),
        ("models.py", 2, "name what makes it, as in models.py:make_model"),
        ("model.py:Net", 2, "There is no file 'model.py'"),
        ("models.py:NOTHING", 2, "There is no array in NOTHING"),
        ("models.py:needs", 2, "needs cannot be called without 'width'"),
        ("models.py:raises", 2, "The program raised ValueError: no model today"),
        ("models.py:cyclic", 2, "The pytree holds itself: at 'a/0'"),
        ("models.py:enormous", 2, "wanted more memory than the"),
    ],
)
def test_what_goes_wrong_is_told_in_words(model, code, words):
    done = plan(model)
    assert done.exit_code == code, done.output
    assert words in done.stderr
    # A traceback is that of the person's file, never ours.
    assert "Traceback" not in done.stderr or 'File "models.py"' in done.stderr
    assert "src/shardlab" not in done.stderr


def test_a_file_that_takes_for_ever_is_stopped():
    done = plan("models.py:sleeps", "--time-limit", "3")
    assert done.exit_code == 124, done.output
    assert "still running after 3 s" in done.stderr
