"""The linter: one broken folder for each rule, which must fail for just that reason."""

from __future__ import annotations

import re

import pytest

from shardlab.catalogue.problem import load_problem
from shardlab.course.new_problem import new_problem
from shardlab.course.problem_lint import lint_problem

PAGE = "statement.md"


@pytest.fixture
def folder(tmp_path):
    return new_problem("take-the-largest", "basics", tmp_path)


def rules(folder):
    return [fault.rule for fault in lint_problem(load_problem(folder))]


def edit(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def test_a_new_problem_has_no_faults(folder):
    assert rules(folder) == []


@pytest.mark.parametrize(
    ("rule", "file", "old", "new"),
    [
        ("text.long_line", PAGE, "One idea and", "One idea and " + "very " * 30),
        ("text.spaces", PAGE, "One idea and one picture.", "One idea and one\tpicture."),
        ("text.spaces", "solution.py", "(x)\n", "(x) \n"),
        ("text.end", "hints.md", "`axis = mesh.axis_names[0]`.\n", "`axis`."),
        ("text.end", "solution.py", "split)(x)\n", "split)(x)\n\n"),
        ("text.unfinished", PAGE, "One idea and one picture.", "TODO."),
        ("page.title", PAGE, "# Take the largest", "# Take the smallest"),
        ("page.headings", PAGE, "## The task", "## Your task"),
        ("page.picture", PAGE, "```devices\nmesh", "```python\nmesh"),
        ("page.layout", PAGE, "## Worked", "```layout\nf32[8] P('data') data=3\n```\n\n## Worked"),
        ("page.devices", PAGE, "mesh data=4\n", "mesh data=3\n"),
        ("page.devices", PAGE, "-> pmax over data", "-> pmax over model"),
        ("page.devices", PAGE, "maximum P(): 9", "maximum P(): 9 | 9 | 9 | 8"),
        ("page.fence", PAGE, "sharded like x\n```", "sharded like x\n"),
        ("page.language", PAGE, "```text\n1.0", "```console\n1.0"),
        ("page.math", PAGE, "## Pitfalls", "```math\nx = = y\n```\n\n## Pitfalls"),
        ("page.math", PAGE, "## Pitfalls", "```math\nx = lambda y: y\n```\n\n## Pitfalls"),
        ("page.predict", PAGE, "## Pitfalls", "```predict\nHow?\n(x) so\n```\n\n## Pitfalls"),
        ("page.worked_example", PAGE, "```text\n1.0\n```\n", ""),
        ("page.examples", PAGE, "```pycon\n", "```text\n"),
        ("page.pitfall", PAGE, "\n  ([own_largest](wrong/own_largest.py)).", "."),
        ("page.link", PAGE, "of its own shard,", "of its own [shard](shards.md),"),
        ("hints.headings", "hints.md", "## Hint 3", "## Hint 4"),
        ("hints.headings", "hints.md", "## Hint 3\n", "\n"),
        ("hints.empty", "hints.md", "A question", "## Hint 2\n\nA question"),
        ("code.syntax", "solution.py", "def per_shard(y):", "def per_shard(y)"),
        ("code.function", "starter.py", "def take_the_largest", "def take_largest"),
        ("code.arguments", "starter.py", "take_the_largest(x, mesh)", "take_the_largest(mesh, x)"),
        ("code.experimental", "solution.py", "import jax\n", "import jax.experimental.pallas\n"),
        ("wrong.header", "wrong/own_largest.py", "# WA: each", "# each"),
        ("wrong.header", "wrong/own_largest.py", "# WA: each", "# WO: each"),
        ("wrong.header", "wrong/own_largest.py", "# WA: each", "# WA factor_of_m: each"),
        ("wrong.header", "wrong/own_largest.py", "# WA: each", "# AC: each"),
    ],
)
def test_each_rule_finds_what_it_is_for(folder, rule, file, old, new):
    edit(folder / file, old, new)
    found_rules = rules(folder)
    assert rule in found_rules
    # What else is seen follows from the same edit: a page with a broken block has no picture.
    assert set(found_rules) == {rule, *FOLLOWING.get(rule, ())}


FOLLOWING = {
    "page.fence": ("page.headings", "page.language", "page.devices"),
    "page.language": ("page.worked_example",),
    "page.pitfall": ("wrong.unlinked",),
    "hints.empty": ("hints.headings",),
}


def test_a_stray_file_is_found(folder):
    (folder / "notes.txt").write_text("later\n")
    assert rules(folder) == ["files.stray"]


def test_a_file_that_is_not_utf_8_is_found(folder):
    (folder / "wrong" / "own_largest.py").write_bytes(b"# WA: d\xe9j\xe0 vu\n")
    assert rules(folder) == ["text.encoding"]


def test_a_missing_wrong_submission_leaves_too_few_and_a_dead_link(folder):
    (folder / "wrong" / "own_largest.py").unlink()
    assert sorted(rules(folder)) == ["page.link", "wrong.too_few"]


def test_a_wrong_submission_that_nothing_links_to_is_found(folder):
    source = (folder / "wrong" / "own_largest.py").read_text()
    (folder / "wrong" / "another.py").write_text(source)
    assert rules(folder) == ["wrong.unlinked"]


def test_an_empty_section_and_a_page_that_is_too_long_are_found(folder):
    text = (folder / PAGE).read_text("utf-8")
    (folder / PAGE).write_text(re.sub(r"(## The task\n).*?(## In)", r"\1\n\2", text, flags=re.S))
    assert rules(folder) == ["page.empty"]
    (folder / PAGE).write_text(text.replace("One idea", "Word.\n" * 60 + "One idea"), "utf-8")
    assert rules(folder) == ["page.length"]


def test_a_page_without_pitfalls_is_found(folder):
    text = (folder / PAGE).read_text("utf-8")
    without = re.sub(r"(## Pitfalls\n).*?(## The task)", r"\1\nNone.\n\n\2", text, flags=re.S)
    (folder / PAGE).write_text(without)
    assert set(rules(folder)) == {"page.pitfalls", "wrong.unlinked"}


def test_a_fault_in_a_picture_of_devices_has_its_line(folder):
    edit(folder / PAGE, "maximum P(): 9", "maximum P(): 9 | 9 | 9 | 8")
    (fault,) = lint_problem(load_problem(folder))
    line = (folder / PAGE).read_text("utf-8").splitlines()[fault.line - 1]
    assert line.startswith("maximum P(): 9 | 9 | 9 | 8")
    assert "devices 0 and 3 hold copies under P(), but their cells differ" in fault.message


def test_a_fault_says_where_it_is(folder):
    edit(folder / PAGE, "\n  ([own_largest](wrong/own_largest.py)).", ".")
    fault = next(
        fault for fault in lint_problem(load_problem(folder)) if fault.rule == "page.pitfall"
    )
    assert (folder / PAGE).read_text("utf-8").splitlines()[fault.line - 1].startswith("- Without")
    assert str(fault).startswith(f"statement.md:{fault.line}  The pitfall does not end in a link")
