"""Classes: members, join links, who solved what, submissions with comments."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
import zlib
from collections.abc import Callable

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    and_,
    case,
    cast,
    delete,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.orm import Session

from shardlab.course.store import decode_judgement
from shardlab.server.catalogue_keys import UPLOADED_PREFIX, column_name
from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import (
    CURRENT_VERDICT,
    ClassCatalogueRow,
    ClassMemberRow,
    ClassRow,
    CommentRow,
    JudgementRow,
    PersonRow,
    SourceRow,
    SubmissionRow,
)
from shardlab.server.people.class_records import (
    Attempt,
    ClassSubmission,
    ClassSummary,
    Comment,
    MatrixCell,
    Member,
    RecentComment,
)
from shardlab.server.people.refusals import NotThere, Refusal
from shardlab.server.person import Person

MAX_TITLE = 80
MAX_CLASSES = 100  # of one teacher
MAX_MEMBERS = 500
MAX_COMMENT = 4000
_UPLOADED_PREFIX = literal(UPLOADED_PREFIX)


class Classes:
    """Reads and changes classes. Who may do what is decided by the access table, not here."""

    def __init__(
        self, database: Database, secret: bytes, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._secret = secret
        self._clock = clock

    # ---------------------------------------------------------------------------------- classes

    def create(self, teacher: Person, title: str) -> int:
        """Create a class and return its id. Raises `Refusal`."""
        title = clean_title(title)
        with self._database.write() as session:
            query = select(func.count()).select_from(ClassRow).where(ClassRow.person == teacher.id)
            if session.execute(query).scalar_one() >= MAX_CLASSES:
                raise Refusal(f"A teacher has at most {MAX_CLASSES} classes.", field="title")
            row = ClassRow(
                person=teacher.id, title=title, created=self._clock(), join_nonce=_new_nonce()
            )
            session.add(row)
            session.flush()
            return row.id

    def rename(self, class_id: int, title: str) -> None:
        """Change the title. Raises `Refusal`."""
        title = clean_title(title)
        with self._database.write() as session:
            _get_class(session, class_id).title = title

    def delete(self, class_id: int) -> None:
        """Delete a class. Its members keep their accounts and submissions."""
        with self._database.write() as session:
            session.delete(_get_class(session, class_id))

    def list_classes(self, person: Person) -> tuple[ClassSummary, ...]:
        """Return the classes that the person teaches or has joined; an admin sees every class."""
        joined = select(ClassMemberRow.course_class).where(ClassMemberRow.person == person.id)
        query = self._summaries()
        if not person.is_admin:
            is_own = [ClassRow.person == person.id] if person.is_teacher else []
            query = query.where(or_(ClassRow.id.in_(joined), *is_own))
        with self._database.read() as session:
            rows = session.execute(query.order_by(ClassRow.title, ClassRow.id)).all()
        return tuple(_summary_of(row, teacher, count, person) for row, teacher, count in rows)

    def get(self, class_id: int, person: Person) -> ClassSummary:
        """Return one class. Raises `NotThere`."""
        with self._database.read() as session:
            found = session.execute(self._summaries().where(ClassRow.id == class_id)).first()
        if found is None:
            raise NotThere
        return _summary_of(found[0], found[1], found[2], person)

    @staticmethod
    def _summaries() -> Select[ClassRow, str, int]:
        n_members = (
            select(func.count()).where(ClassMemberRow.course_class == ClassRow.id).scalar_subquery()
        )
        return select(ClassRow, PersonRow.name, n_members).join(
            PersonRow, PersonRow.id == ClassRow.person
        )

    def teacher_of(self, class_id: int) -> int | None:
        """Return the id of the teacher; None if there is no such class."""
        with self._database.read() as session:
            return session.scalar(select(ClassRow.person).where(ClassRow.id == class_id))

    def is_member(self, class_id: int, person_id: int) -> bool:
        """Return whether the person has joined the class."""
        with self._database.read() as session:
            return session.get(ClassMemberRow, (class_id, person_id)) is not None

    # -------------------------------------------------------------------------------- join link

    def join_token(self, class_id: int) -> str | None:
        """Return the token of the join link; None if nobody can join.

        It is computed from the server's secret, and not stored: who reads the database, or a
        backup of it, cannot join a class.
        """
        with self._database.read() as session:
            nonce = _get_class(session, class_id).join_nonce
        return self._token(class_id, nonce) if nonce else None

    def _token(self, class_id: int, nonce: str) -> str:
        message = f"join {class_id} {nonce}".encode()
        digest = hmac.new(self._secret, message, hashlib.sha256).hexdigest()
        return f"{class_id}-{digest[:40]}"

    def renew_join_link(self, class_id: int) -> None:
        """Open the class with a new link; the old one ends."""
        self._set_nonce(class_id, _new_nonce())

    def close_join_link(self, class_id: int) -> None:
        """End the link: nobody else can join."""
        self._set_nonce(class_id, "")

    def _set_nonce(self, class_id: int, nonce: str) -> None:
        with self._database.write() as session:
            _get_class(session, class_id).join_nonce = nonce

    def find_by_token(self, token: str) -> int:
        """Return the class of a join link. Raises `NotThere`."""
        number, _, digest = token.partition("-")
        if not (number.isascii() and number.isdigit() and len(number) < 10 and digest.isascii()):
            raise NotThere
        with self._database.read() as session:
            row = session.get(ClassRow, int(number))
            nonce = row.join_nonce if row is not None else ""
        # Compared also without a class, in the same time.
        is_right = hmac.compare_digest(self._token(int(number), nonce), token)
        if not (nonce and is_right):
            raise NotThere
        return int(number)

    def join(self, token: str, person: Person) -> int:
        """Make the person a member and return the class. Raises `NotThere` or `Refusal`."""
        class_id = self.find_by_token(token)
        with self._database.write() as session:
            row = _get_class(session, class_id)
            if row.person == person.id:
                raise Refusal("You are the teacher of this class.")
            query = (
                select(func.count())
                .select_from(ClassMemberRow)
                .where(ClassMemberRow.course_class == class_id)
            )
            if session.execute(query).scalar_one() >= MAX_MEMBERS:
                raise Refusal(f"A class has at most {MAX_MEMBERS} members.")
            session.execute(
                self._database.insert(ClassMemberRow)
                .values(course_class=class_id, person=person.id, joined=self._clock())
                .on_conflict_do_nothing()
            )
        return class_id

    def remove_member(self, class_id: int, person_id: int) -> None:
        """Remove a member. Raises `NotThere`."""
        query = delete(ClassMemberRow).where(
            ClassMemberRow.course_class == class_id, ClassMemberRow.person == person_id
        )
        with self._database.write() as session:
            if session.execute(query.returning(ClassMemberRow.person)).first() is None:
                raise NotThere

    # ----------------------------------------------------------------------------------- matrix

    def list_members(self, class_id: int, *catalogues: str) -> tuple[Member, ...]:
        """Return the members by name, with what they have submitted in some catalogues."""
        members = (
            select(PersonRow.id, PersonRow.name, ClassMemberRow.joined)
            .join(ClassMemberRow, ClassMemberRow.person == PersonRow.id)
            .where(ClassMemberRow.course_class == class_id)
            .order_by(PersonRow.name_key)
        )
        # A number of a pass, or NULL; max() ignores NULL.
        passed = func.max(case((JudgementRow.passed, SubmissionRow.number)))
        attempts = (
            select(
                SubmissionRow.person,
                SubmissionRow.catalogue,
                SubmissionRow.problem,
                func.count(),
                func.max(SubmissionRow.number),
                passed,
            )
            .join(ClassMemberRow, ClassMemberRow.person == SubmissionRow.person)
            .outerjoin(JudgementRow, CURRENT_VERDICT)
            .where(
                ClassMemberRow.course_class == class_id,
                SubmissionRow.catalogue.in_(catalogues),
                SubmissionRow.kind == "submit",
            )
            .group_by(SubmissionRow.person, SubmissionRow.catalogue, SubmissionRow.problem)
        )
        cells: dict[int, dict[str, MatrixCell]] = {}
        with self._database.read() as session:
            for person, key, problem, count, newest, newest_pass in session.execute(attempts):
                cells.setdefault(person, {})[column_name(key, problem)] = MatrixCell(
                    status="solved" if newest_pass else "tried",
                    n_submissions=count,
                    submission=newest_pass or newest,
                )
            return tuple(
                Member(id=person, name=name, joined=joined, cells=cells.get(person, {}))
                for person, name, joined in session.execute(members)
            )

    # ------------------------------------------------------------------------------ submissions

    def submission_owner(self, class_id: int, number: int) -> int | None:
        """Return whose submission it is, if they are a member of the class and submitted it.

        A submission to a teacher's catalogue belongs to the classes that it is assigned to: the
        teacher of another class, of the same learner, does not see it.
        """
        query = (
            select(SubmissionRow.person)
            .join(ClassMemberRow, ClassMemberRow.person == SubmissionRow.person)
            .where(
                SubmissionRow.number == number,
                SubmissionRow.kind == "submit",
                ClassMemberRow.course_class == class_id,
                _belongs_to_class(class_id),
            )
        )
        with self._database.read() as session:
            return session.scalar(query)

    def load_submission(self, class_id: int, number: int, person: Person) -> ClassSubmission:
        """Return a member's submission with its comments. Raises `NotThere`."""
        if self.submission_owner(class_id, number) is None:
            raise NotThere
        query = (
            select(SubmissionRow, PersonRow.name, SourceRow.body, JudgementRow)
            .join(PersonRow, PersonRow.id == SubmissionRow.person)
            .join(SourceRow, SourceRow.digest == SubmissionRow.source)
            .outerjoin(JudgementRow, CURRENT_VERDICT)
            .where(SubmissionRow.number == number)
        )
        comments = (
            select(CommentRow, PersonRow.name)
            .join(PersonRow, PersonRow.id == CommentRow.person)
            .where(CommentRow.submission == number)
            .order_by(CommentRow.id)
        )
        with self._database.read() as session:
            row, name, body, judgement = session.execute(query).one()
            return ClassSubmission(
                number=number,
                person=row.person,
                name=name,
                problem=row.problem,
                column=column_name(row.catalogue, row.problem),
                kind=row.kind,
                when=row.handed_in,
                source=zlib.decompress(body).decode("utf-8", "replace"),
                judgement=decode_judgement(None if judgement is None else judgement.body),
                comments=tuple(
                    Comment(
                        id=comment.id,
                        author=author,
                        text=comment.text,
                        created=comment.created,
                        is_mine=comment.person == person.id,
                    )
                    for comment, author in session.execute(comments)
                ),
            )

    def list_attempts(self, number: int) -> tuple[Attempt, ...]:
        """Return all submissions of the same person to the same problem, oldest first."""
        this = select(SubmissionRow).where(SubmissionRow.number == number).subquery()
        n_comments = (
            select(func.count())
            .where(CommentRow.submission == SubmissionRow.number)
            .scalar_subquery()
        )
        query = (
            select(SubmissionRow.number, SubmissionRow.handed_in, JudgementRow.passed, n_comments)
            .join(
                this,
                and_(
                    SubmissionRow.person == this.c.person,
                    SubmissionRow.catalogue == this.c.catalogue,
                    SubmissionRow.problem == this.c.problem,
                ),
            )
            .outerjoin(JudgementRow, CURRENT_VERDICT)
            .where(SubmissionRow.kind == "submit")
            .order_by(SubmissionRow.number)
        )
        with self._database.read() as session:
            return tuple(
                Attempt(
                    number=attempt,
                    when=when,
                    passed=None if passed is None else bool(passed),
                    n_comments=count,
                )
                for attempt, when, passed, count in session.execute(query)
            )

    def list_recent_comments(
        self, class_id: int, person_id: int, limit: int = 10
    ) -> tuple[RecentComment, ...]:
        """Return the newest comments on a member's submissions, newest first."""
        query = (
            select(CommentRow, SubmissionRow.catalogue, SubmissionRow.problem, PersonRow.name)
            .join(SubmissionRow, SubmissionRow.number == CommentRow.submission)
            .join(ClassMemberRow, ClassMemberRow.person == SubmissionRow.person)
            .join(PersonRow, PersonRow.id == CommentRow.person)
            .where(
                ClassMemberRow.course_class == class_id,
                SubmissionRow.person == person_id,
                _belongs_to_class(class_id),
            )
            .order_by(CommentRow.id.desc())
            .limit(limit)
        )
        with self._database.read() as session:
            return tuple(
                RecentComment(
                    submission=comment.submission,
                    column=column_name(key, problem),
                    problem=problem,
                    author=author,
                    text=comment.text,
                    created=comment.created,
                )
                for comment, key, problem, author in session.execute(query)
            )

    def add_comment(self, number: int, author: Person, text: str) -> int:
        """Store a comment and return its id. Raises `Refusal`."""
        text = text.replace("\r\n", "\n").strip()
        if not text:
            raise Refusal("The comment is empty.", field="text")
        if len(text) > MAX_COMMENT:
            raise Refusal(f"A comment has at most {MAX_COMMENT:,} characters.", field="text")
        row = CommentRow(person=author.id, submission=number, text=text, created=self._clock())
        with self._database.write() as session:
            session.add(row)
            session.flush()
            return row.id

    def delete_comment(self, number: int, comment_id: int, author: Person) -> None:
        """Delete one of the person's own comments. Raises `NotThere`."""
        query = delete(CommentRow).where(
            CommentRow.id == comment_id,
            CommentRow.submission == number,
            CommentRow.person == author.id,
        )
        with self._database.write() as session:
            if session.execute(query.returning(CommentRow.id)).first() is None:
                raise NotThere


