"""The version of the judge: what a verdict depends on besides the submission and its problem."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

# Raise it with every change after which a submission can get another verdict.
JUDGE_REVISION = 1


@cache
def judge_version() -> str:
    """Return the version: the revision of shardlab's judge, and the JAX release that it runs.

    A verdict is stored once for each version. Loads no JAX.
    """
    return f"{JUDGE_REVISION}+jax{jax_version()}"


@cache
def jax_version() -> str:
    """Return the release of the installed JAX; empty if there is none. Loads no JAX."""
    try:
        return version("jax")
    except PackageNotFoundError:  # pragma: no cover - shardlab depends on it
        return ""
