"""The list of problems: tracks, progress, search and filters, and where to continue."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from shardlab.catalogue.tracks import Catalogue
from shardlab.course.progress import ProblemProgress, Status, list_progress, next_problem
from shardlab.course.store import PracticeSnapshot, Progress
from shardlab.course.workbook import current_slug
from shardlab.server.html_cache import html_cache
from shardlab.server.page_rendering import practice_path, render_page, render_part, send_part
from shardlab.server.people.catalogues import ReadableCatalogue
from shardlab.server.practice.workbooks import person_of, workbook_of

if TYPE_CHECKING:  # local mode never loads the services of accounts, and argon2 with them
    from shardlab.server.people.services import People

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

    def query(self, **changes: str) -> str:
        """Return the end of the list's address with some fields changed: ?tag=psum."""
        fields = {name: value for name, value in vars(replace(self, **changes)).items() if value}
        return f"?{urlencode(fields)}" if fields else ""

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


@lru_cache(maxsize=1024)  # a list has each tag several times
def _list_url(wanted: ListFilter) -> str:
    fields = {name: value for name, value in vars(wanted).items() if value}
    return f"/practice?{urlencode(fields)}" if fields else "/practice"


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
    """The context of practice/_list.html and of practice/_tracks.html, which is a part of it."""

    filter: ListFilter
    tracks: tuple[TrackView, ...]
    n_solved: int
    n_problems: int
    n_matches: int
    solved_by_difficulty: tuple[tuple[str, int, int], ...]  # name, solved, all
    tags: tuple[tuple[str, int], ...]  # with the number of problems
    current: ProblemRow | None  # where the person was, or where to begin
    is_current: bool  # it was started, and is not solved yet
    is_signed_in: bool
    catalogue: ReadableCatalogue | None = None  # a teacher's; None: the server's own
    class_catalogues: tuple[ReadableCatalogue, ...] = ()  # those beside the server's own
    difficulties: tuple[str, ...] = DIFFICULTIES
    statuses: tuple[tuple[Status, str], ...] = tuple(STATUS_LABELS.items())

    @property
    def heading(self) -> str:
        return self.catalogue.title if self.catalogue else "Practice"


@dataclass(frozen=True, kw_only=True)
class PracticeListFrame:
    """The context of practice/list.html."""

    content: Markup
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
    workbook = workbook_of(request)
    snapshot = workbook.store.load_snapshot()
    is_signed_in = person_of(request) is not None
    catalogue, class_catalogues = _list_catalogues(request)
    path = practice_path(request)
    # htmx replaces the results only, so that the field being typed into stays as it is.
    is_fragment = request.headers.get("hx-target", "").endswith("#problems")
    template = "practice/_tracks.html" if is_fragment else "practice/_list.html"

    def render() -> Markup:
        page = make_list_page(workbook.catalogue, snapshot, wanted, is_signed_in=is_signed_in)
        page = replace(page, catalogue=catalogue, class_catalogues=class_catalogues)
        return render_part(template, page, path)

    # The path and the catalogues: nobody else may see a teacher's problems from the cache.
    shown = (path, workbook.catalogue.folder, catalogue, class_catalogues)
    key = (template, wanted, is_signed_in, shown, _progress_key(snapshot))
    html = html_cache(request).find_or_render(key, render)
    if is_fragment:
        return send_part(request, html)
    title = catalogue.title if catalogue else "Practice"
    return render_page(request, "practice/list.html", PracticeListFrame(content=html, title=title))


def _progress_key(snapshot: PracticeSnapshot) -> bytes:
    """Return a digest of everything of a person's progress that the list shows.

    The rows themselves would be larger than the HTML of a search that finds nothing.
    """
    rows = (
        (slug, row.is_solved, row.solved_version, row.is_attempted, row.n_submits)
        for slug, row in snapshot.progress.items()
    )
    shown = (snapshot.latest_problem, sorted(rows))
    return hashlib.sha256(repr(shown).encode()).digest()


def _list_catalogues(
    request: Request,
) -> tuple[ReadableCatalogue | None, tuple[ReadableCatalogue, ...]]:
    """Return the teacher's catalogue that is shown, or those that the server's own links to."""
    person = person_of(request)
    if request.app.state.settings.is_local or person is None:
        return None, ()
    people: People = request.app.state.people
    readable = people.catalogues.list_readable(person)
    if "catalogue_id" not in request.path_params:
        return None, readable
    catalogue_id = int(request.path_params["catalogue_id"])
    return next((row for row in readable if row.id == catalogue_id), None), ()


def make_list_page(
    catalogue: Catalogue, snapshot: PracticeSnapshot, wanted: ListFilter, *, is_signed_in: bool
) -> PracticeListPage:
    """Return the list with the progress of one person."""
    progress = snapshot.progress
    current = current_slug(catalogue, snapshot)
    if snapshot.progress_of(current).is_solved:
        # The last problem is done: continue with the next one.
        current = next_problem(catalogue, progress, current) or current
    # The box and the list name the same problem as the next one.
    all_rows = tuple(
        replace(row, is_next=row.problem.slug == current and row.status != "solved")
        for row in list_progress(catalogue, progress)
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
        for track in catalogue.tracks
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
        is_current=current == snapshot.latest_problem,
        is_signed_in=is_signed_in,
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
