"""Own programs in the lab: the recorded function, replaced and cancelled runs, earlier results."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import NARROW, Visit

OWN_PROGRAM = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))


def total(x):
    def body(x):
        part = x.sum()
        return jax.lax.psum(part, "fsdp")

    return jax.shard_map(body, mesh=mesh, in_specs=P("fsdp"), out_specs=P())(x)


def total_args():
    return (jnp.ones(8),)
"""
# Longer than any test: it ends only because the job is cancelled.
SLOW_PROGRAM = "import time\n\ntime.sleep(600)\n" + OWN_PROGRAM
PASTE = """(element, text) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  const options = { clipboardData, bubbles: true, cancelable: true, composed: true };
  element.dispatchEvent(new ClipboardEvent("paste", options));
}"""


def open_lab(visit: Visit) -> tuple[Page, list[dict]]:
    """Open an example that has run; return the page and the later requests to record."""
    page = visit.open("/lab?example=megatron_mlp")
    page.get_by_role("button", name="Play").wait_for()
    page.wait_for_url("**/lab?recording=*")
    requests: list[dict] = []

    def note(request) -> None:
        if request.method == "POST" and request.url.endswith("/api/v1/recordings"):
            requests.append(request.post_data_json)

    page.on("request", note)
    return page, requests


def replace_text(page: Page, text: str) -> None:
    page.locator(".dbg-editor .cm-content").focus()
    page.keyboard.press("ControlOrMeta+a")
    page.locator(".dbg-editor .cm-content").evaluate(PASTE, text)


def open_program(page: Page, tmp_path, text: str) -> None:
    program = tmp_path / "own.py"
    program.write_text(text)
    page.locator("#dbg-file").set_input_files(program)


def run(page: Page) -> None:
    page.get_by_role("button", name="Run", exact=True).click()


def test_a_text_that_replaces_an_example_is_recorded_by_its_own_function(open_visit):
    visit = open_visit()
    page, requests = open_lab(visit)
    replace_text(page, OWN_PROGRAM)
    expect(page.locator("#dbg-example").locator("option:checked")).to_have_text("your own program")
    expect(page.locator(".dbg-stage")).to_contain_text("Result of the previous run.")
    expect(page.get_by_role("button", name="Pin as A")).to_be_disabled()
    visit.take_screenshot("lab-stale")
    run(page)
    expect(page.locator(".dbg-stage")).to_contain_text(
        "The program builds its own mesh fsdp=2; the mesh field was not used."
    )
    assert [request["target"] for request in requests] == [None]
    expect(page.get_by_role("button", name="Pin as A")).to_be_enabled()
    page.get_by_label("Function").fill("total")
    run(page)
    page.wait_for_url("**/lab?recording=*")
    assert requests[-1]["target"] == "total"
    visit.check()


def test_equal_shards_are_not_called_replicated(open_visit, tmp_path):
    visit = open_visit()
    page, _ = open_lab(visit)
    open_program(page, tmp_path, OWN_PROGRAM)
    run(page)
    page.get_by_role("button", name="Play").wait_for()
    page.get_by_label("Step of the program").focus()
    page.keyboard.press("End")
    page.locator(".dbg-tab-panel .dbg-row", has_text="part").first.click()
    expect(page.locator(".dbg-value")).to_contain_text("equal on all devices ×2")
    visit.check()


def test_an_example_replaces_the_run_in_progress(open_visit, tmp_path):
    visit = open_visit()
    page, _ = open_lab(visit)
    open_program(page, tmp_path, SLOW_PROGRAM)
    with page.expect_response(re.compile(r"/api/v1/recordings$")):
        run(page)
    page.get_by_role("button", name="Cancel").wait_for()
    with page.expect_request(re.compile(r"/api/v1/jobs/.+/cancel$")):
        page.locator("#dbg-example").select_option("data_parallel")
    page.wait_for_url("**/lab?recording=*")
    expect(page.get_by_text("Result of the previous run.")).to_have_count(0)
    expect(page.locator("#dbg-example")).to_have_value("data_parallel")
    visit.check()


