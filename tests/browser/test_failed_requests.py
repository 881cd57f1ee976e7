"""What a person sees when the server refuses a request, restarts, or does not answer."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from server.lab_server import LabServer
from shardlab.catalogue.tracks import load_catalogue

LIMIT_MS = 90_000  # ends a hang
SLUG = "shard-map-basics"
EDITOR = ".dbg-editor .cm-content"
PROBLEM = f"/practice/{SLUG}"
SLEEPING = "import time\ntime.sleep(600)\n"
PROGRAM = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def step(x):
    return jax.shard_map(
        lambda y: jax.lax.psum(y, "data"), in_specs=P("data"), out_specs=P()
    )(x)


def step_args():
    return (jnp.arange(8.0),)
"""


PRINTING = """
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


@partial(jax.shard_map, in_specs=P("data"), out_specs=P())
def step(x):
    jax.debug.print("shard sum {s}", s=jnp.sum(x))
    return jax.lax.psum(x, "data")


def step_args():
    return (jnp.arange(8.0),)
"""
# What a clipboard with the text does.
PASTE = """(element, text) => {
    const data = new DataTransfer();
    data.setData("text/plain", text);
    element.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true}));
}"""


class RestartableServer:
    """A server that keeps its port and its data over a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lab = LabServer(folder)
        self.url = self.lab.url

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def stop(self) -> None:
        self.lab.stop()

    def kill(self) -> None:
        self.lab.stop(signal.SIGKILL)

    def start(self) -> None:
        self.lab = LabServer(self.folder, port=self.port)


@pytest.fixture
def server(tmp_path):
    server = RestartableServer(tmp_path)
    yield server
    with contextlib.suppress(ValueError):  # the test has stopped it
        server.stop()


def write_text(page: Page, editor: Locator, text: str) -> None:
    editor.focus()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(text)


def write_solution(page: Page, text: str) -> None:
    write_text(page, page.get_by_role("textbox", name=re.compile(r"^solution\.py")), text)


def set_solution(page: Page, text: str) -> None:
    """Replace the text at once: Chromium types a long one for minutes."""
    script = "(area, text) => { area.value = text; area.dispatchEvent(new Event('input')); }"
    page.locator("#source").evaluate(script, text)


def write_program(page: Page, text: str) -> None:
    write_text(page, page.locator(EDITOR), text)


def replace_program(page: Page, text: str) -> None:
    page.locator(EDITOR).focus()
    page.keyboard.press("Control+a")
    if text:
        page.locator(EDITOR).evaluate(PASTE, text)
    else:
        page.keyboard.press("Delete")


def solution() -> str:
    problem = load_catalogue().load_problem(SLUG)
    return (problem.folder / "solution.py").read_text("utf-8")


# ------------------------------------------------------------------------------------ practice


def test_a_submission_after_a_restart_of_the_server_is_judged(open_visit, server):
    visit = open_visit(url=server.url)
    page = visit.open(PROBLEM)
    server.stop()
    server.start()
    write_solution(page, solution())
    page.get_by_role("button", name="Submit all cases").click()
    expect(page.locator("#result").get_by_text("Solved").first).to_be_visible(timeout=LIMIT_MS)


def test_a_token_that_is_not_valid_leaves_the_result_pane_usable(open_visit, lab_url):
    visit = open_visit()
    page = visit.open(PROBLEM)
    token = page.locator("#editor-form [name=csrf_token]")
    valid = token.input_value()
    token.evaluate("field => field.value = 'x'.repeat(64)")
    write_solution(page, solution() + "\n# another text\n")
    page.get_by_role("button", name="Submit all cases").click()
    result = page.locator("#result")
    expect(result.get_by_role("alert")).to_contain_text("The page is out of date")
    expect(result.get_by_role("alert")).to_contain_text("still in the editor")
    expect(page.locator("#draft-status")).not_to_have_text("As submitted")
    expect(page.locator("h1")).to_have_count(1)  # no page within the page
    visit.take_screenshot("practice-403")
    token.evaluate("(field, value) => field.value = value", valid)
    page.get_by_role("button", name="Submit all cases").click()
    expect(result.get_by_text("Solved").first).to_be_visible(timeout=LIMIT_MS)
    expect(result.get_by_role("alert")).to_be_empty()


def test_a_text_that_is_too_large_is_refused_beside_the_last_result(open_visit):
    visit = open_visit()
    page = visit.open(PROBLEM)
    set_solution(page, "x = 1\n" + "# a long comment\n" * 40_000)
    page.get_by_role("button", name="Run examples").click()
    result = page.locator("#result")
    expect(result.get_by_role("alert")).to_contain_text("is too long")
    expect(page.locator("#draft-status")).not_to_have_text("As submitted")
    set_solution(page, "def f(:\n")
    page.get_by_role("button", name="Run examples").click()
    expect(result.locator(".verdict-head.bad")).to_be_visible(timeout=LIMIT_MS)


def test_a_full_queue_refuses_a_submission_and_stores_nothing(open_visit, server):
    url = f"/api/v1/practice/problems/{SLUG}/submissions"
    for number in range(16):
        body = {"source": f"{SLEEPING}# {number}\n"}
        assert server.lab.client.post(url, json=body).status_code == 202
    visit = open_visit(url=server.url)
    page = visit.open(PROBLEM)
    head = page.locator("#result .verdict-head")
    expect(head).to_be_visible()
    write_solution(page, solution())
    page.get_by_role("button", name="Submit all cases").click()
    alert = page.locator("#result").get_by_role("alert")
    expect(alert).to_contain_text("You already have 16 jobs")
    expect(head).to_be_visible()  # what is under way stays
    expect(page.locator("#draft-status")).not_to_have_text("As submitted")
    visit.take_screenshot("practice-429")
    assert len(server.lab.client.get("/api/v1/practice/submissions").json()) == 16


def test_submit_says_that_the_server_does_not_answer(open_visit, server):
    visit = open_visit(url=server.url)
    page = visit.open(PROBLEM)
    write_solution(page, solution())
    server.kill()
    page.get_by_role("button", name="Submit all cases").click()
    alert = page.locator("#result").get_by_role("alert")
    expect(alert).to_contain_text("The server does not answer. Your text is still in the editor.")
    visit.take_screenshot("practice-down")
    page.get_by_role("link", name=re.compile("^Hints")).click()
    expect(page.locator("#panel-error")).to_contain_text("The server does not answer.")
    server.start()
    page.get_by_role("button", name="Submit all cases").click()
    expect(page.locator("#result").get_by_text("Solved").first).to_be_visible(timeout=LIMIT_MS)
    # The draft that could not be saved is sent again, before or after the submission.
    expect(page.locator("#draft-status")).to_have_text(re.compile("As submitted|Draft saved"))


def test_a_second_click_on_submit_is_no_second_submission(open_visit, server):
    visit = open_visit(url=server.url)
    page = visit.open(PROBLEM)
    write_solution(page, f"import time\ntime.sleep(2)\n{solution()}")
    button = page.locator("#submit")
    button.dblclick()
    expect(page.locator("#result[data-active]")).to_be_visible()
    button.click()
    page.keyboard.press("Control+Shift+Enter")
    expect(page.locator("#result").get_by_text("Solved").first).to_be_visible(timeout=LIMIT_MS)
    expect(button).to_be_enabled()
    assert len(server.lab.client.get("/api/v1/practice/submissions").json()) == 1


# ----------------------------------------------------------------------------------------- lab


def test_what_is_typed_in_the_lab_survives_a_restart_and_a_reload(open_visit, server):
    visit = open_visit(url=server.url)
    page = visit.open("/lab")
    expect(page.get_by_role("button", name="Pin as A")).to_be_enabled(timeout=LIMIT_MS)
    assert "recording=" in page.url
    server.stop()
    write_program(page, PROGRAM)
    page.get_by_label("Mesh", exact=True).fill("data=2")
    page.get_by_label("Function").fill("step")
    page.get_by_label("Chip").select_option("tpu-v4")
    server.start()
    page.reload()
    notice = page.get_by_text("Your changes from before the reload are in the editor.")
    expect(notice).to_be_visible(timeout=LIMIT_MS)
    expect(page.get_by_label("Mesh", exact=True)).to_have_value("data=2")
    expect(page.get_by_label("Function")).to_have_value("step")
    expect(page.get_by_label("Chip")).to_have_value("tpu-v4")
    expect(page.locator(EDITOR)).to_contain_text("step_args")
    visit.take_screenshot("lab-restored")
    page.get_by_role("button", name="Back to the recording").click()
    expect(notice).to_be_hidden()
    expect(page.get_by_role("button", name="Pin as A")).to_be_enabled()


def test_a_lab_page_runs_a_program_after_a_restart_without_a_reload(open_visit, server):
    visit = open_visit(url=server.url)
    page = visit.open("/lab")
    expect(page.get_by_role("button", name="Pin as A")).to_be_enabled(timeout=LIMIT_MS)
    server.stop()
    write_program(page, PROGRAM)
    page.get_by_role("button", name="Run", exact=True).click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The server does not answer.")
    expect(page.get_by_text("This run failed.")).to_be_visible()
    visit.take_screenshot("lab-down")
    server.start()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("button", name="Pin as A")).to_be_enabled(timeout=LIMIT_MS)
    expect(alert).to_be_hidden()


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("", "The program is empty."),
        ("x = 1\n" + "# a long comment\n" * 20_000, "at most 262,144 characters"),
        ("import os\nos._exit(3)\n", "The process ended by itself (exit code 3)."),
    ],
)
def test_a_run_that_fails_says_why_and_that_the_stage_is_older(open_visit, program, sentence):
    visit = open_visit()
    page = visit.open("/lab")
    expect(page.get_by_role("button", name="Pin as A")).to_be_enabled(timeout=LIMIT_MS)
    replace_program(page, program)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text(sentence, timeout=LIMIT_MS)
    expect(page.get_by_text("This run failed.")).to_be_visible()
    expect(page.get_by_text("press Run")).to_be_hidden()
    visit.take_screenshot("lab-run-failed")
    write_program(page, PROGRAM)
    expect(page.get_by_text("The program has changed since; press Run.")).to_be_visible()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("picture.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00", "picture.png is not a text file."),
        ("run.json.gz", b"\x1f\x8b no gzip", "run.json.gz cannot be read: it is damaged"),
        ("run.json", b"{", "run.json cannot be read: it is damaged"),
        ("run.json", b"null", "run.json is not a recording of shardlab."),
    ],
)
def test_a_file_that_cannot_be_opened_is_named_and_changes_nothing(
    open_visit, tmp_path, name, content, sentence
):
    visit = open_visit()
    page = visit.open("/lab")
    expect(page.get_by_role("button", name="Pin as A")).to_be_enabled(timeout=LIMIT_MS)
    (tmp_path / name).write_bytes(content)
    page.locator("#dbg-file").set_input_files(tmp_path / name)
    expect(page.get_by_role("alert")).to_contain_text(sentence)
    expect(page.get_by_role("button", name="Pin as A")).to_be_enabled()  # the same program
    visit.check()


def test_what_each_device_prints_has_a_tab_of_its_own(open_visit):
    visit = open_visit()
    page = visit.open("/lab")
    expect(page.get_by_role("button", name="Pin as A")).to_be_enabled(timeout=LIMIT_MS)
    replace_program(page, PRINTING)
    page.get_by_role("button", name="Run", exact=True).click()
    tab = page.get_by_role("tab", name=re.compile("^Printed"))
    expect(tab).to_be_visible(timeout=LIMIT_MS)
    tab.click()
    panel = page.get_by_role("tabpanel")
    expect(panel).to_contain_text("[data=0] shard sum 1.0")
    expect(panel).to_contain_text("[data=3] shard sum 13.0")
    visit.take_screenshot("lab-printed")
