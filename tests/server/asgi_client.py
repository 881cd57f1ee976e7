"""Starlette's client for tests, without its notice that another HTTP library is preferred."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of a class of its own, not a DeprecationWarning
    from starlette.testclient import TestClient

__all__ = ["TestClient"]
