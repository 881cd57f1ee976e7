"""`shardlab catalogue`: the commands of docs/write-a-problem.md, and how faults are reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardlab.cli import main

DOC = (Path(__file__).parents[2] / "docs" / "write-a-problem.md").read_text("utf-8")
EXAMPLES = re.findall(r"^    \$ shardlab (.*)\n((?:    [^$\n].*\n)*)", DOC, re.MULTILINE)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments):
        done = CliRunner().invoke(main, arguments)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.exit_code, done.output

    return run_command


def test_the_commands_of_the_page_print_what_it_shows(run):
    assert [command.split()[:2] for command, _ in EXAMPLES] == [
        ["catalogue", "new"],
        ["catalogue", "check"],
        ["catalogue", "mutants"],  # of any problem: it prints nothing that could be compared
    ]
    for command, output in EXAMPLES[:2]:
        assert run(*command.split()) == (0, re.sub("^    ", "", output, flags=re.MULTILINE))


def test_a_fault_is_reported_with_its_location_and_exit_code_1(run):
    run("catalogue", "new", "take-the-largest", "--track", "basics", "--catalogue", "ours")
    page = Path("ours/basics/take-the-largest/statement.md")
    page.write_text(page.read_text("utf-8").replace("## The task", "## Task"), "utf-8")
    code, output = run("catalogue", "check", "--catalogue", "ours", "--fast", "--seed", "7")
    assert code == 1
    first, second = output.splitlines()
    counts = "3 cases, 0 wrong submissions, 76 of 76 mutants killed, 8 equivalent"
    assert first == f"FAIL  take-the-largest                  {counts}"
    assert second.startswith("      statement.md  The headings are Why this matters,")
    assert second.endswith("[page.headings]")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "shard-map-sum"], "Unknown problem 'shard-map-sum'"),
        (["check", "--catalogue", "nowhere"], "it has no tracks.toml"),
        (
            ["new", "Take It", "--track", "basics"],
            "[catalogue.invalid_name] 'Take It' is not a valid",
        ),
        (["new", "Take It", "--track", "basics"], "and hyphens: take-it."),
    ],
)
def test_invalid_arguments_end_with_exit_code_2(run, arguments, message):
    code, output = run("catalogue", *arguments)
    assert code == 2
    assert message in output
