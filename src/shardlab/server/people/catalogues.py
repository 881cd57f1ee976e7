"""Catalogues of teachers: uploads with versions, their audits, and the classes that see them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session, defer

from shardlab.catalogue.tracks import Catalogue
from shardlab.server.catalogue_archive import CatalogueArchive
from shardlab.server.catalogue_keys import catalogue_key
from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import (
    CatalogueRow,
    CatalogueVersionRow,
    ClassCatalogueRow,
    ClassMemberRow,
    ClassRow,
    PersonRow,
    SubmissionRow,
)
from shardlab.server.operations.quotas import PersonQuotas
from shardlab.server.people.classes import clean_title
from shardlab.server.people.refusals import NotThere, Refusal
from shardlab.server.person import Person
from shardlab.server.uploaded_catalogue import UploadedCatalogues, check_archive

MAX_VERSIONS = 30  # of one catalogue; those that submissions need are never removed
MAX_CLASS_CATALOGUES = 5

VersionState = Literal["waiting", "passed", "failed"]


@dataclass(frozen=True, kw_only=True)
class AuditFault:
    """One fault that the audit found, as the teacher reads it."""

    problem: str
    rule: str
    message: str
    file: str = ""
    line: int = 0
    details: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "details": list(self.details)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AuditFault:
        return cls(**{**data, "details": tuple(data["details"])})


@dataclass(frozen=True, kw_only=True)
class CatalogueVersion:
    """One upload. `number` counts the versions of its catalogue from 1."""

    id: int
    catalogue: int
    number: int
    digest: str
    created: float
    n_problems: int
    state: VersionState
    faults: tuple[AuditFault, ...]


@dataclass(frozen=True, kw_only=True)
class CatalogueSummary:
    """A catalogue in a list."""

    id: int
    title: str
    teacher: str
    is_mine: bool
    created: float
    versions: tuple[CatalogueVersion, ...]  # newest first

    @property
    def current(self) -> CatalogueVersion | None:
        """Return the newest version that passed its audit: what classes see."""
        return next((version for version in self.versions if version.state == "passed"), None)


@dataclass(frozen=True, kw_only=True)
class ReadableCatalogue:
    """A catalogue that a person can practice with."""

    id: int
    title: str
    teacher: str
    classes: tuple[str, ...]  # in which it is assigned; empty for its own teacher


@dataclass(frozen=True)
class OpenCatalogue:
    """A version of a catalogue, loaded."""

    id: int
    title: str
    version: int
    catalogue: Catalogue

    @property
    def key(self) -> str:
        return catalogue_key(self.id)


class Catalogues:
    """Reads and changes catalogues. Who may do what is decided by the access table, not here."""

    def __init__(
        self,
        database: Database,
        data_folder: Path,
        clock: Callable[[], float] = time.time,
        *,
        max_catalogues: int = PersonQuotas.catalogues,
    ) -> None:
        self._database = database
        self._data_folder = data_folder
        self._uploads = UploadedCatalogues(data_folder)
        self._clock = clock
        self.max_catalogues = max_catalogues

    # --------------------------------------------------------------------------------- uploads

    def create(self, teacher: Person, title: str, archive: CatalogueArchive) -> CatalogueVersion:
        """Store a new catalogue with its first version. Raises `Refusal`."""
        title = clean_title(title)
        check_archive(archive, self._data_folder)
        with self._database.write() as session:
            query = (
                select(func.count())
                .select_from(CatalogueRow)
                .where(CatalogueRow.person == teacher.id)
            )
            if session.execute(query).scalar_one() >= self.max_catalogues:
                message = f"A teacher has at most {self.max_catalogues} catalogues."
                raise Refusal(message, field="title")
            row = CatalogueRow(person=teacher.id, title=title, created=self._clock())
            session.add(row)
            session.flush()
            version = self._add_version(session, row.id, archive)
        return self.get_version(version)

    def add_version(self, catalogue_id: int, archive: CatalogueArchive) -> CatalogueVersion:
        """Store a new version. Raises `NotThere` or `Refusal`."""
        check_archive(archive, self._data_folder)
        with self._database.write() as session:
            _get_catalogue(session, catalogue_id)
            same = select(CatalogueVersionRow.id).where(
                CatalogueVersionRow.catalogue == catalogue_id,
                CatalogueVersionRow.digest == archive.digest,
            )
            if session.scalar(same) is not None:
                raise Refusal("These files are a version of this catalogue already.", field="file")
            version = self._add_version(session, catalogue_id, archive)
            _delete_old_versions(session, catalogue_id)
        self.delete_unused_folders()
        return self.get_version(version)

    def _add_version(self, session: Session, catalogue_id: int, archive: CatalogueArchive) -> int:
        row = CatalogueVersionRow(
            catalogue=catalogue_id,
            digest=archive.digest,
            created=self._clock(),
            n_problems=archive.n_problems,
            state="waiting",
            report="[]",
            archive=archive.to_zip(),
        )
        session.add(row)
        session.flush()
        return row.id

    def rename(self, catalogue_id: int, title: str) -> None:
        """Change the title. Raises `NotThere` or `Refusal`."""
        title = clean_title(title)
        with self._database.write() as session:
            _get_catalogue(session, catalogue_id).title = title

    def delete(self, catalogue_id: int) -> None:
        """Delete a catalogue with its versions. Submissions to it stay with their people."""
        with self._database.write() as session:
            session.delete(_get_catalogue(session, catalogue_id))
        self.delete_unused_folders()

    def delete_unused_folders(self) -> None:
        """Delete what is on disk of versions that are no longer in the database."""
        with self._database.read() as session:
            digests = set(session.scalars(select(CatalogueVersionRow.digest)))
        self._uploads.delete_folders(digests)

    def load_zip(self, catalogue_id: int, version_id: int) -> bytes:
        """Return the zip file of a version. Raises `NotThere`."""
        query = select(CatalogueVersionRow.archive).where(
            CatalogueVersionRow.id == version_id, CatalogueVersionRow.catalogue == catalogue_id
        )
        with self._database.read() as session:
            archive = session.scalar(query)
        if archive is None:
            raise NotThere
        return archive

    # ----------------------------------------------------------------------------------- audit

    def finish_audit(self, version_id: int, faults: Sequence[AuditFault]) -> None:
        """Store what an audit has found; without a fault the version has passed."""
        with self._database.write() as session:
            row = session.get(CatalogueVersionRow, version_id)
            if row is None:
                return  # deleted meanwhile
            row.state = "failed" if faults else "passed"
            row.report = json.dumps([fault.to_json() for fault in faults])

    def reset_audit(self, catalogue_id: int, version_id: int) -> CatalogueVersion:
        """Let a version that failed be audited again. Raises `NotThere`."""
        with self._database.write() as session:
            row = session.get(CatalogueVersionRow, version_id)
            if row is None or row.catalogue != catalogue_id:
                raise NotThere
            if row.state == "failed":
                row.state, row.report = "waiting", "[]"
        return self.get_version(version_id)

    # ----------------------------------------------------------------------------------- lists

    def owner_of(self, catalogue_id: int) -> int | None:
        """Return the id of its teacher; None if there is no such catalogue."""
        with self._database.read() as session:
            return session.scalar(
                select(CatalogueRow.person).where(CatalogueRow.id == catalogue_id)
            )

    def list_own(self, person: Person) -> tuple[CatalogueSummary, ...]:
        """Return the catalogues of a teacher; an admin sees every one."""
        query = select(CatalogueRow.id).order_by(CatalogueRow.title, CatalogueRow.id)
        if not person.is_admin:
            query = query.where(CatalogueRow.person == person.id)
        with self._database.read() as session:
            ids = list(session.scalars(query))
        return tuple(self.get(catalogue_id, person) for catalogue_id in ids)

    def get(self, catalogue_id: int, person: Person) -> CatalogueSummary:
        """Return one catalogue with its versions. Raises `NotThere`."""
        query = (
            select(CatalogueRow, PersonRow.name)
            .join(PersonRow, PersonRow.id == CatalogueRow.person)
            .where(CatalogueRow.id == catalogue_id)
        )
        with self._database.read() as session:
            found = session.execute(query).first()
            if found is None:
                raise NotThere
            row, teacher = found
            return CatalogueSummary(
                id=row.id,
                title=row.title,
                teacher=teacher,
                is_mine=row.person == person.id,
                created=row.created,
                versions=_list_versions(session, catalogue_id),
            )

    def get_version(self, version_id: int) -> CatalogueVersion:
        """Return one version. Raises `NotThere`."""
        with self._database.read() as session:
            row = session.get(CatalogueVersionRow, version_id)
            if row is None:
                raise NotThere
            versions = _list_versions(session, row.catalogue)
        return next(version for version in versions if version.id == version_id)

    # ------------------------------------------------------------------------------- practising

    def is_reader(self, catalogue_id: int, person: Person) -> bool:
        """Return whether a person can practice with a catalogue: its teacher, members, admins."""
        return any(row.id == catalogue_id for row in self.list_readable(person))

    def list_readable(self, person: Person) -> tuple[ReadableCatalogue, ...]:
        """Return the catalogues that passed an audit, and that the person can practice with."""
        has_passed = (
            select(CatalogueVersionRow.id)
            .where(
                CatalogueVersionRow.catalogue == CatalogueRow.id,
                CatalogueVersionRow.state == "passed",
            )
            .exists()
        )
        assigned = (
            select(ClassCatalogueRow.catalogue, ClassRow.title)
            .join(ClassRow, ClassRow.id == ClassCatalogueRow.course_class)
            .outerjoin(ClassMemberRow, ClassMemberRow.course_class == ClassRow.id)
            .where(or_(ClassMemberRow.person == person.id, ClassRow.person == person.id))
            .distinct()
        )
        query = (
            select(CatalogueRow, PersonRow.name)
            .join(PersonRow, PersonRow.id == CatalogueRow.person)
            .where(has_passed)
            .order_by(CatalogueRow.title, CatalogueRow.id)
        )
        with self._database.read() as session:
            classes: dict[int, list[str]] = {}
            for catalogue, title in session.execute(assigned):
                classes.setdefault(catalogue, []).append(title)
            if not person.is_admin:
                query = query.where(
                    or_(CatalogueRow.person == person.id, CatalogueRow.id.in_(list(classes)))
                )
            return tuple(
                ReadableCatalogue(
                    id=row.id,
                    title=row.title,
                    teacher=teacher,
                    classes=tuple(sorted(classes.get(row.id, []))),
                )
                for row, teacher in session.execute(query)
            )

    def open_current(self, catalogue_id: int) -> OpenCatalogue:
        """Return the newest version that passed its audit. Raises `NotThere`."""
        query = (
            select(CatalogueVersionRow.id)
            .where(
                CatalogueVersionRow.catalogue == catalogue_id,
                CatalogueVersionRow.state == "passed",
            )
            .order_by(CatalogueVersionRow.id.desc())
            .limit(1)
        )
        with self._database.read() as session:
            version = session.scalar(query)
        if version is None:
            raise NotThere
        return self.open_version(version)

    def open_for_submission(self, catalogue_id: int, version_id: int | None) -> OpenCatalogue:
        """Return the version that a submission was made with; the current one if it is gone."""
        with self._database.read() as session:
            row = session.get(CatalogueVersionRow, version_id or 0)
            is_there = row is not None and row.catalogue == catalogue_id
        if version_id is None or not is_there:
            return self.open_current(catalogue_id)
        return self.open_version(version_id)

    def open_version(self, version_id: int) -> OpenCatalogue:
        """Return a version, loaded. Raises `NotThere`."""
        query = (
            select(CatalogueVersionRow.digest, CatalogueRow.id, CatalogueRow.title)
            .join(CatalogueRow, CatalogueRow.id == CatalogueVersionRow.catalogue)
            .where(CatalogueVersionRow.id == version_id)
        )
        with self._database.read() as session:
            found = session.execute(query).first()
        if found is None:
            raise NotThere
        digest, catalogue_id, title = found
        catalogue = self._uploads.load(digest, lambda: self.load_zip(catalogue_id, version_id))
        return OpenCatalogue(catalogue_id, title, version_id, catalogue)

    # --------------------------------------------------------------------------------- classes

    def list_assigned(self, class_id: int) -> tuple[OpenCatalogue, ...]:
        """Return the catalogues of a class, loaded; by title."""
        query = (
            select(CatalogueRow.id)
            .join(ClassCatalogueRow, ClassCatalogueRow.catalogue == CatalogueRow.id)
            .where(ClassCatalogueRow.course_class == class_id)
            .order_by(CatalogueRow.title, CatalogueRow.id)
        )
        with self._database.read() as session:
            ids = list(session.scalars(query))
        return tuple(self.open_current(catalogue_id) for catalogue_id in ids)

    def assign(self, class_id: int, catalogue_id: int) -> None:
        """Let the members of a class see a catalogue. Raises `NotThere` or `Refusal`.

        It must be the class's teacher's own: a teacher cannot show what another one uploaded.
        """
        with self._database.write() as session:
            teacher = session.scalar(select(ClassRow.person).where(ClassRow.id == class_id))
            row = session.get(CatalogueRow, catalogue_id)
            if row is None or teacher is None or row.person != teacher:
                raise NotThere
            has_passed = select(CatalogueVersionRow.id).where(
                CatalogueVersionRow.catalogue == catalogue_id,
                CatalogueVersionRow.state == "passed",
            )
            if session.scalar(has_passed.limit(1)) is None:
                message = "No version of this catalogue has passed its audit."
                raise Refusal(message, field="catalogue")
            count = (
                select(func.count())
                .select_from(ClassCatalogueRow)
                .where(ClassCatalogueRow.course_class == class_id)
            )
            if session.execute(count).scalar_one() >= MAX_CLASS_CATALOGUES:
                message = f"A class has at most {MAX_CLASS_CATALOGUES} catalogues."
                raise Refusal(message, field="catalogue")
            session.execute(
                self._database.insert(ClassCatalogueRow)
                .values(course_class=class_id, catalogue=catalogue_id)
                .on_conflict_do_nothing()
            )

    def unassign(self, class_id: int, catalogue_id: int) -> None:
        """Hide a catalogue from a class; submissions stay. Raises `NotThere`."""
        query = delete(ClassCatalogueRow).where(
            ClassCatalogueRow.course_class == class_id,
            ClassCatalogueRow.catalogue == catalogue_id,
        )
        with self._database.write() as session:
            if session.execute(query.returning(ClassCatalogueRow.catalogue)).first() is None:
                raise NotThere

    def list_assignable(self, class_id: int) -> tuple[tuple[int, str], ...]:
        """Return id and title of the teacher's catalogues that passed and are not assigned yet."""
        assigned = select(ClassCatalogueRow.catalogue).where(
            ClassCatalogueRow.course_class == class_id
        )
        query = (
            select(CatalogueRow.id, CatalogueRow.title)
            .join(ClassRow, ClassRow.person == CatalogueRow.person)
            .join(CatalogueVersionRow, CatalogueVersionRow.catalogue == CatalogueRow.id)
            .where(
                ClassRow.id == class_id,
                CatalogueVersionRow.state == "passed",
                CatalogueRow.id.not_in(assigned),
            )
            .distinct()
            .order_by(CatalogueRow.title, CatalogueRow.id)
        )
        with self._database.read() as session:
            return tuple((row[0], row[1]) for row in session.execute(query))


