"""The program lab: run, step through a psum, break it, compare, export; also by keyboard alone."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import NARROW, SCREENS, WIDE, Visit

OWN_PROGRAM = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def total(x):
    def body(x):
        part = x.sum()
        return jax.lax.psum(part, "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def total_args():
    return (jnp.arange(8.0),)
"""


def open_lab(visit: Visit, query: str = "?example=megatron_mlp") -> Page:
    page = visit.open(f"/lab{query}")
    page.get_by_role("button", name="Play").wait_for()
    return page


def step_text(page: Page) -> str:
    return page.locator(".dbg-step-text").inner_text()


def go_to_first_collective(page: Page) -> None:
    page.get_by_role("tab", name="Collectives").click()
    page.locator(".dbg-tab-panel .dbg-row").first.click()


def break_with(page: Page, label: str) -> None:
    page.get_by_role("tab", name="Break it").click()
    page.get_by_role("button", name=re.compile(label)).click()
    page.get_by_text("Broken on purpose:").wait_for()


@pytest.mark.screenshot
def test_partial_sums_become_one_sum_on_every_device(open_visit):
    visit = open_visit()
    page = open_lab(visit)
    go_to_first_collective(page)
    visit.take_screenshot("lab-psum")
    page.get_by_role("button", name="Table", exact=True).click()
    rows = page.locator(".dbg-table tbody tr")
    expect(page.locator(".dbg-value")).to_contain_text("partial sum over model")
    expect(rows).to_have_count(8)
    before = sum_of_first_cells(page, range(4))
    for _ in range(7):  # six hops of the ring, then the result
        page.get_by_role("button", name="Step forward").click()
    assert "result" in step_text(page)
    expect(rows).to_have_count(2)  # data=2: each sum is on the four devices along model
    expect(rows.first).to_contain_text("×4")
    assert sum_of_first_cells(page, [0]) == pytest.approx(before, abs=2e-3)
    visit.check()


def sum_of_first_cells(page: Page, rows) -> float:
    """Return the sum of the first number in the given rows of the table."""
    cells = page.locator(".dbg-table tbody tr td.numbers")
    return sum(float(cells.nth(row).inner_text().split()[0].replace("−", "-")) for row in rows)


@pytest.mark.screenshot
def test_a_skipped_collective_shows_who_waits_for_whom(open_visit):
    visit = open_visit()
    page = open_lab(visit)
    break_with(page, "Skip the psum")
    expect(page.locator(".dbg-caption")).to_contain_text(
        "devices 1-3, 5-7 wait at line 14 for devices 0, 4"
    )
    visit.take_screenshot("lab-deadlock")
    page.get_by_role("button", name="Restore").click()
    expect(page.get_by_text("Broken on purpose:")).to_have_count(0)
    visit.check()


def test_where_devices_wait_no_block_moves(open_visit):
    visit = open_visit()
    page = visit.open("/lab?example=deadlock_in_branch")
    expect(page.locator(".dbg-caption")).to_contain_text("Deadlock: devices 1-3 wait at line")
    assert page.get_by_label("Hop", exact=True).count() == 0
    steps = page.get_by_role("navigation", name="First steps")
    expect(steps).not_to_contain_text("Watch the blocks move")
    expect(steps.locator(".is-current")).to_contain_text("Break it")
    visit.check()


def test_a_run_that_hangs_is_not_compared_by_the_time_until_it_hangs(open_visit):
    visit = open_visit()
    page = open_lab(visit)
    break_with(page, "Skip the psum")
    page.get_by_role("tab", name="Compare").click()
    panel = page.locator(".dbg-tab-panel")
    expect(panel.get_by_role("row", name="Time per step")).to_contain_text("never completes")
    expect(panel.get_by_role("row", name="psum over model")).to_contain_text("never completes")
    expect(panel).to_contain_text("its devices hang, so there is no result")
    visit.take_screenshot("lab-compare-hang")
    visit.check()


