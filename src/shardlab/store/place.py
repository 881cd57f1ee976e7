"""Where a person's data lies, by the custom of each system."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "SHARDLAB_DATA"


def data_folder(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Return the folder for the record of practice; `SHARDLAB_DATA` names another.

    >>> data_folder({"SHARDLAB_DATA": "/tmp/mine"}).as_posix()
    '/tmp/mine'
    >>> data_folder({"XDG_DATA_HOME": "/home/ada/data"}, "linux").as_posix()
    '/home/ada/data/shardlab'

    A relative `XDG_DATA_HOME` is ignored, as the XDG specification asks.
    """
    given = os.environ if environ is None else environ
    if given.get(VARIABLE):
        return Path(given[VARIABLE]).expanduser().absolute()
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "shardlab"
    if platform == "win32" and given.get("LOCALAPPDATA"):
        return Path(given["LOCALAPPDATA"]) / "shardlab"
    data = given.get("XDG_DATA_HOME", "")
    return (Path(data) if Path(data).is_absolute() else Path.home() / ".local/share") / "shardlab"