def _get_catalogue(session: Session, catalogue_id: int) -> CatalogueRow:
    row = session.get(CatalogueRow, catalogue_id)
    if row is None:
        raise NotThere
    return row


def _list_versions(session: Session, catalogue_id: int) -> tuple[CatalogueVersion, ...]:
    query = (
        select(CatalogueVersionRow)
        .where(CatalogueVersionRow.catalogue == catalogue_id)
        .order_by(CatalogueVersionRow.id)
        .options(defer(CatalogueVersionRow.archive))
    )
    versions = [
        CatalogueVersion(
            id=row.id,
            catalogue=catalogue_id,
            number=number,
            digest=row.digest,
            created=row.created,
            n_problems=row.n_problems,
            state=row.state,  # type: ignore[arg-type]  # written by this module only
            faults=tuple(AuditFault.from_json(fault) for fault in json.loads(row.report)),
        )
        for number, row in enumerate(session.scalars(query), 1)
    ]
    return tuple(reversed(versions))


def _delete_old_versions(session: Session, catalogue_id: int) -> None:
    """Delete the oldest versions above the limit that neither classes nor submissions need."""
    rows = list(
        session.execute(
            select(CatalogueVersionRow.id, CatalogueVersionRow.state)
            .where(CatalogueVersionRow.catalogue == catalogue_id)
            .order_by(CatalogueVersionRow.id)
        )
    )
    passed = [version for version, state in rows if state == "passed"]
    submitted = set(
        session.scalars(
            select(SubmissionRow.catalogue_version)
            .where(SubmissionRow.catalogue == catalogue_key(catalogue_id))
            .distinct()
        )
    )
    for version, _ in rows[: max(len(rows) - MAX_VERSIONS, 0)]:
        if version not in submitted and version not in passed[-1:]:
            session.execute(delete(CatalogueVersionRow).where(CatalogueVersionRow.id == version))
