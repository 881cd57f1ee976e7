"""A server with accounts, and browsers of several people."""

from __future__ import annotations

import pytest
from people_server import PeopleServer


@pytest.fixture
def server(tmp_path):
    server = PeopleServer(tmp_path)
    yield server
    server.close()
