"""The person's editor: found, told from one that needs the terminal, and started."""

from __future__ import annotations

import os
import time

import pytest

from shardlab.course.editor import Editor


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        ({"EDITOR": "vim"}, ("vim",)),
        ({"EDITOR": "vim", "VISUAL": "code --wait"}, ("code", "--wait")),
        ({"EDITOR": "'/my apps/subl' -n"}, ("/my apps/subl", "-n")),
        ({"VISUAL": "", "EDITOR": "nano"}, ("nano",)),
        ({"VISUAL": "'open", "EDITOR": "nano"}, ("nano",)),
    ],
)
def test_the_editor_is_the_one_named(environ, command):
    assert Editor.of(environ).command == command


@pytest.mark.parametrize("environ", [{}, {"EDITOR": ""}, {"EDITOR": "  "}])
def test_there_may_be_none(environ):
    assert Editor.of(environ) is None


@pytest.mark.parametrize(
    ("command", "has_window"),
    [("/usr/bin/code", True), ("zed --wait", True), ("vim", False), ("emacs -nw", False)],
)
def test_only_an_editor_that_is_known_to_have_a_window_is_started_beside(command, has_window):
    assert Editor.of({"EDITOR": command}).has_window is has_window


def test_an_editor_beside_runs_apart_from_this_terminal(tmp_path):
    """In a session of its own, so that Ctrl-C here does not reach it."""
    script = tmp_path / "code"
    script.write_text('#!/bin/sh\necho "$(ps -o sid= -p $$)" > "$1.part"\nmv "$1.part" "$1"\n')
    script.chmod(0o755)
    wrote = tmp_path / "my file.py"
    assert Editor((str(script),)).open_beside(wrote)
    until = time.monotonic() + 20
    while not wrote.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert int(wrote.read_text() or 0) != os.getsid(0)


def test_an_editor_that_cannot_be_started_says_so(tmp_path):
    missing = Editor((str(tmp_path / "no-editor"),))
    assert not missing.open_beside(tmp_path / "a.py")
    assert not missing.open_here(tmp_path / "a.py")
