"""The TypeScript of web/: its types and its unit tests, where the packages are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).parent.parent.parent / "web"

pytestmark = pytest.mark.skipif(
    not (WEB / "node_modules" / "typescript").is_dir() or shutil.which("npm") is None,
    reason="the packages of web/ are not installed (npm ci in web/)",
)


@pytest.mark.parametrize("script", ["types", "test"])
def test_an_npm_script_passes(script):
    command = ["npm", "run", "--silent", script]
    result = subprocess.run(command, cwd=WEB, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
