"""A teacher uploads a catalogue, and a learner solves its problem: pages, real judge, Chromium."""

from __future__ import annotations

import pytest

from browser.conftest import NARROW, running_server
from server.people.catalogue_files import small_catalogue, zip_bytes
from shardlab.server.database.engine import open_database
from shardlab.server.people.services import open_people
from shardlab.server.settings import ServerSettings

PASSWORD = "violet otter umbrella"
SECRET = "mQ0s9vYk3-tZrW8xLcP2bHdN5gJfUeAq7TiRoKwX"
FILES = small_catalogue()
PROBLEM = "lecture-5/take-the-largest"
PATIENCE_MS = 300_000  # only ends a hang


@pytest.fixture(scope="module")
def school_url(tmp_path_factory):
    """Start a server with a teacher and a learner, and return its address."""
    folder = tmp_path_factory.mktemp("school")
    database = open_database(folder)
    people = open_people(ServerSettings(data_folder=folder, secret=SECRET), database)
    for name, role in (("Teacher", "teacher"), ("Ada", "learner")):
        people.accounts.create(name, PASSWORD, role=role)
    database.close()
    (folder / "secret").write_text(SECRET)
    options = ("--accounts", "--secret-file", str(folder / "secret"))
    with running_server(folder, *options) as url:
        yield url


def sign_in(visit, name):
    page = visit.open("/sign-in")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.locator("main").get_by_role("button", name="Sign in").click()
    return page


def choose_file(page, files, form=""):
    page.locator(f"{form} input[type=file]").set_input_files(
        {"name": "catalogue.zip", "mimeType": "application/zip", "buffer": zip_bytes(files)}
    )


def check_page(visit, name):
    """Check that the page is accessible and fits, wide and narrow, and take its pictures."""
    wide = visit.page.viewport_size
    for label, size in (("wide", wide), ("narrow", NARROW)):
        visit.page.set_viewport_size(size)
        overflow = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{name} scrolls sideways ({label})"
        visit.take_screenshot(f"catalogue-{name}-{label}")
    visit.page.set_viewport_size(wide)
    assert visit.find_accessibility_faults() == []


def test_a_teacher_uploads_a_catalogue_and_a_learner_solves_its_problem(open_visit, school_url):
    teacher, ada = open_visit(url=school_url), open_visit(url=school_url, scheme="dark")
    page = sign_in(teacher, "Teacher")

    # An upload that is refused says why.
    page.get_by_role("link", name="Catalogues").click()
    page.get_by_label("Title").fill("Exercises of lecture 5")
    choose_file(page, {"evil.py": b"x"})
    with page.expect_response(lambda response: response.status == 422):
        page.get_by_role("button", name="Upload").click()
    assert "no tracks.toml" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Title").input_value() == "Exercises of lecture 5"
    check_page(teacher, "list")
    teacher.errors.clear()  # the browser logs the status 422

    # A catalogue with a fault: the audit names it.
    faulty = {**FILES, f"{PROBLEM}/starter.py": FILES[f"{PROBLEM}/solution.py"]}
    choose_file(page, faulty)
    page.get_by_role("button", name="Upload").click()
    page.get_by_text("The starter passes.").wait_for(timeout=PATIENCE_MS)
    assert "nobody sees it" in page.locator("main").inner_text()
    check_page(teacher, "faults")

    # The corrected version passes.
    choose_file(page, FILES)
    page.get_by_role("button", name="Upload").click()
    page.get_by_text("Classes see version 2.").wait_for(timeout=PATIENCE_MS)
    check_page(teacher, "passed")

    # A class with it, and a learner.
    page.get_by_role("link", name="Classes").click()
    page.get_by_label("Title").fill("Distributed training")
    page.get_by_role("button", name="Create").click()
    page.get_by_label("Add a catalogue").select_option(label="Exercises of lecture 5")
    page.get_by_role("button", name="Assign").click()
    page.get_by_role("button", name="Remove Exercises of lecture 5").wait_for()
    check_page(teacher, "class")
    class_url = page.url
    join_url = page.get_by_role("textbox", name="Join link").input_value()

    learner = sign_in(ada, "Ada")
    learner.goto(join_url)
    learner.get_by_role("button", name="Join").click()
    learner.get_by_role("navigation", name="Main").get_by_role("link", name="Practice").click()
    check_page(ada, "practice")
    learner.get_by_role("link", name="Exercises of lecture 5").click()
    assert learner.get_by_role("heading", level=1).inner_text() == "Exercises of lecture 5"
    check_page(ada, "problems")
    learner.locator("a.row-title", has_text="Take the largest").click()
    check_page(ada, "problem")
    editor = learner.locator(".cm-content")
    editor.click()
    learner.keyboard.press("Control+a")
    learner.keyboard.press("Delete")  # typing over colored text keeps its color, as inline style
    learner.keyboard.insert_text(FILES[f"{PROBLEM}/solution.py"].decode())
    learner.locator("#submit").click()
    learner.get_by_text("Compare with the solution").wait_for(timeout=PATIENCE_MS)
    check_page(ada, "solved")

    page.goto(class_url)
    page.locator("a.cell:has(.mark.solved)").wait_for()
    check_page(teacher, "matrix")
    page.locator("a.cell:has(.mark.solved)").click()
    assert "Take the largest" in page.locator("main").inner_text()
    teacher.check()
    ada.check()
