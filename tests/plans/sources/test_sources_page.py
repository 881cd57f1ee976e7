"""The page on where tensors come from: its commands work on the files that it speaks of."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from click.testing import CliRunner

from plans.sources.checkpoints import write_model
from shardlab.cli import main
from shardlab.plans.sources.load import load_model

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to-plan.md").read_text("utf-8")
SECTION = re.search(r"^## Where tensors come from$.*?(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[
    0
]
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith("shardlab plan")
]
TABLE = re.search(r"^```toml\n(name.*?)^```", SECTION, re.DOTALL | re.MULTILINE)[1]
MAKE = """\
import jax

def make_model():
    return {"up": jax.ShapeDtypeStruct((64, 16), "bfloat16")}
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files that the page speaks of."""
    top = tmp_path_factory.mktemp("page")
    (top / "tiny.toml").write_text(TABLE, "utf-8")
    folder = top / "checkpoints" / "tiny"
    folder.mkdir(parents=True)
    write_model(folder, load_model(top / "tiny.toml"), 2)
    shutil.copytree(ROOT / "examples", top / "examples")
    (top / "mypackage").mkdir()
    (top / "mypackage" / "model.py").write_text(MAKE, "utf-8")
    with ocp.CheckpointManager(top / "runs" / "7" / "checkpoints") as manager:
        manager.save(1000, args=ocp.args.StandardSave({"up_proj": jnp.ones((64, 16))}))
    return top


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_plans(command, files, monkeypatch):
    monkeypatch.chdir(files)
    _, *arguments = shlex.split(command)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "parameters in" in done.output


def test_the_page_shows_each_source():
    assert len(COMMANDS) >= 11
