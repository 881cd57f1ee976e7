"""Audits of many problems, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from shardlab.catalogue.audit import SEED, Audit, audit
from shardlab.catalogue.fault import Fault
from shardlab.catalogue.problem import load_problem
from shardlab.catalogue.tracks import OWN, Catalogue
from shardlab.errors import LabError

if TYPE_CHECKING:
    from shardlab.sandbox.guest import Guest, House, Limits, Role


def audits(
    catalogue: Catalogue,
    slugs: Sequence[str],
    *,
    fast: bool = False,
    seed: int = SEED,
    n_workers: int = 1,
) -> Iterator[Audit]:
    """Yield the audit of each problem as it is done; of all where no slug is given.

    A folder that `tracks.toml` does not list is audited too: one that is still being written.
    """
    from shardlab.sandbox.open_house import open_house

    unlisted = unlisted_folders(catalogue)
    places = {
        slug: catalogue.folder / catalogue.track(slug).folder / slug for slug in catalogue.slugs
    }
    places |= unlisted
    wanted = slugs or tuple(places)
    for slug in wanted:
        if slug not in places:
            catalogue.track(slug)  # raises, with the nearest name
    # Solutions lie in these folders, and an answer must not read them.
    with open_house(hidden=[str(catalogue.folder), str(OWN)]) as opened:
        house = _Closing(opened)

        def one(slug: str) -> Audit:
            done = audit_folder(house, places[slug], fast=fast, seed=seed)
            return _with_unlisted(done) if slug in unlisted else done

        with ThreadPoolExecutor(n_workers) as pool:
            futures = [pool.submit(one, slug) for slug in wanted]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                house.is_closing = True
                pool.shutdown(wait=False, cancel_futures=True)


class _Closing:
    """A house that gives no guests once it is closing: Ctrl-C must not wait for a whole audit."""

    def __init__(self, house: House) -> None:
        self._house, self.level, self.is_closing = house, house.level, False

    def guest(self, role: Role, limits: Limits) -> Guest:
        from shardlab.sandbox.guest import Ended, Ending

        if self.is_closing:
            raise Ended(Ending("judge", "the audit was stopped"))
        return self._house.guest(role, limits)

    def close(self) -> None:
        self._house.close()


def unlisted_folders(catalogue: Catalogue) -> dict[str, Path]:
    """Return the problem folders that `tracks.toml` does not list, by slug.

    A slug that is listed in another track has the track before it.
    """
    listed = {f"{track.folder}/{slug}" for track in catalogue.tracks for slug in track.slugs}
    found = {
        f"{path.parent.parent.name}/{path.parent.name}": path.parent
        for path in sorted(catalogue.folder.glob("*/*/problem.toml"))
    }
    return {
        name if path.name in catalogue.slugs else path.name: path
        for name, path in found.items()
        if name not in listed
    }


def audit_folder(house: House, folder: Path, *, fast: bool = False, seed: int = SEED) -> Audit:
    """Return the audit of one folder; a problem that cannot be loaded is a fault as well."""
    try:
        return audit(house, load_problem(folder), fast=fast, seed=seed)
    except LabError as error:
        fault = Fault("problem", error.what, error.where, 0, (f"try: {error.fix}",))
        return Audit(folder.name, (fault,))


def _with_unlisted(done: Audit) -> Audit:
    what = "tracks.toml does not list the problem."
    return Audit(
        done.slug,
        (*done.faults, Fault("tracks.unlisted", what)),
        done.n_cases,
        done.n_wrong,
    )
