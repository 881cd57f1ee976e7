"""What every runner would do first, done once in its fork server: no package of submissions."""

from __future__ import annotations

from shardlab.judge.worker.warmup import warm_up_program


def warm_up() -> None:
    """Take a typical program through every step but running it."""
    warm_up_program()
