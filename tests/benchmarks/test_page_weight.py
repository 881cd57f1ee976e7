"""Every page is small enough: below 300 kB compressed, with all files that it loads."""

from __future__ import annotations

import pytest
from benchmarks.page_weight import page_weight
from benchmarks.web_reading import PAGES

from server.page_server import page_client


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with page_client(tmp_path_factory.mktemp("data")) as client:
        yield client


@pytest.mark.parametrize("page", PAGES)
def test_a_page_with_its_files_is_below_300_kb_compressed(client, page):
    def fetch(url: str) -> bytes:
        response = client.get(url)
        assert response.status_code == 200, url
        return response.content

    weight = page_weight(str(client.base_url.join(page)), fetch)
    # The fonts and the common scripts alone have 60 kB: less means that links were not followed.
    assert 60_000 < weight < 300_000
