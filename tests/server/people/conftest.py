"""A server with accounts, and browsers of several people."""

from __future__ import annotations

import shutil

import pytest
from people_server import PeopleServer

from shardlab.server.database.engine import DATABASE_FILE, open_database


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """Return the file of a migrated database; to copy it is faster than to migrate each time."""
    folder = tmp_path_factory.mktemp("database")
    open_database(folder).close()
    return folder / DATABASE_FILE


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def server(request, tmp_path, empty_database):
    if request.param == "sqlite":
        shutil.copy(empty_database, tmp_path)
        server = PeopleServer(tmp_path)
    else:
        url = request.getfixturevalue("postgresql_url")
        server = PeopleServer(tmp_path, database_url=url)
    yield server
    server.close()
