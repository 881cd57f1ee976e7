"""Everything that the server has about one person: its export, and its deletion.

Neither has a list of tables. A column `person` says whose a row is, and a foreign key to such a row
says what belongs to it; a table that is added later takes part by itself.
"""

from __future__ import annotations

import base64
import gzip
import json
import zipfile
import zlib
from typing import IO, Any

from sqlalchemy import Table, delete, select
from sqlalchemy.orm import Session

from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import (
    PersonRow,
    RateLimitRow,
    SourceRow,
    SubmissionRow,
)
from shardlab.server.database.tables import Base
from shardlab.server.people.rate_limits import person_subject
from shardlab.server.person import Person

EXPORT_FORMAT = "shardlab-account"
EXPORT_VERSION = 1
# What proves who somebody is stays on the server: an export lies about in download folders.
SECRET_COLUMNS = frozenset({"password_hash", "token_hash", "join_nonce"})


def person_tables() -> tuple[Table, ...]:
    """Return the tables whose rows belong to a person, by their column `person`."""
    return tuple(table for table in Base.metadata.sorted_tables if "person" in table.c)


def belongings(session: Session, person: int) -> dict[str, list[dict[str, Any]]]:
    """Return every row of a person, by table: their own, and those that refer to their own."""
    rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
    account = Base.metadata.tables[PersonRow.__tablename__]
    own_keys = {account.name: _select_into(session, account, account.c.id == person, rows)}
    for table in person_tables():
        own_keys[table.name] = _select_into(session, table, table.c.person == person, rows)
    # Judgements of own submissions, comments on them: rows that refer to a row of the person. They
    # may be another person's too, such as a teacher's comment; it is about this person.
    for table in Base.metadata.sorted_tables:
        for column in table.c:
            for key in column.foreign_keys:
                owner = key.column.table
                if column.name == "person" or owner.name not in own_keys:
                    continue
                keys = [row[key.column.name] for row in own_keys[owner.name]]
                if table.name == "class_member":
                    continue  # who else is in a class is not about its teacher
                for n in range(0, len(keys), 500):
                    _select_into(session, table, column.in_(keys[n : n + 500]), rows)
    sources = [row["source"] for row in own_keys.get(SubmissionRow.__tablename__, [])]
    for n in range(0, len(sources), 500):
        condition = SourceRow.__table__.c.digest.in_(sources[n : n + 500])
        _select_into(session, SourceRow.__table__, condition, rows)
    return {name: list(table_rows.values()) for name, table_rows in rows.items() if table_rows}


def _select_into(
    session: Session, table: Any, condition: Any, rows: dict[str, dict[Any, dict[str, Any]]]
) -> list[dict[str, Any]]:
    found = [dict(row._mapping) for row in session.execute(select(table).where(condition))]
    key_names = [column.name for column in table.primary_key]
    for row in found:
        rows.setdefault(table.name, {})[tuple(row[name] for name in key_names)] = row
    return found


class PersonData:
    """Exports and deletes accounts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def export(self, person: Person) -> dict[str, Any]:
        """Return everything about a person as plain data."""
        with self._database.read() as session:
            tables = belongings(session, person.id)
        return {
            "format": EXPORT_FORMAT,
            "version": EXPORT_VERSION,
            "name": person.name,
            "tables": {
                name: [_exported_row(row) for row in rows] for name, rows in sorted(tables.items())
            },
        }

    def write_zip(self, person: Person, file: IO[bytes]) -> None:
        """Write account.json, each submission as a Python file, each catalogue as a zip file."""
        data = self.export(person)
        sources = {row["digest"]: row["body"] for row in data["tables"].get("source", [])}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("account.json", json.dumps(data, indent=2, ensure_ascii=False))
            for row in data["tables"].get("submission", []):
                text = sources[row["source"]]
                source = text.encode() if isinstance(text, str) else _from_base64(text)
                name = f"submissions/{row['problem']}/{row['number']:06}-{row['kind']}.py"
                archive.writestr(name, source)
            for row in data["tables"].get("catalogue_version", []):
                name = f"catalogues/{row['catalogue']:06}/version-{row['id']:06}.zip"
                archive.writestr(name, _from_base64(row["archive"]))

    def delete(self, person: Person) -> None:
        """Delete every row of a person.

        One transaction: an account is there with everything, or it is gone with everything.
        """
        with self._database.write() as session:
            for table in reversed(person_tables()):
                session.execute(delete(table).where(table.c.person == person.id))
            # Whatever else refers to the person goes by ON DELETE CASCADE.
            session.execute(delete(PersonRow).where(PersonRow.id == person.id))
            used = select(SubmissionRow.source)
            session.execute(delete(SourceRow).where(SourceRow.digest.not_in(used)))
            suffix = f": {person_subject(person.id)}"
            session.execute(
                delete(RateLimitRow).where(RateLimitRow.subject.endswith(suffix, autoescape=True))
            )


def _exported_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _exported_value(value) for name, value in row.items() if name not in SECRET_COLUMNS
    }


def _exported_value(value: Any) -> Any:
    """Return a value as JSON has it; compressed text is text again."""
    if not isinstance(value, bytes):
        return value
    for decompress in (zlib.decompress, gzip.decompress):
        try:
            return decompress(value).decode("utf-8")
        except (zlib.error, OSError, EOFError):
            continue
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(decompress(value)).decode()}
    return {"base64": base64.b64encode(value).decode()}


def _from_base64(value: dict[str, str]) -> bytes:
    return base64.b64decode(value["base64"])
