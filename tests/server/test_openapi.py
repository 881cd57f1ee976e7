"""Requests made from the OpenAPI schema: no server error, and every response is as declared.

Anonymous, with a script's token, and signed in as a teacher and as an admin. The examples are the
same in every run.
"""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import delete

from server.people.catalogue_files import small_zip
from server.people.people_server import SECRET, PeopleServer, routes_of
from shardlab.server.catalogue_archive import read_archive
from shardlab.server.database.people_tables import RateLimitRow
from shardlab.server.request_guard import csrf_token

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SEARCH = settings(
    max_examples=5,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    # The Host that Schemathesis sends, and its ASGI client.
    server = PeopleServer(
        tmp_path_factory.mktemp("openapi"), public_hosts=("localhost", "testserver")
    )
    yield server
    server.close()


class World:
    """People of a server, and something of theirs for every id in a path."""

    def __init__(self, server):
        self.server = server
        browsers = {name: server.person(name, name) for name in ("teacher", "admin")}
        teacher, learner = browsers["teacher"], server.person("learner")
        self.people = {name: browser.person for name, browser in browsers.items()}
        self.learner = learner.person
        self.token = server.people.api_tokens.create(teacher.person, "script", can_submit=True)
        self.values = {
            "slug": "shard-map-psum",
            "number": server.submit(learner),
            "person_id": learner.person.id,
        }

    def add_class(self):
        """Give the paths a class and a catalogue that no earlier request has deleted.

        Rate limits are forgotten.
        """
        people = self.server.people
        class_id = people.classes.create(self.people["teacher"], "Class")
        token = people.classes.join_token(class_id)
        people.classes.join(token, self.learner)
        archive = read_archive(small_zip(self.values["slug"]))
        version = people.catalogues.create(self.people["teacher"], "Mine", archive)
        people.catalogues.finish_audit(version.id, [])
        people.catalogues.assign(class_id, version.catalogue)
        self.values |= {"class_id": class_id, "token": token}
        self.values |= {"catalogue_id": version.catalogue, "version_id": version.id}
        with self.server.database.write() as session:
            session.execute(delete(RateLimitRow))

    def headers(self, actor):
        """Return the headers of an actor; a browser has a new session: requests can end it."""
        if actor not in self.people:
            return {"Authorization": f"Bearer {self.token}"} if actor == "token" else {}
        session = self.server.people.sessions.start(self.people[actor], user_agent="")
        return {
            "cookie": f"shardlab_browser=b; shardlab_session={session}",
            "x-csrf-token": csrf_token(SECRET.encode(), "b", session),
        }


@pytest.fixture(scope="module")
def world(server):
    return World(server)


@pytest.fixture(scope="module")
def api_schema(server):
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", server.app)


# Operations that answer at least one of the requests with success.
N_ANSWERED = {"anonymous": 3, "token": 20, "teacher": 30, "admin": 30}


def operations_of(api_schema):
    """Return every operation of the schema by method and path; those that delete come last."""
    operations = [result.ok() for result in api_schema.get_all_operations()]
    operations.sort(key=lambda item: item.method == "delete")
    return {f"{item.method.upper()} {item.path}": item for item in operations}


def send_examples(operation, world, actor):
    """Send requests of one operation, check the responses, and return their status codes."""
    statuses = []
    headers = world.headers(actor)

    @SEARCH
    @given(case=operation.as_strategy())
    def send(case):
        if len(statuses) % 2:  # every other request is about something that exists
            for name in world.values.keys() & case.path_parameters.keys():
                case.path_parameters[name] = world.values[name]
        response = case.call_and_validate(headers=headers, checks=CHECKS)
        statuses.append(response.status_code)

    send()
    return statuses


@pytest.mark.parametrize("actor", N_ANSWERED)
def test_every_operation_answers_as_the_schema_says(api_schema, world, actor):
    failures, answered = [], []
    world.add_class()
    for key, operation in operations_of(api_schema).items():
        try:
            statuses = send_examples(operation, world, actor)
        except Exception as error:
            failures.append(f"{key}: {error}")
        else:
            answered += [key] if min(statuses) < 300 else []
    assert not failures, "\n\n".join(failures)
    # The requests arrive: operations that need no drawn id succeed.
    assert len(answered) >= N_ANSWERED[actor], answered


def test_the_schema_lists_every_route_of_the_api(server, api_schema):
    routes = {f"{method} {path}" for method, path in routes_of(server.app) if "/api/" in path}
    assert set(operations_of(api_schema)) == routes
