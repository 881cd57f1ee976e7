"""The line of the user's program that an operation of a lowered module comes from."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FRAME = re.compile(r'"([^"]+)":(\d+):\d+')
_QUOTED = re.compile(r'"([^"]+)"')
_OWN_FOLDER = str(Path(__file__).parents[1])


def shape_name(source: str, shape: Sequence[int]) -> str:
    """Return the name of a constraint point: its line and the shape of the value.

    >>> shape_name("train.py:41", (8, 4))
    'train.py:41 [8,4]'
    """
    return f"{source} [{','.join(map(str, shape))}]"


def caller_line() -> str:
    """Return `file:line` of the innermost Python frame that is the user's; empty if none is."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if _is_user_code(path):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return ""


def _is_user_code(path: str) -> bool:
    return not (path.startswith(("<", _OWN_FOLDER)) or "site-packages" in path)


@dataclass
class SourceLines:
    """Finds lines by MLIR location, each only once.

    JAX writes a location as the name stack of an operation around its Python frames, innermost
    frame first, without those of JAX itself.
    """

    _found: dict[Any, tuple[str, str]] = field(default_factory=dict)

    def find(self, location: Any) -> tuple[str, str]:
        """Return `file:line` and JAX's name stack; empty texts if there are none."""
        if location.attr not in self._found:
            self._found[location.attr] = _read_location(str(location))
        return self._found[location.attr]


def _read_location(text: str) -> tuple[str, str]:
    frames = [(path, line) for path, line in _FRAME.findall(text) if not path.startswith("<")]
    own = [frame for frame in frames if _is_user_code(frame[0])]
    path, line = (own or frames or [("", "")])[0]
    name = _QUOTED.search(text)
    has_stack = name is not None and not text.startswith(f'loc("{name[1]}":')
    return f"{path}:{line}" if path else "", name[1] if name and has_stack else ""
