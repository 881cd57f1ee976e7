"""Small catalogues as zip files, right and hostile."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

from shardlab.course.new_problem import new_problem


def small_catalogue(*slugs, track="lecture-5"):
    """Return the files of a catalogue as `shardlab catalogue new` makes it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for slug in slugs or ("take-the-largest",):
            new_problem(slug, track, root)
        return {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }


def zip_bytes(files, top=""):
    """Return files as a zip file; a name can come as a ZipInfo with attributes of its own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name if isinstance(name, zipfile.ZipInfo) else top + name, content)
    return buffer.getvalue()


def small_zip(*slugs, **changes):
    """Return a small catalogue as a zip file; `changes` replace the contents of its files."""
    return zip_bytes({**small_catalogue(*slugs), **changes})
