"""The page on where tensors come from: its commands work on the files that it speaks of."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from plans.sources.checkpoints import write_model
from shardlab.cli import main
from shardlab.plans.sources.load import load_model

PAGE = (Path(__file__).parents[3] / "docs" / "how-to-plan.md").read_text("utf-8")
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


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files that the page speaks of."""
    (tmp_path / "tiny.toml").write_text(TABLE, "utf-8")
    folder = tmp_path / "checkpoints" / "tiny"
    folder.mkdir(parents=True)
    write_model(folder, load_model(tmp_path / "tiny.toml"), 2)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_plans(command):
    _, *arguments = shlex.split(command)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "parameters in" in done.output


def test_the_page_shows_each_source():
    assert len(COMMANDS) >= 7