def test_the_first_steps_lead_through_a_psum_and_break_it(open_visit):
    visit = open_visit(motion="reduce")
    page = open_lab(visit)
    steps = page.get_by_role("navigation", name="First steps")
    expect(steps.locator(".is-current")).to_contain_text("Go to the psum")
    steps.get_by_role("button", name="Go to the psum").click()
    expect(page.locator(".dbg-step-text")).to_contain_text("psum over model, line 14, before")
    page.get_by_label("Speed").select_option("4")
    steps.get_by_role("button", name=re.compile("Watch the blocks move")).click()
    expect(steps.locator(".is-current")).to_contain_text("Break it")
    steps.get_by_role("button", name=re.compile("Break it")).click()
    expect(page.get_by_role("tabpanel")).to_be_focused()
    skip = page.get_by_role("button", name=re.compile("Skip the psum"))
    skip.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".dbg-caption")).to_contain_text("wait at line 14")
    expect(skip).to_be_focused()
    expect(steps.locator(".is-done")).to_have_count(3)
    steps.get_by_role("button", name="Close the first steps").click()
    page.reload()
    page.locator(".dbg-play").wait_for()
    expect(steps).to_have_count(0)
    visit.check()


def test_links_open_the_lab_at_a_collective_and_at_break_it(open_visit):
    visit = open_visit()
    page = visit.open("/")
    page.get_by_role("link", name=re.compile("Step through a psum.*Partial sums", re.S)).click()
    expect(page.locator(".dbg-step-text")).to_contain_text(
        "psum over data (pmean = psum / 4), line 16, before"
    )
    page = visit.open("/")
    page.get_by_role("link", name=re.compile("Break it")).click()
    expect(page.get_by_role("tab", name="Break it")).to_have_attribute("aria-selected", "true")
    visit.check()


def test_a_removed_collective_shows_which_devices_differ_and_what_was_lost(open_visit):
    visit = open_visit()
    page = open_lab(visit)
    break_with(page, "Remove the psum")
    expect(page.locator(".dbg-value")).to_contain_text("8 of 8 devices differ from run A")
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator(".dbg-tab-panel")).to_contain_text("psum over model lost")
    visit.take_screenshot("lab-broken")
    visit.check()


def test_two_runs_are_compared(open_visit):
    visit = open_visit()
    page = open_lab(visit)
    page.get_by_role("button", name="Pin as A").click()
    page.get_by_role("button", name="Halve mesh axis model").click()
    expect(page.get_by_label("Mesh", exact=True)).to_have_value("data=2,model=2")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Run B against A").wait_for()
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator(".dbg-compare").first).to_contain_text("data=2,model=4")
    visit.check()


def test_the_lab_works_by_keyboard_alone(open_visit):
    visit = open_visit()
    page = open_lab(visit)
    first = step_text(page)
    page.keyboard.press("ArrowRight")
    assert step_text(page) != first
    page.keyboard.press("Home")
    assert step_text(page) == first
    page.keyboard.press("End")
    assert re.match(r"Step (\d+) of \1:", step_text(page))
    page.get_by_label("Step of the program").focus()
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    page.get_by_role("button", name="Pause").wait_for()
    page.keyboard.press(" ")
    # Tab indents in the editor; Escape, then Tab, leaves it.
    editor = page.locator(".dbg-editor .cm-content")
    editor.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert not editor.evaluate("element => element.getRootNode().activeElement === element")
    visit.check()


def test_a_guess_comes_before_the_collective(open_visit):
    visit = open_visit()
    page = open_lab(visit, "?example=data_parallel")
    page.get_by_role("button", name="Predict").click()
    while "make a prediction" not in step_text(page):
        page.get_by_role("button", name="Step forward").click()
    assert page.locator(".dbg-canvas").count() == 0
    # Nothing beside the question answers it.
    page.get_by_role("tab", name="Collectives").click()
    rows = page.locator(".dbg-tab-panel .dbg-row")
    expect(rows.first).to_contain_text("a collective over data")
    expect(page.locator(".dbg-tab-panel")).not_to_contain_text("bytes")
    expect(page.locator(".dbg-line-card")).not_to_contain_text("bytes")
    for group in page.locator(".predict fieldset").all():
        choice = group.locator("input").first
        if choice.get_attribute("type") == "radio":
            choice.check()
        else:
            choice.fill("()")
    visit.take_screenshot("lab-predict")
    page.get_by_role("button", name="Commit the guess").click()
    expect(page.locator(".predict")).to_contain_text("Correct: ()")
    page.get_by_role("button", name="Show it").click()
    page.locator(".dbg-canvas").wait_for()
    expect(rows.first).to_contain_text("6 bytes")
    visit.check()


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_blocks_move_only_where_motion_is_wanted(open_visit, motion):
    visit = open_visit(motion=motion)
    page = open_lab(visit)
    go_to_first_collective(page)
    page.get_by_label("Speed").select_option("0.25")
    canvas = page.locator(".dbg-canvas canvas").first
    page.get_by_role("button", name="Step forward").click()
    page.wait_for_timeout(150)
    earlier = canvas.evaluate("element => element.toDataURL()")
    page.wait_for_timeout(600)
    later = canvas.evaluate("element => element.toDataURL()")
    assert (earlier == later) == (motion == "reduce")


