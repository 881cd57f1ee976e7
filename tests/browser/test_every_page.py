"""Every page: wide and narrow, light and dark, without scripts, accessible, on loopback alone."""

from __future__ import annotations

import pytest

from browser.conftest import SCREENS, WIDE

PAGES = {"home": "/", "layout": "/layout", "plan": "/plan"}


@pytest.mark.parametrize(("viewport", "scheme"), SCREENS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_screen_and_has_no_serious_fault(open_visit, name, viewport, scheme):
    visit = open_visit(viewport=viewport, scheme=scheme)
    page = visit.open(PAGES[name])
    page.wait_for_load_state("networkidle")
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0, "the page scrolls sideways"
    assert visit.find_accessibility_faults() == []
    size = "wide" if viewport == WIDE else "narrow"
    visit.take_screenshot(f"{name}-{size}-{scheme}")
    visit.check()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_reads_without_scripts(open_visit, name):
    visit = open_visit(scripts=False)
    page = visit.open(PAGES[name])
    assert page.locator("h1").first.is_visible()
    assert page.get_by_role("navigation").is_visible()
    visit.check()
