"""The zip file of a teacher's catalogue: read with limits, and written in one form only.

Nothing is extracted to a path of the archive's choosing: names are compared with those that a
catalogue has, contents are read into memory up to a limit, and the files that pass are written by
us. A link, a device, an absolute name or `..` is not a name of a catalogue.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardlab.catalogue.problem import PROBLEM_FILES
from shardlab.server.people.refusals import Refusal

MAX_ARCHIVE_BYTES = 3 << 20
MAX_FILES = 1000
MAX_FILE_BYTES = 200_000
MAX_TOML_BYTES = 20_000
MAX_MARKDOWN_BYTES = 40_000  # the web process renders it; the longest page of shardlab has 7 kB
MAX_TOTAL_BYTES = 8 << 20
MAX_PROBLEMS = 20
MAX_WRONG_SUBMISSIONS = 20  # of one problem
_MAX_RATIO = 100  # expanded size by compressed size; text is below 20
_RATIO_FREE_BYTES = 10_000  # small files of equal lines compress better than that

_SLUG = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_FILES = "|".join(re.escape(name) for name in ("problem.toml", "audit.toml", *PROBLEM_FILES))
_NAME = re.compile(
    rf"tracks\.toml|(?P<track>{_SLUG})/(?P<slug>{_SLUG})/(?:{_FILES}|wrong/[A-Za-z0-9_]{{1,60}}\.py)"
)
_MAX_PART = 60  # characters of a folder's name
# What systems add to an archive on their own; it is left out.
_IGNORED = re.compile(r"(?:^|/)(?:__MACOSX|__pycache__|\.git)/|(?:^|/)\.DS_Store$")
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can hold


@dataclass(frozen=True, kw_only=True)
class CatalogueArchive:
    """The files of a catalogue by name, and a digest that tells two contents apart."""

    files: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        state = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            # With the lengths: no two lists of files have the same bytes.
            state.update(f"{len(name)} {name} {len(content)} ".encode())
            state.update(content)
        return state.hexdigest()

    @property
    def n_problems(self) -> int:
        return sum(name.endswith("/problem.toml") for name in self.files)

    def to_zip(self) -> bytes:
        """Return a zip file; equal files give equal bytes."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(self.files.items()):
                info = zipfile.ZipInfo(name, _TIMESTAMP)
                info.external_attr = (stat.S_IFREG | 0o644) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, content)
        return buffer.getvalue()

    def write_folder(self, folder: Path) -> None:
        """Write the files below a folder, all of them or none."""
        folder.parent.mkdir(0o700, parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        try:
            for name, content in self.files.items():
                path = temporary / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            with contextlib.suppress(OSError):  # another process was faster with the same content
                os.rename(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def read_archive(data: bytes) -> CatalogueArchive:
    """Return the catalogue in a zip file. Raises `Refusal` with a sentence for the teacher."""
    if len(data) > MAX_ARCHIVE_BYTES:
        raise _refusal(f"The file has more than {MAX_ARCHIVE_BYTES >> 20} MB.")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = _read_files(archive)
    # NotImplementedError: a compression that zipfile does not know; RuntimeError: encrypted.
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise _refusal("The file is not a zip file, or it is damaged.") from error
    except (ValueError, OSError, UnicodeError, MemoryError) as error:
        raise _refusal("The zip file cannot be read.") from error
    return CatalogueArchive(files=_check_files(_strip_top_folder(files)))


def _read_files(archive: zipfile.ZipFile) -> dict[str, bytes]:
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise _refusal(f"The zip file has {len(entries):,} entries; the maximum is {MAX_FILES:,}.")
    files: dict[str, bytes] = {}
    n_bytes = 0
    for entry in entries:
        name = _checked_name(entry)
        if name is None:
            continue
        if name in files:
            raise _refusal(f"{name} is in the zip file twice.")
        content = _read_entry(archive, entry, name)
        n_bytes += len(content)
        if n_bytes > MAX_TOTAL_BYTES:
            raise _refusal(f"The files have more than {MAX_TOTAL_BYTES >> 20} MB.")
        files[name] = content
    return files


def _checked_name(entry: zipfile.ZipInfo) -> str | None:
    """Return the name of a file; None for a folder and for what systems add. Raises `Refusal`."""
    # zipfile replaces backslashes and cuts at NUL; the original name is what is judged.
    name = entry.orig_filename
    parts = name.removesuffix("/").split("/")
    is_plain = name.isascii() and name.isprintable() and "\\" not in name and ":" not in name
    if not is_plain or any(part in ("", ".", "..") for part in parts):
        raise _refusal(f"{name!r:.80} is not a file name of a catalogue.")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refusal(f"{name:.80} is a link or a special file.")
    if name.endswith("/") or kind == stat.S_IFDIR or _IGNORED.search(name):
        return None
    if entry.flag_bits & 0x1:
        raise _refusal(f"{name:.80} is encrypted.")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _refusal(f"{name:.80} is compressed in a way that is not supported.")
    return name


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> bytes:
    small = {".toml": MAX_TOML_BYTES, ".md": MAX_MARKDOWN_BYTES}
    limit = small.get(Path(name).suffix, MAX_FILE_BYTES)
    # The sizes in the header are the archive's own word, so the content is counted too.
    ratio = entry.file_size / max(entry.compress_size, 1)
    if entry.file_size > _RATIO_FREE_BYTES and ratio > _MAX_RATIO:
        raise _refusal(f"{name:.80} expands to {ratio:.0f} times its size.")
    with archive.open(entry) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise _refusal(f"{name:.80} has more than {limit // 1000} kB.")
    return content


def _strip_top_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files without a folder around all of them: many people zip the folder itself."""
    if "tracks.toml" in files or not files:
        return files
    top = next(iter(files)).partition("/")[0] + "/"
    if f"{top}tracks.toml" in files and all(name.startswith(top) for name in files):
        return {name.removeprefix(top): content for name, content in files.items()}
    return files


def _check_files(files: dict[str, bytes]) -> dict[str, bytes]:
    if "tracks.toml" not in files:
        raise _refusal("The zip file has no tracks.toml.")
    n_wrong: dict[str, int] = {}
    for name in files:
        match = _NAME.fullmatch(name)
        if match is None or any(len(part) > _MAX_PART for part in name.split("/")):
            raise _refusal(f"{name:.80} is not a file of a catalogue.")
        if "/wrong/" in name:
            folder = name.partition("/wrong/")[0]
            n_wrong[folder] = n_wrong.get(folder, 0) + 1
    slugs = [name.split("/")[1] for name in files if name.endswith("/problem.toml")]
    if not 1 <= len(slugs) <= MAX_PROBLEMS:
        raise _refusal(f"It has {len(slugs)} problems; 1 to {MAX_PROBLEMS} are allowed.")
    if max(n_wrong.values(), default=0) > MAX_WRONG_SUBMISSIONS:
        raise _refusal(f"A problem has more than {MAX_WRONG_SUBMISSIONS} wrong submissions.")
    return files


def _refusal(message: str) -> Refusal:
    return Refusal(message, field="file")
