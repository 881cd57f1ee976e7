"""The person's own editor, from $VISUAL or $EDITOR."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Editors with a window of their own: started beside the terminal, and left alone. Any other may
# want the terminal, and gets it only when the person asks.
_WINDOWS = {
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

    >>> Editor.of({"EDITOR": "code --wait"}).has_window, Editor.of({"EDITOR": "vim"}).has_window
    (True, False)
    """

    command: tuple[str, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> Editor | None:
        """Return the editor that a person has named; None where there is none."""
        given = os.environ if environ is None else environ
        for variable in ("VISUAL", "EDITOR"):
            try:
                words = shlex.split(given.get(variable, ""))
            except ValueError:  # an open quote: nothing that could be started
                continue
            if words:
                return cls(tuple(words))
        return None

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    @property
    def has_window(self) -> bool:
        return self.name.removesuffix(".exe") in _WINDOWS

    def open_beside(self, path: Path) -> bool:
        """Start it in a window of its own, apart from this terminal; say whether it started."""
        try:
            process = subprocess.Popen(
                [*self.command, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C here must not end it
            )
        except OSError:
            return False
        threading.Thread(target=process.wait, daemon=True).start()  # so that no dead one is left
        return True

    def open_here(self, path: Path) -> bool:
        """Run it in this terminal until it ends; say whether it could be started."""
        try:
            subprocess.run([*self.command, str(path)], check=False)
        except OSError:
            return False
        return True
