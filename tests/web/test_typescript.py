"""The TypeScript of web/: its types and its unit tests, where the packages are installed."""

from __future__ import annotations

import subprocess

import pytest

from web.node_packages import WEB, require_node_package


@pytest.mark.parametrize("script", ["types", "test"])
def test_an_npm_script_passes(script):
    require_node_package("typescript")
    command = ["npm", "run", "--silent", script]
    result = subprocess.run(command, cwd=WEB, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