def clean_title(text: str) -> str:
    """Return a title with single spaces. Raises `Refusal`."""
    title = " ".join(text.split())
    if not 1 <= len(title) <= MAX_TITLE or not title.isprintable():
        raise Refusal(f"A title has 1 to {MAX_TITLE} printable characters.", field="title")
    return title


def _new_nonce() -> str:
    return secrets.token_urlsafe(16)


def _belongs_to_class(class_id: int) -> ColumnElement[bool]:
    """Return the condition that a submission is to the server's problems or to the class's own."""
    assigned = select(_UPLOADED_PREFIX + cast(ClassCatalogueRow.catalogue, String)).where(
        ClassCatalogueRow.course_class == class_id
    )
    return or_(
        SubmissionRow.catalogue.not_like(f"{UPLOADED_PREFIX}%"),
        SubmissionRow.catalogue.in_(assigned),
    )


def _get_class(session: Session, class_id: int) -> ClassRow:
    row = session.get(ClassRow, class_id)
    if row is None:
        raise NotThere
    return row


def _summary_of(row: ClassRow, teacher: str, n_members: int, person: Person) -> ClassSummary:
    return ClassSummary(
        id=row.id,
        title=row.title,
        teacher=teacher,
        n_members=n_members,
        is_mine=row.person == person.id,
        is_open=bool(row.join_nonce),
    )