def test_an_own_program_and_a_saved_recording_are_opened(open_visit, tmp_path):
    visit = open_visit()
    page = open_lab(visit)
    program = tmp_path / "own.py"
    program.write_text(OWN_PROGRAM)
    page.locator("#dbg-file").set_input_files(program)
    page.get_by_label("Mesh", exact=True).fill("data=4")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Play").wait_for()
    page.get_by_text("Share and export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Recording (JSON)").click()
    saved = json.loads(Path(download.value.path()).read_text())
    assert saved["format"] == "shardlab-recording"
    packed = tmp_path / "saved.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(saved).encode()))
    page.reload()
    page.get_by_role("button", name="Play").wait_for()
    page.locator("#dbg-file").set_input_files(packed)
    expect(page.locator(".dbg-editor .cm-content")).to_contain_text("def total(x)")
    visit.check()


def test_a_syntax_error_is_on_its_line(open_visit, tmp_path):
    visit = open_visit()
    page = open_lab(visit)
    program = tmp_path / "own.py"
    program.write_text("import jax\n\ndef step(x:\n    return x\n")
    page.locator("#dbg-file").set_input_files(program)
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator(".dbg-notice.is-bad").wait_for()
    page.locator(".dbg-editor .cm-lint-marker-error").wait_for()


def test_the_offline_file_steps_without_a_server(open_visit, tmp_path):
    visit = open_visit()
    page = open_lab(visit)
    page.wait_for_url("**/lab?recording=*")
    identifier = page.url.split("recording=")[1]
    response = page.request.get(f"{visit.url}/api/v1/recordings/{identifier}.html")
    assert response.ok
    file = tmp_path / "recording.html"
    file.write_bytes(response.body())
    page.goto(file.as_uri())
    page.get_by_role("button", name="Step forward").click()
    assert step_text(page).startswith("Step 2 of")
    assert page.locator(".dbg-editor .cm-content").is_visible()
    visit.take_screenshot("lab-offline")
    visit.check()


@pytest.mark.parametrize(("viewport", "scheme"), SCREENS)
def test_the_lab_fits_the_screen_and_has_no_serious_fault(open_visit, viewport, scheme):
    visit = open_visit(viewport=viewport, scheme=scheme)
    page = open_lab(visit)
    go_to_first_collective(page)
    for _ in range(3):
        page.get_by_role("button", name="Step forward").click()
    page.wait_for_timeout(1500)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert visit.find_accessibility_faults() == []
    visit.take_screenshot(f"lab-{'wide' if viewport == WIDE else 'narrow'}-{scheme}")
    visit.check()


def test_a_step_scrolls_the_program_and_not_the_page(open_visit):
    visit = open_visit(viewport=NARROW)
    page = open_lab(visit, "?example=megatron_mlp&show=collective")
    expect(page.locator(".dbg-step-text")).to_contain_text("psum over model, line 14, before")
    page.keyboard.press("End")
    assert page.evaluate("scrollY") == 0
    visit.check()


def test_the_lab_reads_without_scripts(open_visit):
    visit = open_visit(scripts=False)
    page = visit.open("/lab")
    expect(page.get_by_role("heading", name="Program lab")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("Megatron MLP"))).to_be_visible()
    visit.check()
