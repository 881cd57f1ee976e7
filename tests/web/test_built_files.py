"""The built browser code: it is what the sources in web/ build, so a fresh machine needs no npm."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WEB = ROOT / "web"
BUILD = ROOT / "src" / "shardlab" / "server" / "static" / "build"
NOT_SOURCES = (".test.ts", ".test.tsx")
REBUILD = "run `npm ci && npm run build` in web/, and commit the result"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_manifest() -> dict[str, dict[str, str]]:
    return json.loads((BUILD / "manifest.json").read_text("utf-8"))


def test_every_source_is_the_one_that_was_built():
    sources = [WEB / name for name in ("build.mjs", "package.json", "package-lock.json")]
    sources += [WEB / "tsconfig.json", *(path for path in (WEB / "src").rglob("*"))]
    # The offline page of a recording has the style of the pages inline.
    sources += [BUILD.parent / name for name in ("visual.css", "site.css", "debugger.css")]
    digests = {
        os.path.relpath(path, WEB): digest(path)
        for path in sources
        if path.is_file() and not path.name.endswith(NOT_SOURCES)
    }
    assert read_manifest()["sources"] == digests, REBUILD


def test_every_built_file_is_the_one_that_was_written():
    files = {path.name: digest(path) for path in BUILD.iterdir() if path.name != "manifest.json"}
    assert read_manifest()["files"] == files, REBUILD


@pytest.mark.skipif(
    not (WEB / "node_modules" / "esbuild").is_dir() or shutil.which("node") is None,
    reason="the packages of web/ are not installed: the digests above are compared instead",
)
def test_building_again_writes_the_same_files(tmp_path):
    command = ["node", "build.mjs", "--out", str(tmp_path / "build")]
    subprocess.run(command, cwd=WEB, check=True, timeout=300, env=os.environ)
    names = sorted(path.name for path in BUILD.iterdir())
    assert sorted(path.name for path in (tmp_path / "build").iterdir()) == names
    for name in names:
        assert (tmp_path / "build" / name).read_bytes() == (BUILD / name).read_bytes(), REBUILD


def test_no_built_file_names_another_host():
    # htmx and CodeMirror mention addresses of namespaces and of their documentation only.
    for path in BUILD.glob("*.js"):
        text = path.read_text("utf-8")
        assert 'import("http' not in text
        assert "//cdn." not in text
