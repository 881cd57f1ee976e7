"""Whether Node.js and the packages of web/ are installed, for the tests that need them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

WEB = Path(__file__).parent.parent.parent / "web"


def require_node_package(name: str) -> None:
    """Skip the test without a package of web/; with CI set fail, because CI installs them."""
    if (WEB / "node_modules" / name).is_dir() and shutil.which("node") and shutil.which("npm"):
        return
    reason = f"{name} is not installed (npm ci in web/): this was not tested"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
