"""Where an answer was when its time was up, or when it crashed: the interpreter's own last words.

They go to the process's output, so that they are there although the process is not.
"""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def telling_where(asked: Mapping[str, Any]) -> Iterator[None]:
    """Print the line that is being executed once `patience` seconds are over, and on a crash."""
    patience = asked.get("patience")
    try:
        faulthandler.enable(file=2)
        if patience:
            faulthandler.dump_traceback_later(patience, file=2)
    except (OSError, RuntimeError, ValueError):  # no thread may be started any more, or no output
        yield
        return
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
