"""PgQueuer's tables and statements, with names that no environment variable changes."""

from __future__ import annotations

from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment, QueryQueueBuilder
from pgqueuer.domain.settings import DBSettings, Durability


class _Settings(DBSettings):
    """PgQueuer's settings, from here alone: it would read the environment of the process."""

    @classmethod
    def settings_customise_sources(cls, *_: object, **sources: object) -> tuple[object, ...]:  # type: ignore[override]
        return (sources["init_settings"],)


_SETTINGS = _Settings(durability=Durability.durable)


def install_query() -> str:
    """Return the statements that create PgQueuer's tables."""
    return QueryBuilderEnvironment(_SETTINGS).build_install_query()


def pgqueuer_statements() -> QueryQueueBuilder:
    """Return PgQueuer's own statements for its queue."""
    return QueryQueueBuilder(_SETTINGS)
