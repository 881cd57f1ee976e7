"""The built browser code: it is what the sources in web/ build, so a fresh machine needs no npm."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

from web.node_packages import require_node_package

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


def test_building_again_writes_the_same_files(tmp_path):
    # The proof. The digests above only say that nobody changed a file and forgot to build: the
    # manifest is committed with the files, and whoever edits all of them by hand can make it agree.
    require_node_package("esbuild")
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


def test_the_licence_of_every_bundled_package_ships_with_the_code():
    notices = (BUILD / "third-party-licenses.txt").read_text("utf-8")
    lock = json.loads((WEB / "package-lock.json").read_text("utf-8"))["packages"]
    installed = {
        path.removeprefix("node_modules/"): f"{package['version']} ({package['license']})"
        for path, package in lock.items()
        if path and not package.get("dev")
    }
    missing = {name for name, text in installed.items() if f"{name} {text}" not in notices}
    # Installed with another package, and no code of theirs is in a built file.
    assert missing == {"@codemirror/search", "@codemirror/streamparser"}
    assert "Permission is hereby granted, free of charge" in notices
    assert "SIL OPEN FONT LICENSE" in notices.upper()
    offline = (BUILD / "recording_page-licenses.txt").read_text("utf-8")
    assert "preact" in offline
    assert "Permission is hereby granted, free of charge" in offline
