"""Finds shardings of a jit program: candidates judged by Shardy's passes and timed on hardware.

The package is called like its function, so the package itself can be called: whichever of its
modules is imported first, `shardlab.autoshard(step, *args, devices=64)` works.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardlab.autoshard.answer import Autosharding


class _CallablePackage(ModuleType):
    """Importing a module of a package binds the package in `shardlab`, in place of a function."""

    def __call__(self, f: Any, *args: Any, **options: Any) -> Autosharding:
        """Return shardings of `args`; see `shardlab.autoshard.find_shardings.autoshard`."""
        from shardlab.autoshard.find_shardings import autoshard

        return autoshard(f, *args, **options)


autoshard = sys.modules[__name__]  # what `shardlab.autoshard` is on first use
autoshard.__class__ = _CallablePackage
