"""What every lab process would do first, done once in its fork server."""

from __future__ import annotations

from importlib import import_module

from shardlab.judge.worker.warmup import warm_up as warm_up_submissions

# Imported by the kinds of work when they are used; here once, so that a fork finds them loaded.
_LAZY_MODULES = (
    "shardlab.analysis.trace_and_check",
    "shardlab.recording.edits",
    "shardlab.recording.program_recording",
)


def warm_up() -> None:
    """Import what programs use, and take a typical one through tracing."""
    for name in _LAZY_MODULES:
        import_module(name)
    warm_up_submissions()
