"""The page of a problem without scripts: reading, drafts, hints, solution, history."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from plain_browser import PROBLEMS, add_submission

from shardlab.catalogue.tracks import load_catalogue
from shardlab.cli import main
from shardlab.judge.submission_source import MAX_BYTES

SLUG = "shard-map-psum"
URL = f"/practice/{SLUG}"
STARTER = (PROBLEMS / "c-collectives" / SLUG / "starter.py").read_text()
SOLUTION = (PROBLEMS / "c-collectives" / SLUG / "solution.py").read_text()


def editor_text(html):
    # The first line break after the tag belongs to HTML, not to the text.
    from html import unescape

    return unescape(re.search(r"<textarea[^>]*>\n(.*?)</textarea>", html, re.DOTALL)[1])


@pytest.mark.parametrize("slug", load_catalogue().slugs)
def test_every_problem_has_a_page(browser, slug):
    problem = load_catalogue().load_problem(slug)
    html = browser.read(f"/practice/{slug}")
    assert editor_text(html) == problem.read_text("starter.py")
    assert html.count("<h1>") == 1
    for part in problem.parts:
        assert part.function in html
    # Ids are unique, so that labels, links and scripts find what they mean.
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_an_unknown_problem_is_a_page_that_does_not_exist(browser):
    response = browser.get("/practice/shard-map-sum")
    assert response.status_code == 404
    assert "Did you mean &#39;shard-map-psum&#39;?" in response.text


def test_a_draft_is_stored_and_shown_again(browser, store):
    browser.post(f"{URL}/draft", {"source": "x = 1\r\ny = 2\r\n"})
    assert store.load_draft(SLUG).source == "x = 1\ny = 2\n"
    html = browser.read(URL)
    assert editor_text(html) == "x = 1\ny = 2\n"
    assert "Draft saved" in html


def test_a_later_submission_of_the_terminal_replaces_an_older_draft(browser, store):
    browser.post(f"{URL}/draft", {"source": "x = 1\n"})
    number = add_submission(store, "WA", source=b"x = 3\n")
    html = browser.read(URL)
    assert editor_text(html) == "x = 3\n"
    assert f"As in submission {number}" in html


def test_a_solution_file_of_the_terminal_is_what_one_continues_with(browser, store, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("y = 5\n")
    store.record_start(SLUG, path)
    html = browser.read(URL)
    assert editor_text(html) == "y = 5\n"
    assert "Your file mine.py" in html


def test_a_reset_shows_the_starter_and_can_be_undone(browser):
    browser.post(f"{URL}/draft", {"source": "x = 1\n"})
    html = browser.post(f"{URL}/reset", {"source": "x = 2\n"}).text
    assert editor_text(html) == STARTER
    assert "Undo the replacement" in html
    html = browser.post(f"{URL}/restore").text
    assert editor_text(html) == "x = 2\n"
    assert "Undo the replacement" not in html
    assert browser.post(f"{URL}/restore").status_code == 404


def test_hints_are_shown_one_by_one_and_shared_with_the_terminal(browser, store, data_folder):
    html = browser.read(f"{URL}?panel=hints")
    assert "Hint 1 of 3" not in html
    html = browser.post(f"{URL}/hint").text
    assert "Hint 1 of 3" in html
    assert "Hint 2 of 3" not in html
    assert store.progress_of(SLUG).hints == 1
    shown = run_terminal(data_folder, "practice", "hint", SLUG)
    assert "Hint 2 of 3" in shown
    html = browser.read(f"{URL}?panel=hints")
    assert "Hint 2 of 3" in html
    html = browser.post(f"{URL}/hint").text
    assert "Hint 3 of 3" in html
    assert "That was the last hint" in html


def test_the_solution_is_shown_at_the_second_request(browser):
    panel = f"{URL}?panel=solution"
    assert "per_shard" not in browser.read(panel)
    html = browser.post(f"{URL}/solution").text
    assert "per_shard" not in html
    assert "You have not seen 3 hints." in html
    html = browser.post(f"{URL}/solution").text
    assert "per_shard" in html
    assert "per_shard" in browser.read(panel)


def test_a_request_in_the_terminal_counts_in_the_browser(browser, data_folder):
    run_terminal(data_folder, "practice", "solution", SLUG, exit_code=1)
    assert "per_shard" in browser.post(f"{URL}/solution").text


def test_the_solution_is_shown_after_a_pass(browser, store):
    add_submission(store, "AC")
    assert "per_shard" in browser.read(f"{URL}?panel=solution")


def test_a_guess_reveals_the_answer_and_the_reason(browser):
    html = browser.read(URL)
    assert "4 * 36" not in html  # the reason is not in the page before the guess
    html = browser.read(f"{URL}?predict-1=36,+the+sum+of+all+elements")
    assert "It is 144:" in html
    assert "4 * 36" in html
    assert "Right:" in browser.read(f"{URL}/predictions/1?predict-1=144")
    assert browser.get(f"{URL}/predictions/2").status_code == 404


def test_a_typed_number_is_a_guess_too(browser):
    html = browser.read("/practice/bytes-on-each-chip/predictions/1?predict-1=1,024")
    assert "Right:" in html
    assert "It is 1024 bytes:" in browser.read("/practice/bytes-on-each-chip?predict-1=256")


def test_layouts_are_drawn_as_pictures_of_their_own(browser):
    response = browser.get("/practice/bytes-on-each-chip/pictures/1.svg")
    assert response.headers["content-type"] == "image/svg+xml"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "bfloat16[64, 128]" in response.text
    assert browser.get("/practice/bytes-on-each-chip/pictures/2.svg").status_code == 404


def test_devices_are_drawn_step_by_step_with_a_description(browser):
    assert "Then psum over data. total, P(): every device holds 78" in browser.read(URL)
    response = browser.get(f"{URL}/pictures/1.svg")
    assert response.headers["content-type"] == "image/svg+xml"
    assert ">psum over data</text>" in response.text


# ---------------------------------------------------------------------------- run, submit, history


def test_what_is_submitted_is_stored_before_it_is_judged(browser, store):
    html = browser.post(f"{URL}/submit", {"source": "x = 1\r\n"}).text
    (submission,) = store.list_submissions(SLUG)
    assert store.load_source(submission.number) == b"x = 1\n"
    assert submission.kind == "submit"
    assert not submission.is_finished
    # The page says what was submitted and that it waits, and shows all cases that will be judged.
    assert f"Submission {submission.number}</a> · all cases" in html
    assert "The workers start" in html or "Waiting" in html
    assert "data=512, simulated" in html
    assert html.count('class="rung waiting"') == 14
    # After a reload it is still there.
    assert 'class="rung waiting"' in browser.read(URL)


def test_a_run_is_of_the_examples(browser, store):
    html = browser.post(f"{URL}/run", {"source": "x = 1\n"}).text
    (submission,) = store.list_submissions(SLUG)
    assert submission.kind == "run"
    assert "· examples ·" in html
    assert "data=512" not in html


def test_one_submission_is_queued_once(browser, app, store):
    browser.post(f"{URL}/submit", {"source": "x = 1\n"})
    (submission,) = store.list_submissions(SLUG)
    browser.post(f"{URL}/submissions/{submission.number}/again")
    browser.post(f"{URL}/submissions/{submission.number}/again")
    assert app.state.jobs.queue.queue_length() == 1


def test_a_cancelled_submission_stays_stored_and_can_be_judged(browser, app, store):
    browser.post(f"{URL}/submit", {"source": "x = 1\n"})
    (submission,) = store.list_submissions(SLUG)
    html = browser.post(f"{URL}/submissions/{submission.number}/cancel").text
    assert "Not judged" in html
    assert "It was cancelled." in html
    assert app.state.jobs.queue.queue_length() == 0
    browser.post(f"{URL}/submissions/{submission.number}/again")
    assert app.state.jobs.queue.queue_length() == 1


def test_what_is_judged_is_not_judged_again(browser, store):
    number = add_submission(store, "WA")
    assert browser.post(f"{URL}/submissions/{number}/again").status_code == 409


def test_a_failure_of_the_judge_can_be_judged_again(browser, app, store):
    number = add_submission(store, "IE")
    browser.post(f"{URL}/submissions/{number}/again")
    assert app.state.jobs.queue.queue_length() == 1


def test_a_text_that_is_no_python_is_judged_at_once(browser, store):
    html = browser.post(f"{URL}/submit", {"source": "   \n"}).text
    (submission,) = store.list_submissions(SLUG)
    assert submission.code == "CE"
    assert "the submission cannot be loaded" in html


@pytest.mark.parametrize("n_bytes", [MAX_BYTES + 1, 600_000, 5_000_000])
def test_a_text_that_is_too_large_is_refused_and_not_stored(browser, store, n_bytes):
    response = browser.post(f"{URL}/submit", {"source": "a" * n_bytes}, follow=False)
    assert response.status_code == 413
    assert store.list_submissions(SLUG) == ()


def test_a_form_without_the_token_changes_nothing(browser, store):
    browser.read(URL)
    response = browser.client.post(f"{URL}/submit", data={"source": "x = 1\n"})
    assert response.status_code == 403
    assert store.list_submissions(SLUG) == ()


def test_the_history_shows_each_submission_with_its_difference(browser, store):
    first = add_submission(store, "WA", source=b"a = 1\nb = 2\n")
    second = add_submission(store, "AC", source=b"a = 1\nb = 3\n", kind="submit")
    html = browser.read(f"{URL}?panel=submissions")
    assert html.index(f"submissions/{second}") < html.index(f"submissions/{first}")
    html = browser.read(f"{URL}/submissions/{second}")
    assert re.search(r'<tr class="removed">.*?b = 2', html, re.DOTALL)
    assert re.search(r'<tr class="added">.*?b = 3', html, re.DOTALL)
    assert f"Earlier: {first}" in html
    assert "The same text" in browser.read(f"{URL}/submissions/{second}?compare={second}")


def test_a_submission_can_be_put_into_the_editor_and_downloaded(browser, store):
    number = add_submission(store, "WA", source=b"a = 1\n")
    browser.post(f"{URL}/draft", {"source": "b = 2\n"})
    html = browser.post(f"{URL}/load", {"submission": str(number)}).text
    assert editor_text(html) == "a = 1\n"
    assert editor_text(browser.post(f"{URL}/restore").text) == "b = 2\n"
    assert browser.get(f"{URL}/submissions/{number}/source.py").content == b"a = 1\n"


@pytest.mark.parametrize("number", ["999", "0", "-1", "9" * 30])
def test_a_submission_that_does_not_exist_is_not_found(browser, store, number):
    assert browser.get(f"{URL}/submissions/{number}").status_code in (404, 422)


def test_a_submission_of_another_problem_is_not_found(browser, store):
    number = add_submission(store, "WA", slug="shard-map-basics")
    assert browser.get(f"{URL}/submissions/{number}").status_code == 404


def test_bytes_that_are_no_text_are_shown_all_the_same(browser, store):
    number = add_submission(store, "CE", source=b"\xff\xfe<b>\n")
    html = browser.read(f"{URL}/submissions/{number}")
    assert "&lt;" in html
    assert "<b>" not in html


# --------------------------------------------------------------------------------- the same store


def run_terminal(data_folder, *arguments, exit_code=0):
    environment = {"SHARDLAB_DATA": str(data_folder)}
    result = CliRunner().invoke(main, list(arguments), env=environment)
    assert result.exit_code == exit_code, result.output
    return result.output


def test_a_submission_in_the_browser_is_in_the_terminals_history(browser, data_folder):
    browser.post(f"{URL}/submit", {"source": "x = 1\n"})
    output = run_terminal(data_folder, "practice", "history", SLUG)
    assert "not judged" in output
    assert run_terminal(data_folder, "practice", "history", "--source", "1") == "x = 1\n"


def test_the_export_has_every_submission(browser, store):
    import io
    import zipfile

    number = add_submission(store, "WA", source=b"a = 1\n")
    data = browser.get("/practice/export.json").json()
    assert [row["number"] for row in data["submissions"]] == [number]
    archive = zipfile.ZipFile(io.BytesIO(browser.get("/practice/export.zip").content))
    assert archive.read(f"{SLUG}/{number:05}-submit-WA.py") == b"a = 1\n"
