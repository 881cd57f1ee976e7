"""`trace` and `check`: the engine looks, the checks decide.

The only file that knows both: code that runs a program never says whether it is right, and code
that says so never runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardlab.checks.program import check_program
from shardlab.records.trace import Trace


def trace(f: Callable[..., Any], *args: Any, mesh: Any = None) -> Trace:
    """Return what `f(*args)` communicates on a mesh, without running it."""
    from shardlab.engine.observe import observe

    seen = observe(f, args, mesh)
    return Trace(
        seen.program,
        seen.mesh,
        seen.calls,
        check_program(seen),
        seen.flops,
        seen.memory,
        seen.notes,
    )
