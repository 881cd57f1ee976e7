"""The program lab in Chromium: step through a program, break it, compare, open and export."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import NARROW, WIDE
from shardlab.recording.example_gallery import gallery_programs

LIMIT_MS = 60_000  # ends a hang; a run takes about a second on an idle machine
expect.set_options(timeout=LIMIT_MS)


def step_text(page: Page):
    return page.get_by_text(re.compile(r"^Step \d+ of \d+"))


def open_example(visit, slug: str) -> Page:
    page = visit.open(f"/lab?example={slug}")
    step_text(page).wait_for(timeout=LIMIT_MS)
    return page


def step_until(page: Page, words: str) -> None:
    """Press the right arrow key until the sentence of the step has these words."""
    for _ in range(200):
        text = step_text(page).inner_text()
        if words in text:
            return
        page.keyboard.press("ArrowRight")
        expect(step_text(page)).not_to_have_text(text)
    raise AssertionError(f"no step with {words!r}")


def table_rows(page: Page) -> list[list[str]]:
    page.get_by_role("button", name="Table").click()
    rows = page.get_by_role("table").locator("tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def test_partial_sums_become_one_number_on_every_device(open_visit):
    visit = open_visit()
    page = open_example(visit, "data_parallel")
    step_until(page, "psum over data")
    devices = page.get_by_role("region", name="Devices")
    expect(devices.get_by_text("partial sum over data").first).to_be_visible()
    before = table_rows(page)
    assert [row[0] for row in before] == ["0", "1", "2", "3"]
    total = sum(float(row[-1]) for row in before)
    step_until(page, "result")
    after = table_rows(page)
    assert [row[:2] for row in after] == [["0-3", "×4"]]
    assert float(after[0][-1]) == pytest.approx(total, rel=1e-3)
    visit.take_screenshot("lab-psum-table")
    visit.check()


def test_a_broken_program_shows_who_blocks_forever_and_restores(open_visit):
    visit = open_visit()
    page = open_example(visit, "data_parallel")
    page.get_by_role("tab", name="Break it").click()
    page.get_by_role("button", name="Skip the pmean").click()
    expect(page.get_by_text("devices 1-3 wait at line 16 for device 0")).to_be_visible()
    visit.take_screenshot("lab-deadlock")
    page.get_by_role("button", name="Restore").click()
    expect(page.get_by_text("wait at line 16")).to_have_count(0)
    visit.check()


def test_a_removed_collective_shows_which_devices_go_wrong(open_visit):
    visit = open_visit()
    page = open_example(visit, "data_parallel")
    page.get_by_role("tab", name="Break it").click()
    page.get_by_role("button", name="Remove the pmean").click()
    expect(page.get_by_text("Broken on purpose:")).to_be_visible()
    expect(page.get_by_role("tab", name=re.compile(r"Findings \d"))).to_be_visible()
    visit.take_screenshot("lab-removed-psum")
    visit.check()


def test_a_mesh_axis_grows_with_a_button(open_visit):
    visit = open_visit()
    page = open_example(visit, "forgotten_psum")
    page.get_by_role("button", name="Double mesh axis model").click()
    expect(page.get_by_role("textbox", name="Mesh")).to_have_value("model=8")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("img", name=re.compile("on 8 devices"))).to_be_visible()
    visit.check()


def test_an_error_of_the_program_names_its_line(open_visit):
    visit = open_visit()
    page = open_example(visit, "data_parallel")
    editor = page.get_by_role("textbox", name=re.compile("^Program"))
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("import jax\n\nx = = 3\n")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("line 3")
    visit.check()


def test_the_lab_works_with_the_keyboard_alone(open_visit):
    visit = open_visit()
    page = visit.open("/lab?example=data_parallel")
    step_text(page).wait_for(timeout=LIMIT_MS)
    page.keyboard.press("End")
    last = step_text(page).inner_text()
    number = re.match(r"Step (\d+) of (\d+)", last)
    assert number is not None
    assert number[1] == number[2]
    page.keyboard.press("Home")
    expect(step_text(page)).to_have_text(re.compile("^Step 1 of"))
    visit.check()


def test_reduced_motion_moves_no_block_by_itself(open_visit):
    visit = open_visit(motion="reduce")
    page = open_example(visit, "data_parallel")
    step_until(page, "psum over data")
    text = step_text(page).inner_text()
    page.wait_for_timeout(1500)
    assert step_text(page).inner_text() == text
    visit.check()


@pytest.mark.parametrize("slug", [program.slug for program in gallery_programs()])
def test_every_program_of_the_gallery_opens(open_visit, slug):
    visit = open_visit(viewport=NARROW if slug == "fsdp" else WIDE, scheme="dark")
    page = open_example(visit, slug)
    page.keyboard.press("End")
    expect(step_text(page)).to_be_visible()
    visit.take_screenshot(f"lab-{slug}")
    visit.check()
