"""The list of problems: tracks, progress, search and filters, and where to continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from shardlab.course.progress import ProblemProgress, Status
from shardlab.course.store import Progress
from shardlab.course.workbook import Workbook
from shardlab.server.page_rendering import render_page
from shardlab.server.practice.workbooks import workbook_of

router = APIRouter(include_in_schema=False)

DIFFICULTIES = ("easy", "medium", "hard")
STATUS_LABELS: dict[Status, str] = {
    "open": "open",
    "tried": "tried",
    "solved": "solved",
    "locked": "builds on others",
}


@dataclass(frozen=True, kw_only=True)
class ListFilter:
    """What the person is looking for; empty fields match everything."""

    q: str = ""
    difficulty: str = ""
    status: str = ""
    tag: str = ""

    @property
    def is_empty(self) -> bool:
        return self == ListFilter()

    def url(self, **changes: str) -> str:
        """Return the address of the list with some fields changed."""
        fields = {name: value for name, value in vars(replace(self, **changes)).items() if value}
        return f"/practice?{urlencode(fields)}" if fields else "/practice"

    def matches(self, row: ProblemProgress) -> bool:
        problem = row.problem
        if self.difficulty and problem.difficulty != self.difficulty:
            return False
        if self.status and row.status != self.status:
            return False
        if self.tag and self.tag not in problem.tags:
            return False
        functions = [part.function for part in problem.parts]
        texts = [problem.title, problem.slug, row.track.title, *problem.tags, *functions]
        text = " ".join(texts).lower()
        return all(word in text for word in self.q.lower().split())


@dataclass(frozen=True, kw_only=True)
class ProblemRow:
    """One problem of the list."""

    number: int
    slug: str
    title: str
    difficulty: str
    tags: tuple[str, ...]
    status: Status
    status_label: str
    prerequisites: tuple[tuple[str, str], ...]  # slug and title of those not solved yet
    is_next: bool
    is_changed: bool
    n_attempts: int


@dataclass(frozen=True, kw_only=True)
class TrackView:
    """One track with the problems that match."""

    anchor: str
    title: str
    rows: tuple[ProblemRow, ...]
    n_solved: int
    n_problems: int


@dataclass(frozen=True, kw_only=True)
class PracticeListPage:
    """The context of practice/list.html."""

    filter: ListFilter
    tracks: tuple[TrackView, ...]
    n_solved: int
    n_problems: int
    n_matches: int
    solved_by_difficulty: tuple[tuple[str, int, int], ...]  # name, solved, all
    tags: tuple[tuple[str, int], ...]  # with the number of problems
    current: ProblemRow | None  # where the person was, or where to begin
    is_current: bool  # it was started, and is not solved yet
    difficulties: tuple[str, ...] = DIFFICULTIES
    statuses: tuple[tuple[Status, str], ...] = tuple(STATUS_LABELS.items())
    title: str = "Practice"


@router.get("/practice")
def show_problem_list(
    request: Request,
    q: Annotated[str, Query(max_length=200)] = "",
    difficulty: Annotated[str, Query(max_length=20)] = "",
    status: Annotated[str, Query(max_length=20)] = "",
    tag: Annotated[str, Query(max_length=60)] = "",
) -> HTMLResponse:
    """Show all problems, or those that match."""
    wanted = ListFilter(q=q.strip(), difficulty=difficulty, status=status, tag=tag)
    page = make_list_page(workbook_of(request), wanted)
    # htmx replaces the results only, so that the field being typed into stays as it is.
    is_fragment = request.headers.get("hx-target", "").endswith("#problems")
    template = "practice/_tracks.html" if is_fragment else "practice/list.html"
    return render_page(request, template, page)


def make_list_page(workbook: Workbook, wanted: ListFilter) -> PracticeListPage:
    """Return the list with the progress of one person."""
    progress = workbook.store.load_progress()
    current = workbook.current_slug()
    if progress.get(current, Progress(current)).is_solved:
        # The last problem is done: continue with the next one.
        current = workbook.next_slug(after=current) or current
    # The box and the list name the same problem as the next one.
    all_rows = tuple(
        replace(row, is_next=row.problem.slug == current and row.status != "solved")
        for row in workbook.list_progress()
    )
    titles = {row.problem.slug: row.problem.title for row in all_rows}
    views = {
        row.problem.slug: _view_row(row, progress.get(row.problem.slug), titles) for row in all_rows
    }
    matches = [row for row in all_rows if wanted.matches(row)]
    tracks = tuple(
        TrackView(
            anchor=track.folder,
            title=track.title,
            rows=tuple(
                views[row.problem.slug] for row in matches if row.track.folder == track.folder
            ),
            n_solved=sum(
                row.status == "solved" for row in all_rows if row.track.folder == track.folder
            ),
            n_problems=len(track.slugs),
        )
        for track in workbook.catalogue.tracks
    )
    return PracticeListPage(
        filter=wanted,
        tracks=tuple(track for track in tracks if track.rows),
        n_solved=sum(row.status == "solved" for row in all_rows),
        n_problems=len(all_rows),
        n_matches=len(matches),
        solved_by_difficulty=_count_difficulties(all_rows),
        tags=_count_tags(all_rows),
        current=views.get(current),
        is_current=current == workbook.store.latest_problem(),
    )


def _view_row(
    row: ProblemProgress, progress: Progress | None, titles: dict[str, str]
) -> ProblemRow:
    problem = row.problem
    return ProblemRow(
        number=row.number,
        slug=problem.slug,
        title=problem.title,
        difficulty=problem.difficulty,
        tags=problem.tags,
        status=row.status,
        status_label=STATUS_LABELS[row.status],
        prerequisites=tuple((slug, titles[slug]) for slug in row.missing),
        is_next=row.is_next,
        is_changed=row.is_changed,
        n_attempts=progress.n_submits if progress else 0,
    )


def _count_difficulties(rows: Sequence[ProblemProgress]) -> tuple[tuple[str, int, int], ...]:
    total = Counter(row.problem.difficulty for row in rows)
    solved = Counter(row.problem.difficulty for row in rows if row.status == "solved")
    return tuple((name, solved[name], total[name]) for name in DIFFICULTIES if total[name])


def _count_tags(rows: Sequence[ProblemProgress]) -> tuple[tuple[str, int], ...]:
    counts = Counter(tag for row in rows for tag in row.problem.tags)
    # A tag of one problem filters nothing that its title does not.
    return tuple(sorted((tag, n) for tag, n in counts.items() if n > 1))