def test_a_cancelled_program_waits_for_run_at_the_next_visit(open_visit, tmp_path):
    visit = open_visit()
    page, requests = open_lab(visit)
    open_program(page, tmp_path, SLOW_PROGRAM)
    with page.expect_response(re.compile(r"/api/v1/recordings$")):
        run(page)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    requests.clear()
    page.goto(f"{visit.url}/lab")
    expect(page.locator(".dbg-editor .cm-content")).to_contain_text("time.sleep(600)")
    expect(page.locator(".dbg-stage")).to_contain_text("Record a function step with")
    assert requests == []
    visit.take_screenshot("lab-waits")
    visit.check()


@pytest.mark.parametrize("way", ["choice", "escape", "elsewhere"])
def test_the_menu_closes(open_visit, way):
    visit = open_visit()
    page, _ = open_lab(visit)
    page.get_by_text("Share and export").click()
    choice = page.get_by_role("button", name="Recording (JSON)")
    expect(choice).to_be_visible()
    if way == "choice":
        with page.expect_download():
            choice.click()
    elif way == "escape":
        page.keyboard.press("Escape")
    else:
        page.locator(".dbg-value h2").click()
    expect(choice).to_be_hidden()


def test_on_a_narrow_screen_the_controls_are_below_the_stage(open_visit):
    visit = open_visit(viewport=NARROW)
    page, _ = open_lab(visit)
    for scroll in (0, 300):
        page.evaluate(f"scrollTo(0, {scroll})")
        stage = page.locator(".dbg-stage").bounding_box()
        dock = page.locator(".dbg-dock").bounding_box()
        assert dock["y"] >= stage["y"] + stage["height"] - 1
    visit.take_screenshot("lab-narrow-top")


def test_an_empty_mesh_field_is_the_mesh_of_the_program(open_visit):
    visit = open_visit()
    page, requests = open_lab(visit)
    page.get_by_label("Mesh", exact=True).fill("")
    replace_text(page, OWN_PROGRAM)
    run(page)
    page.wait_for_url("**/lab?recording=*")
    assert requests[-1]["mesh"] == ""
    expect(page.get_by_label("Mesh", exact=True)).to_have_value("")
    expect(page.locator(".dbg-notice")).to_have_count(0)
    page.get_by_role("tab", name="Break it").click()
    page.get_by_role("button", name=re.compile("Remove")).click()
    page.get_by_text("Broken on purpose:").wait_for()
    visit.check()


def test_typing_beside_break_it_asks_the_server_for_nothing(open_visit):
    visit = open_visit()
    page, _ = open_lab(visit)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if "edits" in request.url else None)
    page.get_by_role("tab", name="Break it").click()
    page.get_by_role("button", name=re.compile("Remove")).wait_for()
    assert len(sent) == 1
    page.locator(".dbg-editor .cm-content").focus()
    page.keyboard.type("# one, two, three")
    page.get_by_text("The program has changed: run it, then break it.").first.wait_for()
    run(page)
    page.wait_for_url("**/lab?recording=*")
    page.get_by_role("button", name=re.compile("Remove")).wait_for()
    assert len(sent) == 2
    visit.check()


def test_too_many_jobs_of_a_list_that_nobody_asked_for_are_no_error(open_visit):
    visit = open_visit()
    page, _ = open_lab(visit)
    error = {"error": {"code": "x", "message": "You already have 16 jobs.", "fix": "wait."}}
    page.route("**/api/v1/edits", lambda route: route.fulfill(status=429, json=error))
    page.get_by_role("tab", name="Break it").click()
    again = page.get_by_role("button", name="Look for places to break again")
    again.wait_for()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.unroute("**/api/v1/edits")
    again.click()
    page.get_by_role("button", name=re.compile("Remove")).wait_for()
