"""The pages with which people begin: they need neither FastAPI nor a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardlab.server.pages.home import show_home
from shardlab.server.pages.lab import show_lab

# Open to everyone in `access`, so nothing has to be checked before that table is loaded.
FIRST_PAGES: Mapping[str, Callable[..., Any]] = {"/": show_home, "/lab": show_lab}
