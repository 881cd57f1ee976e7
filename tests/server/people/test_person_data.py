"""Export has everything of a person, and deletion removes everything: checked in every table."""

from __future__ import annotations

import gzip
import io
import json
import zipfile

import pytest
from people_server import PASSWORD
from sqlalchemy import func, insert, select

from shardlab.server.database.people_tables import SourceRow
from shardlab.server.database.tables import Base
from shardlab.server.people.person_data import SECRET_COLUMNS, belongings, person_tables
from shardlab.server.people.rate_limits import SUBMISSIONS, person_subject


def value_of(column, person, number):
    """Return a value for a column that no test sets otherwise."""
    if column.name == "person":
        return person
    kind = column.type.python_type
    if kind is str:
        return f"{column.name} of {person}, {number}"[: getattr(column.type, "length", None) or 99]
    content = gzip.compress(f'{{"person": {person}}}'.encode())
    return {int: number, float: 1.5, bool: False, bytes: content}[kind]


def fill_every_table(server, browser, teacher):
    """Give a person rows in every table that has a column for one."""
    store = server.store(browser)
    number = server.submit(browser, code="WA")
    store.save_draft("ring", "x = 1")
    store.record_hint("ring", 2)
    class_id = server.make_class(teacher, browser)
    server.people.classes.add_comment(number, browser.person, "mine")
    server.people.classes.add_comment(number, teacher.person, "about you")
    server.people.api_tokens.create(browser.person, "script", can_submit=True)
    server.people.limits.count(SUBMISSIONS, person_subject(browser.person.id))
    with server.database.write() as session:
        for table in person_tables():
            count = select(func.count()).select_from(table)
            if not session.scalar(count.where(table.c.person == browser.person.id)):
                keys = [c for c in table.c if not (c.primary_key and c.type.python_type is int)]
                keys += [c for c in table.c if c.primary_key and c.name == "person"]
                keys = [c for c in keys if not (c.nullable and c.foreign_keys)]
                values = {c.name: value_of(c, browser.person.id, 1) for c in keys}
                session.execute(insert(table).values(values))
    return class_id


@pytest.fixture
def filled(server):
    teacher = server.person("Tess", "teacher")
    ada, bob = server.person("Ada"), server.person("Bob")
    fill_every_table(server, ada, teacher)
    fill_every_table(server, bob, teacher)
    return server, ada, bob, teacher


def row_counts(server):
    with server.database.read() as session:
        return {
            table.name: session.scalar(select(func.count()).select_from(table))
            for table in Base.metadata.sorted_tables
        }


def test_the_test_fills_every_table_of_people(filled):
    server, ada, _, _ = filled
    with server.database.read() as session:
        tables = belongings(session, ada.person.id)
    assert {table.name for table in person_tables()} <= set(tables)
    assert {"judgement", "source", "person"} <= set(tables)


def test_an_export_has_every_row_and_no_secret(filled):
    server, ada, _, _ = filled
    response = ada.get("/account/export.zip")
    assert response.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        data = json.loads(archive.read("account.json"))
        sources = [archive.read(name) for name in archive.namelist() if name.endswith(".py")]
    with server.database.read() as session:
        tables = belongings(session, ada.person.id)
    assert set(data["tables"]) == set(tables)
    for name, rows in tables.items():
        assert len(data["tables"][name]) == len(rows)
        expected = set(rows[0]) - SECRET_COLUMNS
        assert set(data["tables"][name][0]) == expected
    assert b"# of Ada\n" in sources
    (judgement,) = data["tables"]["judgement"]
    assert json.loads(judgement["body"])["problem"] == "shard-map-psum"
    assert {row["text"] for row in data["tables"]["comment"]} == {"mine", "about you"}
    text = json.dumps(data)
    assert "argon2" not in text
    assert "# of Bob" not in text
    assert ada.get("/api/v1/account/export").json()["tables"] == data["tables"]


def test_a_deletion_removes_every_row_of_the_person_and_nothing_else(filled):
    server, ada, bob, _ = filled
    person = ada.person.id
    with server.database.read() as session:
        bobs = belongings(session, bob.person.id)
    wrong = ada.post("/account/delete", {"current_password": "wrong password"})
    assert wrong.status_code == 422
    assert server.people.accounts.find("Ada") is not None
    response = ada.post("/account/delete", {"current_password": PASSWORD})
    assert (response.status_code, response.headers["location"]) == (303, "/")

    with server.database.read() as session:
        assert belongings(session, person) == {}
        assert belongings(session, bob.person.id) == bobs
        # Every column that refers to a person, whatever it is called, and every text.
        for table in Base.metadata.sorted_tables:
            for column in table.c:
                refers = any(key.column.table.name == "person" for key in column.foreign_keys)
                if refers or column.name == "person":
                    rows = session.execute(select(table).where(column == person)).all()
                    assert rows == [], table.name
        subjects = session.execute(select(Base.metadata.tables["rate_limit"])).all()
        assert not any(f"person {person}" in row.subject for row in subjects)
    assert ada.get("/account").status_code == 303
    assert server.browser().sign_in("Ada").status_code == 422
    assert bob.get("/account").status_code == 200


def test_a_source_that_two_people_submitted_stays_until_both_are_gone(server):
    ada, bob = server.person("Ada"), server.person("Bob")
    for browser in (ada, bob):
        server.store(browser).add_submission("ring", 1, b"same\n", kind="submit", seed=1)
    server.people.delete_account(ada.person)
    assert row_counts(server)["source"] == 1
    server.people.delete_account(bob.person)
    with server.database.read() as session:
        assert session.scalars(select(SourceRow)).all() == []


def test_the_id_of_a_deleted_person_is_never_given_again(server):
    ada = server.person("Ada")
    server.people.delete_account(ada.person)
    assert server.person("Bob").person.id > ada.person.id


def test_the_rows_of_a_deleted_person_leave_the_file(server):
    # SQLite leaves deleted bytes in free pages unless it is told to overwrite them.
    ada = server.person("Ada")
    server.store(ada).save_draft("ring", "a very private remark " * 400)
    server.people.delete_account(ada.person)
    server.database.close()
    for path in server.settings.data_folder.iterdir():
        assert b"a very private remark" not in path.read_bytes(), path.name
