"""`shardlab learn` in a real terminal, from the first problem to the next one.

Each sitting opens a house, which loads JAX, so few sittings hold many facts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from terminal import Terminal
from tiny_catalogue import solution, starter, write_catalogue, wrong

from shardlab.cli import main
from shardlab.course.workbook import open_workbook

KEYS = "q quit"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The folder in which we stand; the catalogue and the data are beside it."""
    monkeypatch.setenv("SHARDLAB_DATA", str(tmp_path / "data"))
    for name in ("VISUAL", "EDITOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    write_catalogue(tmp_path / "problems")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def learn(*args, **options):
    command = [sys.executable, "-m", "shardlab", "learn", "--level", "C", *args]
    return Terminal([*command, "--catalogue", "../problems"], **options)


def record():
    return open_workbook("../problems").record


def children(process):
    told = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True)
    return [int(pid) for pid in told.stdout.split()]


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_newcomer_comes_from_the_first_problem_to_the_next(here):
    with learn() as screen:
        shown = screen.until(KEYS)
        assert "Sums: problem 1 of 3, plus-one" in shown
        assert "│ device 0 │ device 1 │" in shown
        mine = here / "shardlab-practice" / "plus-one.py"
        assert f"Your file: {mine}" in shown
        assert mine.read_text() == starter("plus-one")

        mine.write_text(wrong("plus-one"))
        shown = screen.until(KEYS)
        assert "\n-- run ------" in shown
        assert "WA" in shown
        assert "level C" in shown
        screen.press("h")
        screen.until("\n\nHint 1 of 2\n\nIt is more than n.")
        screen.press("o")
        screen.until("It is not solved yet. o again shows the solution")

        other = here / "half"
        other.write_text(solution("plus-one"))
        other.replace(mine)  # as editors do
        shown = screen.until("Solved. n goes on to twice.")
        assert "The examples pass (2 cases). Now all cases:" in shown
        assert "AC" in shown
        screen.press("n")
        screen.until("Products: problem 2 of 3, twice")
        screen.until(KEYS)
        assert (here / "shardlab-practice" / "twice.py").read_text() == starter("twice")
        assert not screen.is_as_before
        zygotes = children(screen.process)
        screen.press("q")
        screen.until("`shardlab learn` goes on from here.")
        assert screen.ended() == 0
        assert screen.is_as_before
        assert zygotes
        assert not any(map(is_running, zygotes))
    kept = record()
    assert [(each.problem, each.kind, each.code) for each in kept.submissions()] == [
        ("plus-one", "run", "WA"),
        ("plus-one", "run", "AC"),
        ("plus-one", "submit", "AC"),
    ]
    assert kept.of("plus-one").hints == 1


def test_a_sitting_goes_on_where_the_last_one_ended_and_ctrl_c_leaves_the_terminal_whole(here):
    book = open_workbook("../problems")
    path, _ = book.start(book.problem("twice"), here / "mine")
    path.write_text("def twice(n):\n    while True: pass\n")
    with learn() as screen:
        # Work from last time is judged at once; this never ends, and nobody waits for it.
        screen.until("problem 2 of 3, twice")
        screen.until("run: judging ...")
        path.write_text(wrong("twice"))
        assert "WA" in screen.until(KEYS)
        screen.press("x")
        screen.until("x again puts the starter back")
        screen.press("x")
        screen.until("The starter is back in twice.py. Yours is kept as twice.py.1.bak.")
        assert path.read_text() == starter("twice")
        screen.press("\x1b[Az")
        screen.until("'z' is no key here")
        screen.press("l")
        assert "[~] twice" in screen.until("Go to (number or name, Enter):")
        screen.press("nope\n")
        screen.until("[catalogue.unknown_problem] There is no problem 'nope'.")
        screen.press("l1\n")
        screen.until("problem 1 of 3, plus-one")
        assert (here / "mine" / "plus-one.py").exists()
        screen.process.send_signal(signal.SIGTSTP)  # without a shell above it goes on at once
        screen.press("t")
        screen.until("problem 1 of 3, plus-one")
        (here / "mine" / "plus-one.py").unlink()
        screen.until("[practice.no_file] Your file is gone.")
        screen.press("r")
        screen.until("or press x twice for the starter.")
        screen.press("xx")
        screen.until("The starter is back in plus-one.py.")
        screen.press("\x03")
        screen.until("Everything is kept. `shardlab learn` goes on from here.")
        assert screen.ended() == 0
        assert screen.is_as_before
    assert (here / "mine" / "twice.py.1.bak").read_text() == wrong("twice")
    assert [each.is_finished for each in record().submissions()] == [False, True]


def test_a_plain_narrow_terminal_and_an_editor_in_it_are_enough(here, tmp_path):
    editor = tmp_path / "ed it"
    editor.write_text(
        '#!/bin/sh\nstty -a | grep -o "[-]*icanon"\necho "$1" && echo "# x" >> "$1"\n'
    )
    editor.chmod(0o755)
    env = {**os.environ, "TERM": "dumb", "EDITOR": f"'{editor}'", "LC_ALL": "C"}
    with learn(columns=44, env=env) as screen:
        shown = screen.until(KEYS)
        assert "e opens it here in ed it" in shown
        words = [line for line in shown.splitlines() if not line.startswith(("    ", "Your file"))]
        assert max(map(len, words)) <= 44
        screen.resize(120)
        screen.press("?")
        assert (
            "Save your file, and it is judged: on the examples first, and where they pass, on"
            in (screen.until("goes on from here"))
        )
        screen.press("lnope\n")
        screen.until("[catalogue.unknown_problem]")
        screen.press("e")
        screen.until("\nicanon\n")  # the terminal is as editors expect it
        assert "\r" not in screen.until(KEYS)
        assert "\x1b" not in screen.raw  # neither colours nor cursor
        screen.process.send_signal(signal.SIGTERM)
        assert screen.ended() == 128 + signal.SIGTERM
        assert screen.is_as_before
    assert len(record().submissions()) == 1


def test_without_a_terminal_it_says_so_and_once_judges(here):
    def once(*args):
        words = ["learn", *args, "--catalogue", "../problems"]
        return CliRunner().invoke(main, words, prog_name="shardlab")

    done = once()
    assert done.exit_code == 2
    assert "[practice.no_terminal] The input is not a terminal" in done.output
    assert "shardlab learn --once" in done.output
    done = once("--once", "--level", "C")
    assert (done.exit_code, "[practice.no_file]" in done.output) == (2, True)
    book = open_workbook("../problems")
    path, _ = book.start(book.problem("plus-one"))
    path.write_text(solution("plus-one"))
    done = once("--once", "--level", "C")
    assert (done.exit_code, done.stdout[:2]) == (0, "AC")
    assert done.stderr == "plus-one, started last: shardlab-practice/plus-one.py\n"
    assert record().of("plus-one").is_solved
    told = CliRunner().invoke(main, ["practice", "list", "--json", "--catalogue", "../problems"])
    assert [each["mark"] for each in json.loads(told.output)] == ["solved", "open", "locked"]
