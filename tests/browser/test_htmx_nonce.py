"""HTML that someone brings into a page sends nothing through htmx: it lacks the nonce."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

INJECTED = """
<div id="plain" hx-get="/practice?q=injected" hx-trigger="load" hx-swap="none"></div>
<div id="data" data-hx-get="/practice?q=injected" data-hx-trigger="load" data-hx-swap="none"></div>
<div id="guess" hx-nonce="guess" hx-get="/practice?q=injected" hx-trigger="load"></div>
<div id="stream" hx-sse:connect="/practice?q=injected-stream"></div>
<form id="boost" hx-boost="true" method="post" action="/practice?q=injected"></form>
"""
OWN = '<div id="own" hx-nonce="{}" hx-get="/practice?q=own" hx-trigger="load" hx-swap="none"></div>'


@pytest.fixture
def visit_with_injection(open_visit):
    """Return a visit of a problem, and the requests of htmx from a page with injected HTML."""
    visit = open_visit()
    requests: list[str] = []

    def inject(route) -> None:
        response = route.fetch()
        policy = response.headers["content-security-policy"]
        nonce = re.search(r"script-src 'self' 'nonce-([\w-]{20,})'", policy)[1]
        html = response.text()
        assert nonce in html
        extra = INJECTED + OWN.format(nonce)
        route.fulfill(response=response, body=html.replace("</main>", f"{extra}</main>"))

    def note(request) -> None:
        if "hx-request" in request.headers or "event-stream" in request.headers.get("accept", ""):
            requests.append(request.url.removeprefix(visit.url))

    visit.page.route("**/practice/shard-map-psum", inject)
    visit.page.on("request", note)
    page = visit.open("/practice/shard-map-psum")
    return page, requests


def test_injected_attributes_of_htmx_without_the_nonce_do_nothing(visit_with_injection):
    page, requests = visit_with_injection
    page.wait_for_function("!document.querySelector('#stream').hasAttribute('hx-sse:connect')")
    # The element with the nonce is the last one, and its request shows that htmx has read all.
    expect(page.locator("#own")).to_have_attribute("data-htmx-powered", "true")
    # htmx still works where the server wrote it: a tab is replaced without loading the page.
    page.locator("#tab-hints").click()
    expect(page.locator("#tab-hints")).to_have_attribute("aria-current", "true")
    assert "/practice?q=own" in requests
    assert not [path for path in requests if "injected" in path]
    for name in ("plain", "data", "guess"):
        attributes = page.locator(f"#{name}").evaluate("element => element.getAttributeNames()")
        assert attributes == ["id"]


def test_a_part_that_htmx_has_loaded_may_use_htmx(visit_with_injection):
    page, requests = visit_with_injection
    page.locator("#tab-hints").click()
    expect(page.locator("#tab-hints")).to_have_attribute("aria-current", "true")
    # This tab came with a response of its own, whose nonce is another one.
    page.locator("#tab-submissions").click()
    expect(page.locator("#tab-submissions")).to_have_attribute("aria-current", "true")
    panels = [path for path in requests if "panel=" in path]
    assert panels == [f"/practice/shard-map-psum?panel={name}" for name in ("hints", "submissions")]
