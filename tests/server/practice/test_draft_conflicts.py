"""Two tabs of one problem: the second does not replace the text of the first without a word."""

from __future__ import annotations

import re
import threading

import pytest
from plain_browser import add_submission

URL = "/api/v1/practice/problems/shard-map-psum/draft"
PAGE = "/practice/shard-map-psum"


@pytest.fixture
def tab(browser):
    """Return a function that opens a tab: it returns the revision that the page came with."""

    def open_tab():
        return re.search(r'id="draft-revision" hidden>(\w+)<', browser.read(PAGE))[1]

    return open_tab


def save(browser, source, revision=None):
    token = re.search(r'name="csrf-token" content="(\w+)"', browser.read("/"))[1]
    headers = {"x-csrf-token": token}
    if revision is not None:
        headers["if-match"] = f'"{revision}"'
    return browser.client.put(URL, json={"source": source}, headers=headers)


def test_a_tab_that_saves_again_and_again_has_no_conflict(browser, tab):
    revision = tab()
    for source in ("x = 1\n", "x = 2\n", "x = 1\n"):
        response = save(browser, source, revision)
        assert response.status_code == 200
        revision = response.json()["revision"]
    assert tab() == revision


def test_the_second_tab_does_not_replace_the_text_of_the_first(browser, tab, store):
    first, second = tab(), tab()
    assert save(browser, "of the first tab\n", first).status_code == 200
    response = save(browser, "of the second tab\n", second)
    assert response.status_code == 412
    assert "changed in another tab" in response.json()["error"]["message"]
    assert store.load_draft("shard-map-psum").source == "of the first tab\n"


def test_a_request_without_a_revision_replaces_any_text(browser, tab, store):
    save(browser, "of a tab\n", tab())
    assert save(browser, "of a script\n").status_code == 200
    assert store.load_draft("shard-map-psum").source == "of a script\n"


def test_the_same_text_from_both_tabs_is_no_conflict(browser, tab):
    first, second = tab(), tab()
    assert save(browser, "x = 1\n", first).status_code == 200
    assert save(browser, "x = 1\n", second).status_code == 200


def test_a_submission_from_the_terminal_is_not_replaced_either(browser, tab, store):
    revision = tab()
    add_submission(store, "AC", source=b"# from the terminal\n")
    assert save(browser, "of a tab\n", revision).status_code == 412
    assert save(browser, "of a tab\n", tab()).status_code == 200


def test_of_tabs_that_save_at_the_same_moment_one_wins(browser, tab, store):
    revision = tab()
    statuses = []

    def save_text(number):
        statuses.append(save(browser, f"x = {number}\n", revision).status_code)

    threads = [threading.Thread(target=save_text, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, 412, 412, 412]


def test_without_scripts_the_second_text_becomes_the_backup(browser, tab, store):
    revision = tab()
    save(browser, "of the first tab\n", revision)
    fields = {"source": "of the second tab\n", "revision": revision}
    html = browser.post(f"{PAGE}/draft", fields).text
    assert "changed in another tab" in html
    assert store.load_draft("shard-map-psum").source == "of the first tab\n"
    browser.post(f"{PAGE}/restore", {})
    assert store.load_draft("shard-map-psum").source == "of the second tab\n"


def test_without_scripts_a_form_of_the_current_text_is_saved(browser, tab, store):
    browser.post(f"{PAGE}/draft", {"source": "x = 1\n", "revision": tab()})
    assert store.load_draft("shard-map-psum").source == "x = 1\n"
    assert 'class="message warn draft-conflict" role="alert">' not in browser.read(PAGE)
