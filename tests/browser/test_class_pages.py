"""Classes, joining and administration in Chromium, on a server with accounts and the real judge."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from browser.accounts_server import (
    LONG_TITLE,
    NAMES,
    PASSWORD,
    AccountsServer,
    running_accounts_server,
    sign_in,
)
from browser.conftest import NARROW, WIDE, WIDTHS, Visit
from browser.test_practice_pages import LIMIT_MS, catalogue_file, write_solution
from shardlab.server.database.people_tables import SourceRow, SubmissionRow
from shardlab.server.people.rate_limits import EXPORTS, TooManyRequests, person_subject

ZOOMED = {"width": 720, "height": 450}  # what a wide screen has left at 200 %


class School:
    """A server with a full class, an empty one, and people who have signed in once."""

    def __init__(self, server: AccountsServer, browser: Browser) -> None:
        self.server = server
        self.url = server.url
        self._browser = browser
        self._states: dict[str, dict] = {}
        self.teacher = server.add_person("Tess", "teacher")
        self.admin = server.add_person("Root", "admin")
        self.learner = server.add_person("Zoe")
        self.newcomer = server.add_person("Nina")
        self.full_class = server.add_full_class(self.teacher)
        # A class of every kind of name: axe-core needs a minute for the cells of the full one.
        some = [server.people.accounts.find(name) for name in NAMES]
        self.some_class = server.add_class(self.teacher, LONG_TITLE, [*some, self.learner])
        self.empty_class = server.add_class(self.teacher, "Empty class")
        self.token = server.people.classes.join_token(self.some_class)
        wrong = catalogue_file("shard-map-psum", "wrong/check_turned_off.py")
        right = catalogue_file("shard-map-psum", "solution.py")
        self.first = server.add_submission(self.learner, "shard-map-psum", "WA", wrong)
        self.second = server.add_submission(self.learner, "shard-map-psum", "AC", right)
        server.people.classes.add_comment(self.first, self.teacher, "Which devices take part?")

    def open_context(self, name: str = "", **options) -> BrowserContext:
        """Return a browser of a person: each signs in once, because sign-ins are limited."""
        if name and name not in self._states:
            with self._browser.new_context() as context:
                sign_in(context.new_page(), self.url, name)
                self._states[name] = context.storage_state()
        context = self._browser.new_context(storage_state=self._states.get(name), **options)
        context.set_default_timeout(60_000)
        return context


@pytest.fixture(scope="module")
def school(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[School]:
    with running_accounts_server(tmp_path_factory.mktemp("school")) as server:
        yield School(server, browser)


@pytest.fixture
def open_window(school: School) -> Iterator:
    """Return a function that opens a window of a person, or of somebody who has not signed in."""
    contexts = []

    def open_window(name: str = "", **options) -> Visit:
        context = school.open_context(name, **options)
        contexts.append(context)
        return Visit(context.new_page(), school.url)

    yield open_window
    for context in contexts:
        context.close()


# ----------------------------------------------------------------------------------- every page

PAGES = {
    "classes": ("Tess", "/classes"),
    "no classes": ("Nina", "/classes"),
    "class by problem": ("Tess", "/classes/{some}"),
    "class by track": ("Tess", "/classes/{some}?by=track"),
    "class without members": ("Tess", "/classes/{empty}"),
    "class of a learner": ("Zoe", "/classes/{some}"),
    "member": ("Tess", "/classes/{some}/members/{zoe}"),
    "member without submissions": ("Tess", "/classes/{some}/members/{ada}"),
    "class submission": ("Tess", "/classes/{some}/submissions/{first}"),
    "own class submission": ("Zoe", "/classes/{some}/submissions/{second}"),
    "join": ("", "/join/{token}"),
    "join, signed in": ("Nina", "/join/{token}"),
    "admin": ("Root", "/admin"),
    "admin, nobody": ("Root", "/admin?search=qqq"),
    "practice": ("Zoe", "/practice"),
    "practice, no match": ("Zoe", "/practice?q=qqq"),
    "problem": ("Zoe", "/practice/shard-map-psum"),
    "problem, signed out": ("", "/practice/shard-map-psum"),
    "hints": ("Zoe", "/practice/shard-map-psum?panel=hints"),
    "solution": ("Zoe", "/practice/shard-map-psum?panel=solution"),
    "history": ("Zoe", "/practice/shard-map-psum?panel=submissions"),
    "difference": ("Zoe", "/practice/shard-map-psum/submissions/{second}?compare={first}"),
    "failed submission": ("Zoe", "/practice/shard-map-psum/submissions/{first}"),
}


def page_path(school: School, template: str) -> str:
    ada = school.server.people.accounts.find(NAMES[0])
    return template.format(
        some=school.some_class,
        empty=school.empty_class,
        zoe=school.learner.id,
        ada=ada.id,
        first=school.first,
        second=school.second,
        token=school.token,
    )


def check_looks(visit: Visit, name: str) -> None:
    """Fail if the page scrolls sideways or axe-core finds a serious fault, light and dark."""
    page = visit.page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, "the page scrolls sideways"
        # The structure is the same in both: in the dark only colors can be at fault.
        rules = ["color-contrast"] if scheme == "dark" else None
        assert visit.find_accessibility_faults(rules) == []
        width = page.viewport_size["width"]
        visit.take_screenshot(f"{name.replace(' ', '-').replace(',', '')}-{width}-{scheme}")


@pytest.mark.parametrize("viewport", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_screen_and_has_no_serious_fault(school, open_window, name, viewport):
    person, template = PAGES[name]
    visit = open_window(person, viewport=viewport)
    visit.open(page_path(school, template)).wait_for_load_state("networkidle")
    check_looks(visit, name)
    visit.check()


def test_a_submission_shows_its_verdict_on_a_narrow_screen(school, open_window):
    page = open_window("Zoe", viewport=NARROW).open(
        f"/practice/shard-map-psum/submissions/{school.first}"
    )
    page.wait_for_load_state("networkidle")  # the scripts of the page have run
    expect(page.get_by_role("heading", name=re.compile("wrong values"))).to_be_visible()


def test_pages_reflow_at_200_percent(school, open_window):
    for person in ("Tess", "Zoe", "Root", "Nina", ""):
        visit = open_window(person, viewport=ZOOMED)
        for owner, template in PAGES.values():
            if owner == person:
                page = visit.open(page_path(school, template))
                overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert overflow <= 0, f"{template} scrolls sideways"
        visit.check()


def test_every_page_of_a_class_reads_without_scripts(school, open_window):
    visit = open_window("Tess", java_script_enabled=False)
    page = visit.open(f"/classes/{school.some_class}")
    expect(page.get_by_role("heading", level=1)).to_have_text(LONG_TITLE)
    expect(page.get_by_role("row", name=re.compile("^Bo "))).to_be_visible()
    expect(page.get_by_role("textbox", name="Join link")).to_have_value(re.compile("/join/"))
    expect(page.get_by_role("button", name="Copy")).to_be_hidden()
    page.get_by_role("link", name="Zoe", exact=True).click()
    page.get_by_role("link", name="shard_map with psum Collective", exact=True).click()
    page.get_by_role("link", name=f"Submission {school.first} 1 comment, failed").click()
    expect(page.get_by_text("check_vma=False")).to_be_visible()
    expect(page.get_by_text("Which devices take part?")).to_be_visible()
    for path in ("/classes", f"/classes/{school.empty_class}", f"/join/{school.token}"):
        visit.open(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    visit.check()


# ---------------------------------------------------------------------------------- the matrix


def box(page: Page, selector: str) -> dict:
    found = page.locator(selector).first.bounding_box()
    assert found is not None, selector
    return found


@pytest.mark.parametrize("viewport", [WIDE, NARROW, ZOOMED], ids=["wide", "narrow", "200 %"])
def test_names_problems_and_sums_stay_in_sight_in_a_class_of_60(school, open_window, viewport):
    page = open_window("Tess", viewport=viewport).open(f"/classes/{school.full_class}")
    assert page.locator(".matrix tbody tr").count() == 60
    frame = page.locator(".matrix-scroll")
    frame.evaluate("element => { element.scrollTop = 700; element.scrollLeft = 300; }")
    frame.scroll_into_view_if_needed()
    edges = box(page, ".matrix-scroll")
    track, problem = box(page, ".track-row th"), box(page, ".problem-row a")
    name, total = box(page, ".matrix tbody .member-head"), box(page, ".matrix tfoot td")
    assert track["y"] == pytest.approx(edges["y"] + 1, abs=2)
    assert problem["y"] >= track["y"] + track["height"] - 2
    assert name["x"] == pytest.approx(edges["x"] + 1, abs=2)
    bottom = edges["y"] + edges["height"]
    assert total["y"] + total["height"] == pytest.approx(bottom, abs=20)  # above the scrollbar
    header_end = problem["y"] + problem["height"]
    assert (total["y"] - header_end) / 30 >= 4, "fewer than 4 rows are visible"


def test_a_cell_that_has_the_focus_is_not_covered_by_the_headers(school, open_window):
    page = open_window("Tess").open(f"/classes/{school.full_class}")
    page.locator(".matrix-scroll").evaluate("element => { element.scrollTop = 9999; }")
    # Backwards from the last row: each cell would otherwise be scrolled to below the headers.
    page.locator(".matrix tbody tr").nth(40).locator("a").first.focus()
    for _ in range(120):
        page.keyboard.press("Shift+Tab")
        is_covered = page.evaluate(
            """() => {
              const {left, top, width, height} = document.activeElement.getBoundingClientRect();
              const hit = document.elementFromPoint(left + width / 2, top + height / 2);
              return !document.activeElement.contains(hit);
            }"""
        )
        assert not is_covered, page.evaluate("document.activeElement.outerHTML")
        if page.evaluate("document.activeElement.closest('tbody') === null"):
            break


def test_the_sums_of_the_matrix_are_those_of_its_cells(school, open_window):
    page = open_window("Tess").open(f"/classes/{school.full_class}")
    table = page.evaluate(
        """() => [...document.querySelectorAll('.matrix tbody tr')].map(row => ({
          sum: Number(row.querySelector('.n-solved').firstChild.textContent),
          cells: [...row.querySelectorAll('td')].map(cell => cell.querySelector('.solved') ? 1 : 0),
        }))"""
    )
    foot = page.evaluate(
        "[...document.querySelectorAll('.matrix tfoot td')].map(cell => Number(cell.textContent))"
    )
    assert len(foot) == 37
    assert [row["sum"] for row in table] == [sum(row["cells"]) for row in table]
    assert foot == [sum(column) for column in zip(*(row["cells"] for row in table), strict=True)]
    page.get_by_role("link", name="By track").click()
    track_sums = page.evaluate(
        """() => [...document.querySelectorAll('.matrix tbody tr')].map(
          row => [...row.querySelectorAll('td')].map(cell => parseInt(cell.textContent)))"""
    )
    assert [sums[0] for sums in track_sums] == [row["sum"] for row in table]
    assert all(sums[0] == sum(sums[1:]) for sums in track_sums)


def test_a_name_in_another_direction_does_not_turn_the_text_around_it(school, open_window):
    person = school.server.people.accounts.find(NAMES[3])
    page = open_window("Tess").open(f"/classes/{school.full_class}")
    member = page.locator(".matrix tbody tr", has_text=NAMES[3]).locator(".member")
    name, solved = member.locator("bdi").bounding_box(), member.locator(".n-solved").bounding_box()
    assert name["x"] < solved["x"]
    page.goto(f"{school.url}/classes/{school.full_class}/members/{person.id}")
    expect(page.get_by_role("heading", level=1)).to_have_css("direction", "rtl")


# ----------------------------------------------------------------------------------- keyboard


def tab_to(page: Page, description: str) -> None:
    """Press Tab until the element with this accessible text has the focus, and see the focus."""
    for _ in range(120):
        page.keyboard.press("Tab")
        # Behind its last element a page has no focus for one step, then it starts over.
        if page.evaluate("document.activeElement === document.body"):
            continue
        text, outline = page.evaluate(
            """() => {
              const element = document.activeElement;
              const label = element.labels?.[0]?.textContent ?? '';
              const text = element.getAttribute('aria-label') || element.textContent || label;
              return [text.trim() || label.trim(), getComputedStyle(element).outlineStyle];
            }"""
        )
        assert outline != "none", f"the focus on {text!r} is not visible"
        if text == description:
            return
    raise AssertionError(f"Tab does not reach {description!r}")


def test_a_teacher_works_with_the_keyboard_alone(school, open_window):
    visit = open_window("Tess")
    page = visit.open("/classes")
    tab_to(page, "Title")
    page.keyboard.type("By keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("By keyboard")
    tab_to(page, "Close the link")
    page.keyboard.press("Enter")
    expect(page.get_by_text("nobody can join")).to_be_visible()
    tab_to(page, "Rename or delete the class")
    page.keyboard.press("Enter")
    tab_to(page, "Title")
    page.keyboard.type("Renamed")  # Tab selects what the field has
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Renamed")
    tab_to(page, "Rename or delete the class")
    page.keyboard.press("Enter")
    tab_to(page, "Delete this class. Its 0 members keep their accounts and submissions.")
    page.keyboard.press("Space")
    tab_to(page, "Delete the class")
    page.keyboard.press("Enter")
    page.wait_for_url(school.url + "/classes")
    expect(page.get_by_text("Renamed")).to_have_count(0)
    visit.check()


def test_the_keyboard_skips_the_table_and_reaches_a_comment(school, open_window):
    visit = open_window("Tess")
    page = visit.open(f"/classes/{school.some_class}")
    tab_to(page, "Skip the table")
    assert page.locator(".skip-link", has_text="table").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("#class-settings summary")).to_be_focused()
    page = visit.open(f"/classes/{school.some_class}/submissions/{school.second}")
    tab_to(page, "Write a comment")
    page.keyboard.type("Good.")
    tab_to(page, "Add the comment")
    page.keyboard.press("Enter")
    expect(page.locator(".comment-text")).to_have_text("Good.")
    tab_to(page, "Delete your comment: Good.")
    page.keyboard.press("Enter")
    expect(page.locator(".comment")).to_have_count(0)
    visit.check()


# ------------------------------------------------------------------------------------ stories


def submit_solution(page: Page, url: str, slug: str, file: str) -> None:
    page.goto(f"{url}/practice/{slug}")
    write_solution(page, catalogue_file(slug, file))
    page.get_by_role("button", name="Submit all cases").click()


def test_a_class_from_its_creation_to_its_end(school, open_window, tmp_path):
    visit = open_window("Tess", permissions=["clipboard-read", "clipboard-write"])
    teacher = visit.open("/classes")
    teacher.get_by_label("Title").fill("Sharding 101")
    teacher.get_by_role("button", name="Create").click()
    expect(teacher.get_by_role("heading", name="Nobody has joined yet")).to_be_visible()
    class_url = teacher.url
    teacher.get_by_role("button", name="Copy").click()
    expect(teacher.get_by_text("Copied.")).to_be_visible()
    join_url = teacher.evaluate("navigator.clipboard.readText()")
    assert join_url.startswith(f"{school.url}/join/")

    # A newcomer follows the link, signs up and joins.
    learner_visit = open_window()
    learner = learner_visit.page
    learner.goto(join_url)
    expect(learner.get_by_role("heading", level=1)).to_have_text("Sharding 101")
    learner.locator("main").get_by_role("link", name="Sign up").click()
    learner.get_by_label("Name").fill("Grace Hopper")
    learner.get_by_label("Password", exact=True).fill(PASSWORD)
    learner.locator("main").get_by_role("button", name="Sign up", exact=True).click()
    learner.get_by_role("button", name="Join as Grace Hopper").click()
    expect(learner.get_by_text("You have not submitted anything yet")).to_be_visible()

    # One wrong and one right submission, judged by the real judge and read to the end.
    submit_solution(learner, school.url, "shard-map-psum", "wrong/check_turned_off.py")
    result = learner.get_by_role("region", name="Result")
    expect(result.locator(".verdict-head.bad")).to_be_visible(timeout=LIMIT_MS)
    announcement = learner.locator("#result-announcement")
    expect(announcement).to_contain_text("psum")  # what a screen reader says
    submit_solution(learner, school.url, "replicated-sharding", "solution.py")
    expect(result.get_by_text("Solved").first).to_be_visible(timeout=LIMIT_MS)
    expect(announcement).to_contain_text("AC")

    # The teacher sees who solved what, opens the wrong one and comments on it.
    teacher.reload()
    row = teacher.get_by_role("row", name=re.compile("^Grace Hopper"))
    solved = row.get_by_role("link", name=re.compile(r"NamedSharding.*: solved, 1 submission$"))
    tried = row.get_by_role("link", name=re.compile(r"psum.*: tried, 1 submission$"))
    expect(solved).to_be_visible()
    tried.click()
    expect(teacher.get_by_role("region", name="Source of the submission")).to_contain_text(
        "check_vma=False"
    )
    teacher.get_by_label("Write a comment").fill("Which devices take part in the sum?")
    teacher.get_by_role("button", name="Add the comment").click()
    expect(teacher.locator(".comment-text")).to_have_text("Which devices take part in the sum?")

    # The learner finds the comment on the page of the class, and replies.
    learner.goto(class_url)
    expect(learner.get_by_text("Which devices take part in the sum?")).to_be_visible()
    comments = learner.get_by_role("region", name="Newest comments")
    comments.get_by_role("link", name=re.compile("psum")).click()
    learner.get_by_label("Write a comment").fill("All of them.")
    learner.get_by_role("button", name="Add the comment").click()
    expect(learner.locator(".comment")).to_have_count(2)
    learner.get_by_role("link", name="Full result").click()
    expect(learner.get_by_role("heading", name="Minimal failing case")).to_be_visible()
    learner_visit.check()

    teacher.goto(class_url)
    with teacher.expect_download() as download:
        teacher.get_by_role("link", name="Download CSV").click()
    download.value.save_as(tmp_path / "class.csv")
    with Path(tmp_path / "class.csv").open(newline="", encoding="utf-8") as file:
        (line,) = csv.DictReader(file)
    assert (line["name"], line["solved"]) == ("Grace Hopper", "1")
    assert (line["replicated-sharding"], line["shard-map-psum"]) == ("solved", "tried")

    teacher.get_by_text("Rename or delete the class").click()
    teacher.get_by_label("Title").fill("Sharding 102")
    teacher.get_by_role("button", name="Rename").click()
    expect(teacher.get_by_role("heading", level=1)).to_have_text("Sharding 102")
    teacher.get_by_role("link", name="Grace Hopper", exact=True).click()
    teacher.get_by_text("Remove from the class").click()
    teacher.get_by_role("button", name="Remove Grace Hopper").click()
    expect(teacher.get_by_role("heading", name="Nobody has joined yet")).to_be_visible()
    teacher.get_by_role("button", name="Close the link").click()
    expect(teacher.get_by_text("nobody can join")).to_be_visible()
    learner.goto(join_url)
    expect(learner.get_by_text("This link leads to no class.")).to_be_visible()
    expect(learner.get_by_text("Ask your teacher for a new one")).to_be_visible()
    teacher.get_by_text("Rename or delete the class").click()
    teacher.get_by_role("button", name="Delete the class").click()
    assert teacher.url == class_url  # not without the tick
    teacher.get_by_role("checkbox").check()
    teacher.get_by_role("button", name="Delete the class").click()
    teacher.wait_for_url(f"{school.url}/classes")
    expect(teacher.get_by_text("Sharding 102")).to_have_count(0)
    visit.check()
    assert learner_visit.foreign_requests == []


def test_an_admin_changes_a_role_resets_a_password_and_deletes_an_account(school, open_window):
    school.server.add_person("Imre Lakatos")
    visit = open_window("Root")
    page = visit.open("/admin")
    expect(page.get_by_text("jobs waiting")).to_be_visible()
    page.get_by_label("Name contains").fill("lakatos")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("table.people tbody tr")).to_have_count(1)
    page.get_by_label("Role of Imre Lakatos", exact=True).select_option("teacher")
    page.get_by_role("button", name="Set the role of Imre Lakatos").click()
    expect(page.get_by_text("Imre Lakatos has the role teacher now.")).to_be_visible()
    expect(page.locator("table.people tbody tr")).to_have_count(1)  # the search is still there
    page.get_by_role("button", name="Set a new password for Imre Lakatos").click()
    password = page.locator(".secret").inner_text()

    # The person signs in with it and must choose another one.
    own = open_window().page
    own.goto(f"{school.url}/sign-in")
    own.get_by_label("Name").fill("Imre Lakatos")
    own.get_by_label("Password", exact=True).fill(password)
    own.locator("main").get_by_role("button", name="Sign in", exact=True).click()
    expect(own.get_by_role("link", name="Account: Imre Lakatos")).to_be_visible()
    own.goto(f"{school.url}/classes")
    assert own.url == f"{school.url}/account"

    page.get_by_label("Delete Imre Lakatos…").click()
    confirmation = page.get_by_label("Type Imre Lakatos to delete the account")
    confirmation.fill("Imre")
    page.get_by_role("button", name="Delete Imre Lakatos with everything of theirs").click()
    expect(page.get_by_role("alert")).to_contain_text("Type the name Imre Lakatos")
    page.get_by_label("Delete Imre Lakatos…").click()
    confirmation.fill("Imre Lakatos")
    page.get_by_role("button", name="Delete Imre Lakatos with everything of theirs").click()
    expect(page.get_by_text("Nobody has such a name.")).to_be_visible()
    assert visit.foreign_requests == []


# -------------------------------------------------------------------------------------- errors


def open_too_large(visit: Visit, school: School) -> None:
    page = visit.open("/practice/shard-map-psum")
    page.evaluate(
        """() => {
          const form = document.querySelector('#editor-form').cloneNode(true);
          form.action = '/practice/shard-map-psum/draft';
          form.querySelector('textarea').value = 'x'.repeat(5e6);
          document.body.append(form);
          // The form has a button named submit.
          HTMLFormElement.prototype.submit.call(form);
        }"""
    )


def open_too_often(visit: Visit, school: School) -> None:
    with contextlib.suppress(TooManyRequests):  # after the first time at once
        for _ in range(EXPORTS.n_requests):
            school.server.people.limits.count(EXPORTS, person_subject(school.newcomer.id))
    visit.open("/practice/export.json")


def open_defect(visit: Visit, school: School) -> None:
    """Open a submission whose row in the database is damaged."""
    number = school.server.add_submission(school.newcomer, "shard-map-psum", "WA", "# damaged\n")
    with school.server.database.write() as session:
        row = session.get_one(SubmissionRow, number)
        session.get_one(SourceRow, row.source).body = b"not compressed"
    visit.open(f"/practice/shard-map-psum/submissions/{number}")


ERRORS = {
    403: (lambda visit, school: visit.open("/admin"), "You cannot do this."),
    404: (lambda visit, school: visit.open("/nothing-here"), "There is no such page."),
    413: (open_too_large, "The request is too large."),
    422: (lambda visit, school: visit.open("/classes/1?by=moon"), "by"),
    429: (open_too_often, "Too many requests."),
    500: (open_defect, "Something failed in shardlab itself."),
}


@pytest.mark.parametrize("viewport", WIDTHS)
@pytest.mark.parametrize("status", ERRORS)
def test_the_page_of_an_error_says_what_to_do(school, open_window, status, viewport):
    visit = open_window("Tess" if status == 422 else "Nina", viewport=viewport)
    provoke, meaning = ERRORS[status]
    provoke(visit, school)
    page = visit.page
    expect(page.get_by_text(f"Error {status}", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_contain_text(meaning)
    expect(page.locator("main").get_by_role("link", name="Home")).to_be_visible()
    check_looks(visit, f"error {status}")
    assert visit.foreign_requests == []
    # Chromium logs the status of the page itself, and nothing else may be there.
    assert all(f"{status} (" in text for text in visit.errors), visit.errors
