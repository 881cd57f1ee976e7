"""What a class consists of: members with what they have solved, submissions, comments."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardlab.judge.judgement import Judgement

CellStatus = Literal["solved", "tried", "none"]


@dataclass(frozen=True, kw_only=True)
class ClassSummary:
    """A class in a list."""

    id: int
    title: str
    teacher: str
    n_members: int
    is_mine: bool  # the person is its teacher
    is_open: bool  # people can join


@dataclass(frozen=True, kw_only=True)
class MatrixCell:
    """What one member has done with one problem."""

    status: CellStatus
    n_submissions: int = 0
    submission: int | None = None  # the newest one; the newest that passed if it is solved


EMPTY_CELL = MatrixCell(status="none")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member and what they have done, by problem."""

    id: int
    name: str
    joined: float
    cells: Mapping[str, MatrixCell]  # by the name of a problem's column

    @property
    def n_solved(self) -> int:
        return sum(cell.status == "solved" for cell in self.cells.values())

    def cell(self, problem: str) -> MatrixCell:
        """Return what the member has done with a problem."""
        return self.cells.get(problem, EMPTY_CELL)


@dataclass(frozen=True, kw_only=True)
class Comment:
    """A remark about a submission."""

    id: int
    author: str
    text: str
    created: float
    is_mine: bool


@dataclass(frozen=True, kw_only=True)
class ClassSubmission:
    """A member's submission as the teacher sees it."""

    number: int
    person: int
    name: str
    problem: str
    column: str  # the name of the problem's column in the matrix
    kind: str
    when: str
    source: str
    judgement: Judgement | None
    comments: tuple[Comment, ...]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One of the submissions of a member to a problem."""

    number: int
    when: str
    passed: bool | None  # None: not judged yet
    n_comments: int


@dataclass(frozen=True, kw_only=True)
class RecentComment:
    """A comment with the submission that it is about."""

    submission: int
    problem: str
    column: str  # of the problem in the matrix
    author: str
    text: str
    created: float


def matrix_csv(members: Sequence[Member], problems: Sequence[str]) -> str:
    """Return who solved what as CSV for a spreadsheet."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([safe_cell(text) for text in ("name", "solved", *problems)])
    for member in members:
        statuses = [member.cell(problem).status for problem in problems]
        texts = ["" if status == "none" else status for status in statuses]
        writer.writerow([safe_cell(member.name), member.n_solved, *texts])
    return file.getvalue()


def safe_cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula.

    >>> safe_cell("=HYPERLINK(1)"), safe_cell("Ada")
    ("'=HYPERLINK(1)", 'Ada')

    A name such as =HYPERLINK("http://...") would run when the teacher opens the file. An
    apostrophe in front is what spreadsheets themselves use for "this is text".
    """
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") or text[:1] in "\t\r" else text
