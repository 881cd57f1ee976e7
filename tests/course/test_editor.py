"""The user's editor: found, classified by whether it needs the terminal, and started."""

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
    assert Editor.from_environment(environ).command == command


@pytest.mark.parametrize("environ", [{}, {"EDITOR": ""}, {"EDITOR": "  "}])
def test_there_may_be_none(environ):
    assert Editor.from_environment(environ) is None


@pytest.mark.parametrize(
    ("command", "has_window"),
    [("/usr/bin/code", True), ("zed --wait", True), ("vim", False), ("emacs -nw", False)],
)
def test_only_an_editor_that_is_known_to_have_a_window_is_started_in_the_background(
    command, has_window
):
    assert Editor.from_environment({"EDITOR": command}).has_window is has_window


def test_an_editor_in_the_background_is_detached_from_this_terminal(tmp_path):
    """In a session of its own, so that Ctrl-C here does not reach it."""
    script = tmp_path / "code"
    script.write_text('#!/bin/sh\necho "$(ps -o sid= -p $$)" > "$1.part"\nmv "$1.part" "$1"\n')
    script.chmod(0o755)
    output = tmp_path / "my file.py"
    assert Editor((str(script),)).open_in_background(output)
    deadline = time.monotonic() + 600  # normally milliseconds
    while not output.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert int(output.read_text() or 0) != os.getsid(0)


def test_an_editor_that_cannot_be_started_is_reported(tmp_path):
    missing = Editor((str(tmp_path / "no-editor"),))
    assert not missing.open_in_background(tmp_path / "a.py")
    assert not missing.open_in_terminal(tmp_path / "a.py")
