"""`shardlab learn` in a real terminal, from the first problem to the next one.

Each run opens a sandbox pool, which loads JAX, so few runs hold many facts.
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
    """The current folder; the catalogue and the data are beside it."""
    monkeypatch.setenv("SHARDLAB_DATA", str(tmp_path / "data"))
    for name in ("VISUAL", "EDITOR", "NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    write_catalogue(tmp_path / "problems")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def learn(*args, **options):
    command = [sys.executable, "-m", "shardlab", "learn", "--level", "C", *args]
    return Terminal([*command, "--catalogue", "../problems"], **options)


def open_store():
    return open_workbook("../problems").store


def children(process):
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True)
    return [int(pid) for pid in done.stdout.split()]


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_newcomer_gets_from_the_first_problem_to_the_next(here):
    with learn() as screen:
        output = screen.until(KEYS)
        assert "Sums: problem 1 of 3, plus-one" in output
        assert "│ device 0 │ device 1 │" in output
        mine = here / "shardlab-practice" / "plus-one.py"
        assert f"Your solution file: {mine}" in output
        assert mine.read_text() == starter("plus-one")

        mine.write_text(wrong("plus-one"))
        output = screen.until(KEYS)
        assert "\n-- run ------" in output
        assert "WA" in output
        assert "level C" in output
        screen.press("h")
        screen.until("\n\nHint 1 of 2\n\nIt is more than n.")
        screen.press("o")
        screen.until("Not solved yet. Press o again to see the solution")

        draft = here / "draft"
        draft.write_text(solution("plus-one"))
        draft.replace(mine)  # as editors do
        output = screen.until("Solved. n opens twice.")
        assert "The examples pass (2 cases). Now all cases:" in output
        assert "AC" in output
        screen.press("n")
        screen.until("Products: problem 2 of 3, twice")
        screen.until(KEYS)
        assert (here / "shardlab-practice" / "twice.py").read_text() == starter("twice")
        assert not screen.is_restored
        zygotes = children(screen.process)
        screen.press("q")
        screen.until("`shardlab learn` continues from here.")
        assert screen.exit_code() == 0
        assert screen.is_restored
        assert zygotes
        assert not any(map(is_running, zygotes))
    store = open_store()
    submissions = store.list_submissions()
    assert [(entry.problem, entry.kind, entry.code) for entry in submissions] == [
        ("plus-one", "run", "WA"),
        ("plus-one", "run", "AC"),
        ("plus-one", "submit", "AC"),
    ]
    assert store.progress_of("plus-one").hints == 1


def test_a_run_continues_where_the_last_one_ended_and_ctrl_c_restores_the_terminal(here):
    book = open_workbook("../problems")
    path, _ = book.start_problem(book.find_problem("twice"), here / "mine")
    path.write_text("def twice(n):\n    while True: pass\n")
    with learn() as screen:
        # Work from last time is judged at once; this one never ends, and is cancelled.
        screen.until("problem 2 of 3, twice")
        screen.until("run: judging ...")
        path.write_text(wrong("twice"))
        assert "WA" in screen.until(KEYS)
        screen.press("x")
        screen.until("Press x again to restore the starter")
        screen.press("x")
        screen.until("twice.py is the starter again. Your file was saved as twice.py.1.bak.")
        assert path.read_text() == starter("twice")
        screen.press("\x1b[Az")
        screen.until("Unknown key 'z'")
        screen.press("l")
        assert "[~] twice" in screen.until("Go to (number or name, Enter):")
        screen.press("nope\n")
        screen.until("[catalogue.unknown_problem] Unknown problem 'nope'.")
        screen.press("lic\n")
        screen.until("2 problems have 'ic' in their name.")
        screen.until("type one of: twice, thrice.")
        screen.press("llus\n")
        screen.until("problem 1 of 3, plus-one")
        (here / "mine" / "plus-one.py").touch()
        screen.until("Saved without a change. r judges it again.")
        # A page that is longer than the screen begins at its beginning.
        screen.resize(100, rows=16)
        screen.press("t")
        assert "Write plus_one(n)" not in screen.until("more lines")
        screen.press("   ")
        screen.until("Write plus_one(n)")
        screen.resize(60, rows=12)
        screen.press("l")
        listing = screen.until("more lines. Go to (number or name, Enter):")
        assert "plus-one" in listing
        assert "Next:" not in listing
        screen.press(" ")
        screen.until("Next:")
        screen.press("\n")
        screen.resize(100)
        assert (here / "mine" / "plus-one.py").exists()
        screen.process.send_signal(signal.SIGTSTP)  # without a parent shell it continues at once
        screen.press("t")
        screen.until("problem 1 of 3, plus-one")
        (here / "mine" / "plus-one.py").unlink()
        screen.until("[practice.no_file] Your solution file was deleted.")
        screen.press("r")
        screen.until("or press x twice for the starter.")
        screen.press("xx")
        screen.until("plus-one.py is the starter again.")
        screen.press("\x03")
        screen.until("Your progress is saved. `shardlab learn` continues from here.")
        assert screen.exit_code() == 0
        assert screen.is_restored
    assert (here / "mine" / "twice.py.1.bak").read_text() == wrong("twice")
    assert [entry.is_finished for entry in open_store().list_submissions()] == [False, True]


def test_a_plain_narrow_terminal_and_an_editor_in_it_are_enough(here, tmp_path):
    editor = tmp_path / "ed it"
    editor.write_text(
        '#!/bin/sh\nstty -a | grep -o "[-]*icanon"\necho "$1" && echo "# x" >> "$1"\n'
    )
    editor.chmod(0o755)
    env = {**os.environ, "TERM": "dumb", "EDITOR": f"'{editor}'", "LC_ALL": "C"}
    with learn(columns=44, env=env) as screen:
        output = screen.until(KEYS)
        assert "e opens it here in ed it" in output
        lines = [
            line for line in output.splitlines() if not line.startswith(("    ", "Your solution"))
        ]
        assert max(map(len, lines)) <= 44
        screen.resize(120)
        screen.press("?")
        assert (
            "Save your solution file to have it judged: on the examples first, and if they pass,"
            in screen.until("continues from here")
        )
        screen.press("lnope\n")
        screen.until("[catalogue.unknown_problem]")
        screen.press("e")
        screen.until("\nicanon\n")  # the terminal settings that editors expect
        assert "\r" not in screen.until(KEYS)
        assert "\x1b" not in screen.raw  # no colors and no cursor movement
        screen.process.send_signal(signal.SIGTERM)
        assert screen.exit_code() == 128 + signal.SIGTERM
        assert screen.is_restored
    assert len(open_store().list_submissions()) == 1


def test_without_a_terminal_it_says_so_and_once_judges(here):
    def learn_once(*args):
        arguments = ["learn", *args, "--catalogue", "../problems"]
        return CliRunner().invoke(main, arguments, prog_name="shardlab")

    done = learn_once()
    assert done.exit_code == 2
    assert "[practice.no_terminal] Standard input is not a terminal" in done.output
    assert "shardlab learn --once" in done.output
    done = learn_once("--once", "--level", "C")
    assert (done.exit_code, "[practice.no_file]" in done.output) == (2, True)
    book = open_workbook("../problems")
    path, _ = book.start_problem(book.find_problem("plus-one"))
    path.write_text(solution("plus-one"))
    done = learn_once("--once", "--level", "C")
    assert (done.exit_code, done.stdout[:2]) == (0, "AC")
    assert done.stderr == "plus-one, started last: shardlab-practice/plus-one.py\n"
    assert open_store().progress_of("plus-one").is_solved
    listing = ["practice", "list", "--json", "-", "--catalogue", "../problems"]
    rows = json.loads(CliRunner().invoke(main, listing).output)
    assert [row["mark"] for row in rows] == ["solved", "open", "locked"]
