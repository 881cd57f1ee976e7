"""Docs: every error has its page, every example runs, every link and path resolves."""

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
from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
from shardlab.errors import LabError

ROOT = Path(__file__).parent.parent
SRC, DOCS = ROOT / "src", ROOT / "docs"
FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
ERROR_PAGES = {path.stem: path.read_text("utf-8") for path in (DOCS / "errors").glob("*.*.md")}


def leaf_error_classes(base=LabError):
    """Return the error classes that are raised: those without subclasses."""
    for error_class in base.__subclasses__():
        if error_class.__module__ == errors.__name__:
            yield from leaf_error_classes(error_class)
            if not error_class.__subclasses__():
                yield error_class


@pytest.mark.parametrize("error_class", list(leaf_error_classes()), ids=lambda cls: cls.code)
def test_every_error_has_a_page_with_its_message_and_what_to_do(error_class):
    page = ERROR_PAGES[error_class.code]
    assert page.startswith(f"# {error_class.code}\n")
    assert f"[{error_class.code}]" in page, "show the message"
    assert "  try: " in page, "show the full message"
    assert "\nWhat to do: " in page


def test_every_page_is_of_an_error_that_exists():
    assert set(ERROR_PAGES) == {error_class.code for error_class in leaf_error_classes()}


def test_the_index_of_errors_lists_every_page_with_its_class():
    index = (DOCS / "errors" / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| \[`([\w.]+)`\]\(\1\.md\) \| `(\w+)` \|", index, re.MULTILINE))
    assert rows == {cls.code: cls.__name__ for cls in leaf_error_classes()}


def modules_with_docstrings():
    for path in sorted((SRC / "shardlab").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        # Problems and the gallery have tests that run them. Importing __main__ runs the command,
        # and importing Alembic's env runs the migrations.
        is_run_by_import = parts[-1] in ("__main__", "env")
        if not {"problems", "gallery"} & {*parts} and not is_run_by_import:
            yield ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", list(modules_with_docstrings()))
def test_the_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("errors/*.md"))],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_the_examples_in_docs_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some examples write the file that they read
    blocks = [block for block in FENCED.findall(path.read_text("utf-8")) if ">>>" in block]
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, path.name, str(path), 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_picture_in_the_readme_is_the_output_of_the_command():
    picture = layout((4096, 16384), "None,model", "data=2,model=4", dtype="bf16").svg()
    assert (DOCS / "layout.svg").read_text("utf-8").strip() == picture.strip()


README_COMMANDS = re.findall(
    r"^    \$ shardlab ((?:plan|check|trace|practice run) .*)\n((?:(?:    .*)?\n)+?)(?=\S)",
    (ROOT / "README.md").read_text("utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize(("command", "block"), README_COMMANDS)
def test_the_reports_in_the_readme_are_the_output_of_the_commands(command, block, tmp_path):
    process = subprocess.run(
        [sys.executable, "-m", "shardlab", *command.split()],
        cwd=ROOT,
        env={**os.environ, "SHARDLAB_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    # A report that ends in "..." is shortened: the output must start with it.
    expected, is_shortened, _ = textwrap.dedent(block).strip().partition("\n...")
    if is_shortened:
        assert process.stdout.startswith(expected)
    else:
        assert process.stdout.strip() == expected


def test_the_readme_shows_a_wrong_value_and_a_deadlock():
    targets = [command.split()[1] for command, _ in README_COMMANDS]
    assert targets == ["examples/forgotten_psum.py:loss", "examples/hang.py:step"]


def test_links_between_documents_resolve():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def heading_anchors(path):
    """Return the anchors that GitHub gives to the headings of a page."""
    for heading in re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_links_to_sections_resolve():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")):
        for file, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text("utf-8")):
            target = path.parent / file if file else path
            assert anchor in heading_anchors(target), f"{path.name} links to {file}#{anchor}"


# Paths in other repositories: JAX's tests, and MaxText's sharding dumps.
FOREIGN_PATHS = {
    "tests/shard_map_test.py",
    "tests/utils/sharding_dump.py",
    "tests/utils/sharding_info",
}
# A path in backquotes, such as `tests/oracle/test_written.py` or `docs/decisions/`.
REPOSITORY_PATH = re.compile(r"`((?:benchmarks|docs|examples|src|tests|tools)/[\w./-]*)`")


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))],
    ids=lambda path: path.name,
)
def test_paths_in_backquotes_exist(path):
    for target in REPOSITORY_PATH.findall(path.read_text("utf-8")):
        if target not in FOREIGN_PATHS:
            assert (ROOT / target).exists(), f"{path.name} names {target}"


def test_the_readme_counts_the_problems_of_the_course():
    n_problems = len(list(BUILT_IN_CATALOGUE.glob("*/*/problem.toml")))
    assert f"course of {n_problems} problems" in (ROOT / "README.md").read_text("utf-8")
