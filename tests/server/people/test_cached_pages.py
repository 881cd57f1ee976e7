"""HTML that is cached for everybody never shows one person what another one sees."""

from __future__ import annotations

import re

from markupsafe import Markup
from starlette.requests import Request

from shardlab.server.html_cache import HtmlCache
from shardlab.server.page_rendering import send_part, template_environment

PROBLEM = "/practice/shard-map-psum"
PAGES = ("/practice", "/practice?difficulty=hard", PROBLEM, f"{PROBLEM}?panel=solution", "/plan")
_OWN = re.compile(r'(csrf[-_]token" (?:content|value)="|nonce=")[\w-]+')


def read(browser, path):
    """Return a page without what is of one response: CSRF token, nonce and the person's name."""
    text = _OWN.sub(r"\1", browser.get(path).text)
    return text.replace(browser.person.name, "NAME") if browser.person else text


def test_two_people_see_their_own_progress_on_the_same_pages(server):
    ada, bob = server.person("ada lovelace"), server.person("bob kahn")
    fresh = {path: read(ada, path) for path in PAGES}
    assert fresh == {path: read(bob, path) for path in PAGES}  # nobody has done anything yet
    server.submit(ada, code="AC")
    server.store(ada).save_draft("shard-map-psum", "# a secret of ada\n")
    server.store(ada).record_hint("shard-map-psum", 2)
    for _ in range(2):  # the second time from the cache, in both orders
        of_ada = {path: read(ada, path) for path in PAGES}
        assert {path: read(bob, path) for path in PAGES} == fresh
        assert "1</strong> of" in of_ada["/practice"]
        assert "0</strong> of" in fresh["/practice"]
        assert "# a secret of ada" in of_ada[PROBLEM]
        assert "One way to write it" in of_ada[f"{PROBLEM}?panel=solution"]
    server.submit(bob, code="WA")
    assert read(ada, "/practice") == of_ada["/practice"]
    assert read(bob, "/practice") not in (fresh["/practice"], of_ada["/practice"])
    assert "secret of ada" not in "".join(read(bob, path) for path in PAGES)


def test_a_visitor_after_a_person_sees_nothing_of_them(server):
    ada, visitor = server.person("ada lovelace"), server.browser()
    before = read(visitor, "/practice")
    server.submit(ada, code="AC")
    assert "Export everything" in read(ada, "/practice")
    assert read(visitor, "/practice") == before
    assert "Export everything" not in before
    assert ada.person.name not in visitor.get(PROBLEM).text


def test_each_browser_has_its_own_csrf_token_on_a_cached_page(server):
    tokens = {
        re.search(r'csrf-token" content="(\w+)', server.browser().get("/practice").text)[1]
        for _ in range(3)
    }
    assert len(tokens) == 3


def test_a_search_that_finds_nothing_takes_little_memory(server):
    ada, cache = server.person("Ada"), server.app.state.html_cache
    for slug in server.app.state.catalogue.slugs:
        server.store(ada).record_hint(slug, 1)
        server.store(ada).record_start(slug)
    for number in range(3):
        part = ada.get(f"/practice?q=none{number}", headers={"hx-target": "div#problems"})
        assert "<html" not in part.text
    assert len(cache) == 3
    # A key is not counted in the bytes of the cache, so it must be small.
    assert max(len(repr(key)) for key in cache._entries) < 1000


def test_a_part_that_is_sent_alone_has_the_nonce_of_its_response():
    part = Markup(template_environment().from_string('<a hx-nonce="{{ hx_nonce }}">').render())
    request = Request({"type": "http", "state": {"csp_nonce": "n1"}})
    assert send_part(request, part).body == b'<a hx-nonce="n1">'


def test_the_cache_is_bounded_and_drops_what_was_not_used():
    cache = HtmlCache(max_bytes=10_000)
    for number in range(50):
        cache.store(number, Markup("x" * 1000))
        cache.find(0)
        assert cache.n_bytes <= 10_000
    assert 1 < len(cache) < 10
    assert cache.find(0) is not None  # used all the time
    assert cache.find(1) is None
    assert cache.find(49) is not None
    cache.store("large", Markup("x" * 20_000))
    assert cache.find("large") is None
    assert cache.find_or_render("new", lambda: Markup("once")) == "once"
    assert cache.find_or_render("new", lambda: Markup("twice")) == "once"
