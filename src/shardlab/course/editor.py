"""The user's editor, from $VISUAL or $EDITOR."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Editors with a window of their own, started in the background. Any other may need the terminal,
# and gets it only when the user presses the key for it.
_WINDOWED_EDITORS = {
    "atom",
    "charm",
    "code",
    "code-insiders",
    "codium",
    "cursor",
    "geany",
    "gedit",
    "gnome-text-editor",
    "gvim",
    "idea",
    "kate",
    "kwrite",
    "mate",
    "mousepad",
    "mvim",
    "neovide",
    "nvim-qt",
    "pluma",
    "pycharm",
    "subl",
    "sublime_text",
    "vscodium",
    "windsurf",
    "xdg-open",
    "xed",
    "zed",
    "zeditor",
}


@dataclass(frozen=True)
class Editor:
    """A command that opens a file.

    >>> Editor.from_environment({"EDITOR": "code --wait"}).has_window
    True
    >>> Editor.from_environment({"EDITOR": "vim"}).has_window
    False
    """

    command: tuple[str, ...]

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Editor | None:
        """Return the editor of $VISUAL or $EDITOR; None if neither is set."""
        variables = os.environ if environ is None else environ
        for variable in ("VISUAL", "EDITOR"):
            try:
                command = shlex.split(variables.get(variable, ""))
            except ValueError:  # an unclosed quote
                continue
            if command:
                return cls(tuple(command))
        return None

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    @property
    def has_window(self) -> bool:
        return self.name.removesuffix(".exe") in _WINDOWED_EDITORS

    def open_in_background(self, path: Path) -> bool:
        """Start it in its own window, detached from this terminal; return whether it started."""
        try:
            process = subprocess.Popen(
                [*self.command, str(path)],
                # Its messages must not appear between the lines of the screen.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in this terminal must not end it
            )
        except OSError:
            return False
        threading.Thread(target=process.wait, daemon=True).start()  # reaps the process when it ends
        return True

    def open_in_terminal(self, path: Path) -> bool:
        """Run it in this terminal until it ends; return whether it could be started."""
        try:
            subprocess.run([*self.command, str(path)], check=False)
        except OSError:
            return False
        return True
