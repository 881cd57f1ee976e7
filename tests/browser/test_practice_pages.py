"""Practice in Chromium: solve a problem, see why a wrong solution is wrong, open it in the lab."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, Route, expect

from browser.conftest import SCREENS, WIDE
from shardlab.catalogue.tracks import load_catalogue

LIMIT_MS = 90_000  # ends a hang; judging takes seconds on an idle machine


def write_solution(page: Page, source: str) -> None:
    page.get_by_role("textbox", name=re.compile(r"^solution\.py")).click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")  # typing over colored text keeps its color, as inline style
    page.keyboard.insert_text(source)


def catalogue_file(slug: str, name: str) -> str:
    problem = load_catalogue().load_problem(slug)
    return (problem.folder / name).read_text("utf-8")


SEED_LESSONS = ("replicated-sharding", "shard-map-basics", "shard-map-psum", "nnx-shard-map")


@pytest.mark.parametrize(("viewport", "scheme"), SCREENS)
def test_the_main_picture_of_a_lesson_is_shown_in_full_and_readable(open_visit, viewport, scheme):
    visit = open_visit(viewport=viewport, scheme=scheme)
    for slug in SEED_LESSONS:
        page = visit.open(f"/practice/{slug}")
        picture = page.locator(".devices-picture img").first
        picture.scroll_into_view_if_needed()
        page.wait_for_function("image => image.naturalWidth > 0", arg=picture.element_handle())
        left, right, scale = picture.evaluate(
            """image => { const box = image.getBoundingClientRect();
            return [box.left, box.right, image.clientWidth / image.naturalWidth]; }"""
        )
        assert 0 <= left < right <= viewport["width"]
        assert scale >= 0.99  # text has at least the size for which it is drawn
        assert "device 0 holds" in picture.get_attribute("alt")
        size = "wide" if viewport == WIDE else "narrow"
        visit.take_screenshot(f"lesson-{slug}-{size}-{scheme}")
    assert visit.find_accessibility_faults() == []
    visit.check()


def test_a_newcomer_solves_the_first_seed_problem(open_visit):
    visit = open_visit()
    page = visit.open("/practice/replicated-sharding")
    write_solution(page, catalogue_file("replicated-sharding", "solution.py"))
    page.get_by_role("button", name="Submit all cases").click()
    result = page.get_by_role("region", name="Result")
    expect(result.get_by_text("Solved").first).to_be_visible(timeout=LIMIT_MS)
    visit.take_screenshot("practice-solved")
    page.goto(visit.url + "/practice")
    # Other tests on the same server may have solved problems too.
    expect(page.get_by_text(re.compile(r"^\d+ of 37 solved$"))).to_be_visible()
    row = page.get_by_role("listitem").filter(has_text="NamedSharding (Replicated)").first
    expect(row).to_contain_text("solved")
    visit.check()


def delay_response(route: Route) -> None:
    time.sleep(0.5)
    route.continue_()


def test_a_page_that_is_reloaded_during_a_judgement_shows_its_end(open_visit):
    visit = open_visit()
    page = visit.open("/practice/shard-map-basics")
    # Sleeping, so that the judgement is still under way when the page is loaded again.
    source = catalogue_file("shard-map-basics", "solution.py")
    write_solution(page, f"import time\ntime.sleep(3)\n{source}")
    page.get_by_role("button", name="Submit all cases").click()
    expect(page.locator("#result[data-active]")).to_be_visible()
    # On a slow connection htmx has processed the page before the page's own script is there.
    page.route("**/build/practice*.js*", delay_response)
    page.reload()
    result = page.locator("#result[data-active]")
    expect(result).to_be_visible()
    expect(result.get_by_text("Solved").first).to_be_visible(timeout=LIMIT_MS)
    visit.check()


def test_a_reset_shows_the_starter_and_undo_the_text_that_was_typed_last(open_visit):
    slug = "shard-map-basics"
    visit = open_visit()
    page = visit.open(f"/practice/{slug}")
    write_solution(page, "typed = 'last'")
    page.get_by_role("button", name="Reset to the starter").click()
    undo = page.get_by_role("button", name="Undo the replacement")
    undo.wait_for()
    area = page.locator("#source")
    starter = catalogue_file(slug, "starter.py")
    expect(area).to_have_value(starter)
    page.reload()
    expect(area).to_have_value(starter)
    undo.click()
    expect(area).to_have_value("typed = 'last'")
    visit.check()


def test_a_wrong_solution_of_the_fourth_seed_problem_is_explained(open_visit):
    visit = open_visit()
    page = visit.open("/practice/shard-map-psum")
    write_solution(page, catalogue_file("shard-map-psum", "wrong/check_turned_off.py"))
    page.keyboard.press("Control+Shift+Enter")
    result = page.get_by_role("region", name="Result")
    expect(result).to_contain_text("psum", timeout=LIMIT_MS)
    visit.take_screenshot("practice-wrong")
    visit.check()
