"""Every route of the application, tried by everybody who should not, and by those who may."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass

import pytest
from catalogue_files import small_zip
from people_server import HOST, PeopleServer, TestClient, routes_of

from shardlab.recording.recording import Recording
from shardlab.server.access import ACCESS, RESOURCE_CHECKS, catalogue_path
from shardlab.server.application import create_app
from shardlab.server.catalogue_archive import read_archive
from shardlab.server.catalogue_keys import catalogue_key
from shardlab.server.database.engine import DATABASE_FILE
from shardlab.server.database.people_tables import PasskeyRow
from shardlab.server.database.tables import JobRow, RecordingRow
from shardlab.server.person_practice_store import PersonPracticeStore
from shardlab.server.settings import ServerSettings

# Whose the things in the paths are. "member" is Ada: the submission, job, session ... are hers.
ALLOWED_BY_RESOURCE = {
    "class": {"member", "other member", "teacher", "admin"},
    "class teacher": {"teacher", "admin"},
    "class membership": {"member", "other member"},
    "class submission": {"member", "teacher", "admin"},
    "class member or self": {"member", "teacher", "admin"},
    "catalogue owner": {"teacher", "admin"},
    "catalogue reader": {"member", "other member", "teacher", "admin"},
    "catalogue reader's submission": {"member"},
    "submission": {"member"},
    "job": {"member"},
    "recording": {"member"},
}
ROLES = {
    "anonymous": None,
    "stranger": "learner",
    "member of another class": "learner",
    "teacher of another class": "teacher",
    "other member": "learner",
    "member": "learner",
    "teacher": "teacher",
    "admin": "admin",
    "read token of the member": "learner",
    "submit token of the member": "learner",
}
# Rows that belong to one person without being a resource of the table: the services look for the
# row of this person only.
# What is not there, also for those who may look: no picture, no draft, no earlier submission.
EMPTY = {
    "GET /practice/{slug}/pictures/{number}.svg",
    "GET /practice/{slug}/predictions/{number}",
    "GET /practice/{slug}/submissions/{number}/counterexample.svg",
    "GET /practice/{slug}/submissions/{number}/debug/{job_id}",
    "GET /practice/{slug}/submissions/{number}/replay/{job_id}",
    "POST /practice/{slug}/load",
    "POST /practice/{slug}/restore",
    "GET /api/v1/practice/problems/{slug}/draft",
}
EMPTY |= {
    f"{method} {catalogue_path(path)}" for method, path in (key.split(" ", 1) for key in EMPTY)
}
OWN_ROWS = {
    "session_id": "member",
    "token_id": "member",
    "comment_id": "member",
    "passkey_id": "member",
}


@dataclass(frozen=True)
class Actor:
    """Somebody who sends requests."""

    name: str
    headers: dict[str, str]


class World:
    """A server with two classes and everybody who may want to look into them."""

    def __init__(self, folder):
        self.server = server = PeopleServer(folder)
        self.client = TestClient(server.app, base_url=HOST, follow_redirects=False)
        browsers = {
            name: server.person(name.title().replace(" Of ", " "), role)
            for name, role in ROLES.items()
            if role and "token" not in name
        }
        ada, teacher = browsers["member"], browsers["teacher"]
        class_id = server.make_class(teacher, ada, browsers["other member"])
        server.make_class(browsers["teacher of another class"], browsers["member of another class"])
        number = server.submit(ada)
        comment = server.people.classes.add_comment(number, ada.person, "mine")
        tokens = {
            name: server.people.api_tokens.create(ada.person, name, can_submit=can_submit)
            for name, can_submit in (("read", False), ("submit", True))
        }
        self.add_job_and_recording(ada.person.id)
        self.actors = {"anonymous": self.browser_actor("anonymous", server.browser())}
        for name, browser in browsers.items():
            self.actors[name] = self.browser_actor(name, browser)
        for scope, token in tokens.items():
            name = f"{scope} token of the member"
            self.actors[name] = Actor(name, {"authorization": f"Bearer {token}"})
        session = server.people.sessions.list_sessions(ada.person)[0]
        self.values = {
            "class_id": class_id,
            "number": number,
            "comment_id": comment,
            "person_id": ada.person.id,
            "session_id": session.id,
            "token_id": server.people.api_tokens.list_tokens(ada.person)[0].id,
            "passkey_id": self.add_passkey(ada.person.id),
            "job_id": "job1",
            "recording_id": "rec1",
            "token": server.people.classes.join_token(class_id),
            "slug": "shard-map-psum",
        }
        self.add_catalogue(teacher, ada, class_id)

    def add_catalogue(self, teacher, ada, class_id):
        """Give the class a catalogue, with a problem of the same name and a submission to it."""
        catalogues = self.server.people.catalogues
        archive = read_archive(small_zip(self.values["slug"]))
        version = catalogues.create(teacher.person, "Mine", archive)
        catalogues.finish_audit(version.id, [])
        catalogues.assign(class_id, version.catalogue)
        folder, key = self.server.settings.data_folder, catalogue_key(version.catalogue)
        store = PersonPracticeStore(self.server.database, folder, ada.person.id, key, version.id)
        slug = self.values["slug"]
        number = store.add_submission(slug, 1, b"x = 1\n", kind="submit", seed=5)
        self.values |= {"catalogue_id": version.catalogue, "version_id": version.id}
        self.catalogue_values = {**self.values, "number": number}

    def fill(self, path):
        """Return a path with the values of this world."""
        is_practice = "/catalogues/{catalogue_id}/practice" in path
        values = self.catalogue_values if is_practice else self.values
        for name, value in values.items():
            path = path.replace(f"{{{name}}}", str(value))
        return path

    def add_job_and_recording(self, person):
        recording = Recording(title="t", mesh=(("data", 2),), steps=(), values=())
        body = gzip.compress(recording.to_json_text().encode())
        with self.server.database.write() as session:
            session.add(
                JobRow(
                    id="job1",
                    person=person,
                    kind="record",
                    payload="{}",
                    state="done",
                    created=time.time(),
                    finished=time.time(),
                )
            )
            session.add(
                RecordingRow(
                    id="rec1", person=person, title="t", created=1.0, source="x", body=body
                )
            )

    def add_passkey(self, person):
        row = PasskeyRow(
            person=person,
            label="laptop",
            credential_id=b"id",
            credential_data=b"key",
            user_handle=b"handle",
            rp_id="localhost",
            sign_count=0,
            is_backed_up=False,
            created=1.0,
        )
        with self.server.database.write() as session:
            session.add(row)
        return row.id

    def browser_actor(self, name, browser):
        token = browser.csrf_token()
        cookies = "; ".join(f"{key}={value}" for key, value in browser.client.cookies.items())
        return Actor(name, {"cookie": cookies, "x-csrf-token": token})

    def send(self, actor, method, path):
        self.client.cookies.clear()
        options = {"json": {}} if path.startswith("/api/") and method != "GET" else {}
        return self.client.request(method, path, headers=actor.headers, **options)

    def snapshot(self):
        """Return a copy of the database."""
        copy = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(self.server.settings.data_folder / DATABASE_FILE)) as source:
            source.backup(copy)
        return copy

    def restore(self, copy):
        with closing(sqlite3.connect(self.server.settings.data_folder / DATABASE_FILE)) as target:
            copy.backup(target)


@pytest.fixture(scope="module")
def world(tmp_path_factory, empty_database):
    folder = tmp_path_factory.mktemp("world")
    shutil.copy(empty_database, folder)
    world = World(folder)
    yield world
    world.server.close()


@pytest.fixture(scope="module")
def all_routes(world, tmp_path_factory):
    return sorted(routes_of(world.server.app))


def test_every_route_is_in_the_table_and_every_row_of_the_table_is_a_route(world, tmp_path):
    server_routes = {f"{method} {path}" for method, path in routes_of(world.server.app)}
    local = create_app(ServerSettings(data_folder=tmp_path, n_workers=0))
    local_routes = {f"{method} {path}" for method, path in routes_of(local)}
    local.state.database.close()
    assert server_routes - set(ACCESS) == set(), "give the new route its row in access.ACCESS"
    assert local_routes <= server_routes
    assert set(ACCESS) - server_routes - {"GET /api/v1/openapi.json"} == set()


def test_every_resource_has_a_check_and_is_in_this_test():
    assert set(RESOURCE_CHECKS) == set(ALLOWED_BY_RESOURCE)
    assert {access.resource for access in ACCESS.values()} - {None} <= set(RESOURCE_CHECKS)


def is_allowed(key, access, actor):
    """Return whether an actor may call a route, from what the issue says about each of them."""
    role = ROLES[actor]
    is_script = "token" in actor
    if is_script:
        needed = {"read": True, "submit": actor.startswith("submit"), "browser": False}
        if not needed[access.scope]:
            return False
        actor = "member"
    if access.who == "everyone":
        return True
    if access.who == "monitor":  # no account can read the metrics, and this client is not local
        return False
    if role is None or (access.who == "teacher" and role == "learner"):
        return False
    if access.who == "admin" and role != "admin":
        return False
    for parameter, owner in OWN_ROWS.items():
        if f"{{{parameter}}}" in key:
            return actor == owner
    return access.resource is None or actor in ALLOWED_BY_RESOURCE[access.resource]


def is_refused(response):
    """Return whether a response says no: sign in, not you, or nothing here."""
    location = response.headers.get("location", "")
    is_sent_away = response.status_code == 303 and location.startswith("/sign-in")
    return response.status_code in (401, 403, 404) or is_sent_away


# What a request may change although it is refused: the last use of a token, a rate limit.
_USE = ('INSERT INTO "rate_limit"', 'INSERT INTO "api_token"')


@pytest.mark.parametrize("actor", ROLES)
def test_everybody_gets_what_is_theirs_and_nothing_else(world, all_routes, actor):
    wrong = []
    copy = world.snapshot()
    before = set(copy.iterdump())
    for method, path in all_routes:
        key = f"{method} {path}"
        filled = world.fill(path)
        assert "{" not in filled, f"give {path} a value in World.values"
        response = world.send(world.actors[actor], method, filled)
        expected = is_allowed(key, ACCESS[key], actor)
        is_empty = response.status_code == 404 and expected and key in EMPTY
        if is_refused(response) == expected and not is_empty:
            wrong.append(f"{key}: {response.status_code} {response.text[:200]}")
        if expected and method != "GET":
            world.restore(copy)
    # All refused requests together have changed nothing.
    after = world.snapshot()
    changes = {line for line in before ^ set(after.iterdump()) if not line.startswith(_USE)}
    world.restore(copy)
    copy.close()
    after.close()
    assert wrong == []
    assert changes == set()


def test_a_route_without_a_row_is_refused(tmp_path):
    server = PeopleServer(tmp_path)

    @server.app.get("/forgotten")
    def forgotten():
        return "secrets"

    assert server.person("Root", "admin").get("/forgotten").status_code == 403
    assert server.browser().get("/forgotten").status_code == 403
    server.close()


def test_a_token_is_revoked_at_once(server):
    browser = server.person("Ada")
    token = server.people.api_tokens.create(browser.person, "script", can_submit=False)
    headers = {"authorization": f"Bearer {token}"}
    client = server.browser().client
    assert client.get("/api/v1/account", headers=headers).json()["name"] == "Ada"
    (row,) = browser.get("/api/v1/account/tokens").json()
    assert token not in str(row)
    assert browser.post(f"/account/tokens/{row['id']}/revoke").status_code == 303
    response = client.get("/api/v1/account", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


def test_a_new_token_is_shown_once(server):
    browser = server.person("Ada")
    page = browser.post("/account/tokens", {"label": "nightly", "can_submit": "true"})
    assert page.status_code == 201
    token = page.text.split('class="secret"><code>')[1].split("<")[0]
    assert token.startswith("shardlab_")
    assert token not in browser.get("/account").text
    assert "read and submit" in browser.get("/account").text


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic dTpw", "Bearer x", "Bearer shardlab_é", "token"]
)
def test_other_authorization_headers_are_refused(server, header):
    browser = server.person("Ada")
    response = browser.get("/api/v1/account", headers={"authorization": header.encode("latin-1")})
    assert response.status_code == 401


def test_local_mode_has_no_accounts_and_needs_no_sign_in(tmp_path):
    app = create_app(ServerSettings(data_folder=tmp_path, n_workers=0))
    client = TestClient(app, base_url=HOST, follow_redirects=False)
    for path in ("/sign-in", "/sign-up", "/account", "/classes", "/admin", "/api/v1/account"):
        assert client.get(path).status_code == 404
    assert client.get("/").status_code == 200
    assert client.get("/api/v1/recordings").json() == []
    headers = {"authorization": "Bearer shardlab_x"}  # not the token of this data folder
    assert client.post("/api/v1/recordings", json={}, headers=headers).status_code == 401
    assert client.post("/api/v1/recordings", json={}).status_code == 403  # no CSRF token
    assert "Sign" not in client.get("/").text
    app.state.database.close()


def test_the_schema_says_which_operations_a_token_can_call(server):
    schema = server.browser().get("/api/v1/openapi.json").json()
    schemes = schema["components"]["securitySchemes"]
    assert schemes["token"]["scheme"] == "bearer"
    assert schemes["session"]["name"] == "shardlab_session"
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            access = ACCESS[f"{method.upper()} {path}"]
            assert ({"token": []} in operation["security"]) == (access.scope != "browser")
            assert ({} in operation["security"]) == (access.who == "everyone")


def test_an_admin_resets_a_password_by_the_api(server):
    admin, learner = server.person("Root", "admin"), server.person("Forgetful")
    path = f"/api/v1/admin/people/{learner.person.id}/reset-password"
    assert learner.send_json("POST", path).status_code == 403
    response = admin.send_json("POST", path)
    assert response.status_code == 200
    password = response.json()["password"]
    assert learner.get("/api/v1/account").status_code == 401  # the sessions have ended
    person = server.people.accounts.sign_in("Forgetful", password, address="192.0.2.1")
    assert server.people.accounts.must_change_password(person)
    own = admin.send_json("POST", f"/api/v1/admin/people/{admin.person.id}/reset-password")
    assert own.status_code == 422
    assert admin.get("/api/v1/account").status_code == 200
