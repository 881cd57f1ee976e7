"""An uploaded catalogue as pages and workers use it: in a folder of its own, and never trusted."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path

from shardlab.catalogue.problem import Part, Problem
from shardlab.catalogue.tracks import Catalogue, load_catalogue
from shardlab.errors import LabError
from shardlab.server.catalogue_archive import CatalogueArchive, read_archive
from shardlab.server.people.refusals import Refusal
from shardlab.sharding.mesh import parse_mesh

FOLDER = "catalogues"  # in the data folder, which sandboxed processes cannot read
_MAX_LOADED = 50
_MAX_TRACKS, _MAX_PARTS, _MAX_CASES, _MAX_MESHES, _MAX_TAGS = 20, 8, 30, 16, 12
_MAX_TITLE, _MAX_TAG, _MAX_CALL = 120, 40, 200
_MAX_DEVICES, _MAX_SIMULATED_DEVICES = 8, 1024
# A teacher may ask for more than the default, within reason: workers are shared.
_MAX_LIMITS = {"wall_seconds": 180.0, "cpu_seconds": 60.0, "memory_bytes": float(2 << 30)}


class UploadedCatalogues:
    """Loads versions of catalogues; each is written to disk once, and parsed once per process."""

    def __init__(self, data_folder: Path) -> None:
        self._folder = data_folder / FOLDER
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, Catalogue] = OrderedDict()

    def load(self, digest: str, read_zip: Callable[[], bytes]) -> Catalogue:
        """Return the catalogue with this digest; `read_zip` returns its archive.

        Raises `LabError` or `Refusal` for one that cannot be loaded, which no audit lets pass.
        """
        with self._lock:
            if digest in self._loaded:
                self._loaded.move_to_end(digest)
                return self._loaded[digest]
        folder = self._folder / digest
        if not folder.is_dir():
            # Checked once more: the database may come from a backup of another version of shardlab.
            archive = read_archive(read_zip())
            archive.write_folder(folder)
        catalogue = load_untrusted(folder)
        with self._lock:
            self._loaded[digest] = catalogue
            while len(self._loaded) > _MAX_LOADED:
                self._loaded.popitem(last=False)
        return catalogue

    def delete_folders(self, used_digests: Collection[str]) -> None:
        """Delete the folders of versions that are no longer stored."""
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            if path.name not in used_digests:
                with self._lock:
                    self._loaded.pop(path.name, None)
                shutil.rmtree(path, ignore_errors=True)


def check_archive(archive: CatalogueArchive, folder: Path) -> None:
    """Raise `Refusal` unless the catalogue can be loaded within the limits of an upload."""
    target = folder / FOLDER / archive.digest
    archive.write_folder(target)
    try:
        load_untrusted(target)
    except LabError as error:
        shutil.rmtree(target, ignore_errors=True)
        where = relative_text(error.where or "", target)
        raise Refusal(f"{error.what} ({where})" if where else error.what, field="file") from None
    except Refusal:
        shutil.rmtree(target, ignore_errors=True)
        raise


def load_untrusted(folder: Path) -> Catalogue:
    """Return the catalogue in a folder with all its problems. Raises `LabError` or `Refusal`."""
    catalogue = load_catalogue(folder, is_trusted=False)
    if not 1 <= len(catalogue.tracks) <= _MAX_TRACKS or not catalogue.slugs:
        raise Refusal(f"It has {len(catalogue.tracks)} tracks; 1 to {_MAX_TRACKS} are allowed.")
    for track in catalogue.tracks:
        _check_text(track.title, _MAX_TITLE, f"The title of the track '{track.folder}'")
    for problem in catalogue.problems.values():
        _check_problem(problem)
    return catalogue


def relative_text(text: str, folder: Path) -> str:
    """Return a text without the path of a folder on this server."""
    return text.replace(f"{folder}/", "").replace(str(folder), "the catalogue")


def _check_problem(problem: Problem) -> None:
    """Raise `Refusal` for a problem whose figures alone would keep a worker busy."""
    name = f"'{problem.slug}'"
    _check_text(problem.title, _MAX_TITLE, f"The title of {name}")
    if len(problem.tags) > _MAX_TAGS or any(len(tag) > _MAX_TAG for tag in problem.tags):
        raise Refusal(f"{name} has more than {_MAX_TAGS} tags, or a longer one than {_MAX_TAG}.")
    if len(problem.parts) > _MAX_PARTS:
        raise Refusal(f"{name} has {len(problem.parts)} parts; the maximum is {_MAX_PARTS}.")
    for limit, maximum in _MAX_LIMITS.items():
        if problem.limits.get(limit, 0) > maximum:
            raise Refusal(f"{name} sets {limit} above {maximum:,.0f}.")
    for part in problem.parts:
        _check_part(part, f"Part {part.number} of {name}")


def _check_part(part: Part, name: str) -> None:
    if len(part.call) > _MAX_CALL or len(part.name) > _MAX_TITLE:
        raise Refusal(f"{name} has a call or a name that is too long.")
    if part.cases > _MAX_CASES:
        raise Refusal(f"{name} has {part.cases:,} cases; the maximum is {_MAX_CASES}.")
    simulated = [mesh for mesh in part.simulated_meshes if mesh != "usual"]
    if len(part.meshes) > _MAX_MESHES or len(simulated) > _MAX_MESHES:
        raise Refusal(f"{name} has more than {_MAX_MESHES} meshes.")
    for texts, maximum in ((part.meshes, _MAX_DEVICES), (simulated, _MAX_SIMULATED_DEVICES)):
        for text in texts:
            if parse_mesh(text.removesuffix(" permuted")).n_devices > maximum:
                raise Refusal(f"{name} has the mesh {text:.60}; the maximum is {maximum} devices.")


def _check_text(text: str, max_length: int, name: str) -> None:
    if len(text) > max_length or not text.isprintable():
        raise Refusal(f"{name} has more than {max_length} characters, or unprintable ones.")
