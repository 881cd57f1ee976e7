"""Docs: every error has its section, and every example in docs and docstrings runs."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shardlab import errors, layout
from shardlab.errors import LabError

ROOT = Path(__file__).parent.parent
SRC, DOCS = ROOT / "src", ROOT / "docs"
FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SECTION = re.compile(r"^## (\S+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def concrete_kinds(kind=LabError):
    """The kinds of errors that are raised: those without kinds below them."""
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from concrete_kinds(each)
            if not each.__subclasses__():
                yield each


def sections():
    return dict(SECTION.findall((DOCS / "errors.md").read_text("utf-8")))


@pytest.mark.parametrize("kind", list(concrete_kinds()), ids=lambda kind: kind.code)
def test_every_error_has_a_section_with_an_example_and_what_to_do(kind):
    section = sections()[kind.code]
    assert f"[{kind.code}]" in section, "show the message"
    assert "  try: " in section, "show the whole message"
    assert "\nWhat to do: " in section


def test_every_section_is_of_an_error_that_exists():
    assert set(sections()) <= {kind.code for kind in concrete_kinds()}


def light_modules():
    """Modules without JAX: all rooms but the engine."""
    for path in sorted((SRC / "shardlab").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        # Problems are content, which their own audit runs.
        if parts[1] not in ("engine", "problems") and parts[-1] != "__main__":
            yield ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", list(light_modules()))
def test_the_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name
)
def test_the_examples_in_docs_run(path):
    blocks = [block for block in FENCED.findall(path.read_text("utf-8")) if ">>>" in block]
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, path.name, str(path), 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_picture_in_the_readme_is_what_the_command_draws():
    drawn = layout((4096, 16384), "None,model", "data=2,model=4", dtype="bf16").svg()
    assert (DOCS / "layout.svg").read_text("utf-8").strip() == drawn.strip()


def test_the_error_in_the_readme_is_what_the_command_says():
    with pytest.raises(LabError) as caught:
        layout((6, 10), "None,model", "data=2,model=4")
    shown = "\n".join(f"    {line}" for line in str(caught.value).splitlines())
    assert shown in (ROOT / "README.md").read_text("utf-8")


README_COMMANDS = re.findall(
    r"^    \$ shardlab ((?:plan|check|trace|practice run) .*)\n((?:(?:    .*)?\n)+?)(?=\S)",
    (ROOT / "README.md").read_text("utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize(("command", "block"), README_COMMANDS)
def test_the_reports_in_the_readme_are_what_the_commands_say(command, block, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "shardlab", *command.split()],
        cwd=ROOT,
        env={**os.environ, "SHARDLAB_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    shown, is_cut, _ = textwrap.dedent(block).strip().partition("\n...")
    assert done.stdout.startswith(shown) if is_cut else done.stdout.strip() == shown


def test_the_readme_shows_a_plan_a_check_a_trace_and_a_verdict():
    shown = [command.split()[0] for command, _ in README_COMMANDS]
    assert shown == ["plan", "check", "trace", "practice"]


def test_links_between_documents_resolve():
    for path in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def sections_of(path):
    """The anchors that GitHub gives to the headings of a page."""
    for heading in re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_links_to_sections_resolve():
    for path in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for file, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text("utf-8")):
            target = path.parent / file if file else path
            assert anchor in sections_of(target), f"{path.name} links to {file}#{anchor}"


def test_the_readme_counts_the_problems_of_the_course():
    n_problems = len(list((SRC / "shardlab" / "problems").glob("*/*/problem.toml")))
    assert f"a course of {n_problems} problems" in (ROOT / "README.md").read_text("utf-8")
