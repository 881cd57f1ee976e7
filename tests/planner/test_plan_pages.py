"""The pages on plans: their commands work as printed, on files that the pages themselves make."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardlab.cli import main
from shardlab.planner.findings.codes import CODES
from shardlab.planner.strategies.axis_roles import ROLES
from shardlab.planner.strategies.dim_meaning import KNOWN_MEANINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("how-to-plan", "how-to-advise", "plan-sources", "plan-rules", "plan-memory", "plan-ci")
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A text that goes into a file or into Python, or a command with its continued lines.
STATEMENT = re.compile(
    r"(?P<made>[^\n]*) <<'END'\n(?P<text>.*?)^END\n|(?P<command>(?:[^\n]*\\\n)*[^\n]+)\n",
    re.DOTALL | re.MULTILINE,
)


def statements(page):
    for block in BLOCK.findall((DOCS / f"{page}.md").read_text("utf-8")):
        yield from STATEMENT.finditer(block)


def make(how, text):
    """Do what a shell does with `cat > FILE` or `python -` and a text."""
    if how == "python -":
        subprocess.run([sys.executable, "-c", text], check=True)
    else:
        cat, file = how.split(" > ")
        assert cat == "cat"
        Path(file).write_text(text, "utf-8")


def run(command):
    program, *arguments = shlex.split(command.replace("\\\n", ""), comments=True)
    if program == "mkdir":
        Path(arguments[-1]).mkdir()
        return
    assert program == "shardlab"
    done = CliRunner().invoke(main, arguments)
    is_wrong = command.endswith("# exit code 1")
    assert done.exit_code == is_wrong, f"{command}\n{done.output}"
    for severity in ("error", "warning"):
        # A page that shows how to do it right shows nothing that a plan complains of.
        assert is_wrong or f"{severity} [" not in done.output, f"{command}\n{done.output}"


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work_in_their_order(page, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for found in statements(page):
        if found["made"]:
            make(found["made"], found["text"])
        else:
            run(found["command"])


def test_the_page_on_sources_has_a_how_to_for_each():
    page = (DOCS / "plan-sources.md").read_text("utf-8")
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert len(sections) >= 7
    for section in sections:
        assert "\nshardlab plan " in section, section.splitlines()[0]


def test_the_page_lists_every_finding_with_its_severity():
    page = (DOCS / "how-to-plan.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| \[([\w.]+)\]\(findings/\1\.md\) \| (\w+) \|", page, re.MULTILINE))
    assert rows == {code: kind.severity for code, kind in CODES.items()}


def test_the_page_on_rules_names_every_axis_that_is_told_and_every_mesh_axis_with_a_role():
    page = (DOCS / "plan-rules.md").read_text("utf-8")
    rows = " ".join(line for line in page.splitlines() if line.startswith("| "))
    for name in (*KNOWN_MEANINGS, *(name for names in ROLES.values() for name in names)):
        assert f"`{name}`" in rows, name
