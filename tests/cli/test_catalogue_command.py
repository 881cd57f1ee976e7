"""`shardlab catalogue`: the commands of docs/write-a-problem.md, and what is said of a fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardlab.cli import main

DOC = (Path(__file__).parents[2] / "docs" / "write-a-problem.md").read_text("utf-8")
SHOWN = re.findall(r"^    \$ shardlab (.*)\n((?:    [^$\n].*\n)*)", DOC, re.MULTILINE)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def ran(*words):
        done = CliRunner().invoke(main, words)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.exit_code, done.output

    return ran


def test_the_commands_of_the_page_print_what_it_shows(run):
    assert [command.split()[:2] for command, _ in SHOWN] == [
        ["catalogue", "new"],
        ["catalogue", "check"],
    ]
    for command, shown in SHOWN:
        assert run(*command.split()) == (0, re.sub("^    ", "", shown, flags=re.MULTILINE))


def test_a_fault_is_told_with_its_place_and_ends_with_exit_code_1(run):
    run("catalogue", "new", "take-the-largest", "--track", "basics", "--catalogue", "ours")
    page = Path("ours/basics/take-the-largest/statement.md")
    page.write_text(page.read_text("utf-8").replace("## The task", "## Task"), "utf-8")
    code, output = run("catalogue", "check", "--catalogue", "ours", "--fast", "--seed", "7")
    assert code == 1
    first, second = output.splitlines()
    assert first == "FAIL  take-the-largest                  3 cases, 0 wrong answers"
    assert second.startswith("      statement.md  The headings are Why this matters,")
    assert second.endswith("[page.headings]")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "shard-map-sum"], "There is no problem 'shard-map-sum'"),
        (["check", "--catalogue", "nowhere"], "it has no tracks.toml"),
        (
            ["new", "Take It", "--track", "basics"],
            "[catalogue.invalid_name] 'Take It' cannot be the",
        ),
        (["new", "Take It", "--track", "basics"], "such as take-it."),
    ],
)
def test_what_cannot_be_done_ends_with_exit_code_2(run, words, said):
    code, output = run("catalogue", *words)
    assert code == 2
    assert said in output
