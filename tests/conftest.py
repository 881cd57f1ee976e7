"""Settings of every test process."""

from __future__ import annotations

import os

import pytest

from server.postgresql_cluster import PostgresqlCluster, explain_missing_postgresql

# Each program is compiled to run once or twice, so what it costs is compiling it. Without LLVM's
# expensive passes a result changes by no more than the order of a sum.
_FAST_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if "--xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FAST_COMPILE}".strip()


# First: pytest-xdist 3.8 reads the groups in the same hook, and would otherwise do so before.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that share a fixture of their module in one process.

    Such a fixture starts a server, a pool of sandboxes or eight devices: with pytest's workers it
    would be made once in each of them (`--dist loadgroup`, tools/run_tests.py).
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is not None:
            continue
        fixtures = getattr(item, "_fixtureinfo", None)
        definitions = fixtures.name2fixturedefs.values() if fixtures is not None else ()
        if any(versions[-1].scope == "module" for versions in definitions):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long byte string by its argument: pytest-xdist wants equal names in every process.

    A zip file has the time at which it was made.
    """
    return argname if isinstance(val, bytes) and len(val) > 40 else None


@pytest.fixture(scope="session")
def postgresql_cluster():
    """Yield a PostgreSQL server; without one the test is skipped, or fails with `CI` set."""
    reason = explain_missing_postgresql()
    if reason and os.environ.get("CI"):
        pytest.fail(f"CI needs PostgreSQL: {reason}")
    if reason:
        pytest.skip(reason)
    cluster = PostgresqlCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def postgresql_template(postgresql_cluster, tmp_path_factory):
    """Return the name of a migrated database; to copy it is faster than to migrate each time."""
    from shardlab.server.database.engine import open_database

    url = postgresql_cluster.new_database()
    open_database(tmp_path_factory.mktemp("template"), url).close()
    return url.rpartition("/")[2]


@pytest.fixture
def postgresql_url(postgresql_cluster, postgresql_template):
    """Yield the URL of a migrated PostgreSQL database of this test alone."""
    url = postgresql_cluster.new_database(postgresql_template)
    yield url
    postgresql_cluster.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request):
    """Return what `open_database` takes: empty for SQLite, or the URL of a PostgreSQL database."""
    return "" if request.param == "sqlite" else request.getfixturevalue("postgresql_url")


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database_url(request):
    """Yield the same for a database without tables."""
    if request.param == "sqlite":
        yield ""
        return
    cluster = request.getfixturevalue("postgresql_cluster")
    url = cluster.new_database()
    yield url
    cluster.drop_database(url)
