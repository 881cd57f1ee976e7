"""The how-to pages: each command shown with its output prints that output."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONSOLE = re.compile(r"^```console\n\$ (.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHOWN = [
    pytest.param(command, output, id=f"{path.stem}-{number}")
    for path in sorted((ROOT / "docs").glob("how-to-*.md"))
    for number, (command, output) in enumerate(CONSOLE.findall(path.read_text("utf-8")))
]


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_a_command_prints_what_the_page_shows(command, output):
    program, *arguments = shlex.split(command)
    assert program == "shardlab"
    done = subprocess.run(
        [sys.executable, "-m", "shardlab", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # Three dots at the end of a block: the page shows the beginning.
    shown, is_cut, _ = output.partition("\n...\n")
    printed = done.stdout[: len(shown)] if is_cut else done.stdout
    assert printed == shown, done.stderr


def test_pages_show_a_check_a_plan_and_advice():
    assert {each.values[0].split()[1] for each in SHOWN} >= {"check", "plan", "advise"}
