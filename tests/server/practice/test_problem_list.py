"""The list of problems: tracks, progress, search, filters, and where to continue."""

from __future__ import annotations

import re

import pytest
from plain_browser import add_submission

from shardlab.catalogue.tracks import load_catalogue


def titles(html):
    return re.findall(r'class="row-title" href="/practice/([\w-]+)"', html)


def test_all_problems_are_listed_in_the_order_of_their_tracks(browser):
    html = browser.read("/practice")
    assert tuple(titles(html)) == load_catalogue().slugs
    for track in load_catalogue().tracks:
        assert f">{track.title}</h2>" in html


@pytest.mark.parametrize(
    ("slug", "title", "difficulty"),
    [
        ("partition-spec-layout", "PartitionSpec Layout", "medium"),
        ("shard-map-psum", "shard_map with psum Collective", "hard"),
        ("replicated-sharding", "NamedSharding (Replicated)", "easy"),
        ("shard-map-basics", "shard_map Basics", "easy"),
        ("nnx-shard-map", "NNX shard_map Simulation", "medium"),
    ],
)
def test_the_five_seed_problems_have_their_titles_and_difficulty(browser, slug, title, difficulty):
    row = re.search(
        rf'href="/practice/{slug}">([^<]*)</a>.*?class="difficulty \w+">(\w+)<',
        browser.read("/practice"),
        re.DOTALL,
    )
    assert row.groups() == (title, difficulty)


@pytest.mark.parametrize(
    ("query", "slugs"),
    [
        ("q=shard_map_double", ["shard-map-basics"]),
        ("q=RING+attention", ["ring-attention"]),
        ("q=psum&difficulty=hard&tag=gradient", ["gradient-through-shard-map"]),
        ("tag=memory", ["bytes-on-each-chip", "will-it-fit"]),
        ("q=no+such+thing", []),
    ],
)
def test_search_and_filters_work_by_the_address_alone(browser, query, slugs):
    html = browser.read(f"/practice?{query}")
    assert titles(html)[: len(slugs)] == slugs
    if not slugs:
        assert "No problem matches" in html


def test_a_filter_by_status_follows_the_progress(browser, store):
    add_submission(store, "AC", slug="partition-spec-layout")
    add_submission(store, "WA", slug="shard-map-psum")
    assert titles(browser.read("/practice?status=solved")) == ["partition-spec-layout"]
    assert titles(browser.read("/practice?status=tried")) == ["shard-map-psum"]
    assert "replicated-sharding" in titles(browser.read("/practice?status=open"))
    assert "<strong>1</strong> of 37 solved" in browser.read("/practice")


def test_a_locked_problem_names_its_prerequisites(browser):
    html = browser.read("/practice?q=shard_map_psum")
    assert "builds on others" in html
    assert re.search(r'after <a href="/practice/shard-map-basics">shard_map Basics</a>', html)


def test_the_list_says_where_to_begin_and_where_to_continue(browser, store):
    def current():
        html = browser.read("/practice")
        match = re.search(
            r'id="continue" href="/practice/([\w-]+)">\s*<span class="eyebrow">([^<]*)<', html
        )
        # The list marks the same problem.
        rows = re.findall(r'href="/practice/([\w-]+)">[^<]*</a>\s*<span class="badge next">', html)
        assert rows == [match[1]]
        return match.groups()

    assert current() == ("partition-spec-layout", "Begin here")
    browser.post("/practice/shard-map-psum/draft", {"source": "x = 1\n"})
    assert current() == ("shard-map-psum", "Continue where you were")
    add_submission(store, "AC", slug="shard-map-psum")
    assert current()[0] == "mean-of-uneven-weights"
    assert current()[1] == "Next problem"


def test_htmx_gets_the_results_only(browser):
    response = browser.get(
        "/practice?q=psum", headers={"hx-request": "true", "hx-target": "div#problems"}
    )
    assert response.text.lstrip().startswith('<div id="problems">')
    assert "<html" not in response.text


def test_text_of_the_search_is_escaped(browser):
    html = browser.read("/practice?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script>alert" not in html
    assert browser.get("/practice?q=" + "x" * 300).status_code == 422
