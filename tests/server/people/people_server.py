"""A server with accounts in this process, and clients that behave as browsers do."""

from __future__ import annotations

import re
from dataclasses import replace

from fastapi.routing import APIRoute
from starlette.routing import Mount

from server.asgi_client import TestClient
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.server.application import create_app
from shardlab.server.people.passwords import PasswordHashing
from shardlab.server.people.services import open_people
from shardlab.server.person_practice_store import PersonPracticeStore
from shardlab.server.settings import ServerSettings

# Routes that FastAPI and Starlette add themselves: the schema and the static files are public.
OWN_CHECK = {"/api/v1/openapi.json", "/static"}
SECRET = "mQ0s9vYk3-tZrW8xLcP2bHdN5gJfUeAq7TiRoKwX"
PASSWORD = "violet otter umbrella"
HOST = "http://localhost:8765"
_CSRF = re.compile(r'name="csrf-token" content="([0-9a-f]+)"')


class PeopleServer:
    """The application with accounts, without workers."""

    def __init__(self, folder, **changes):
        settings = ServerSettings(data_folder=folder, mode="accounts", secret=SECRET, n_workers=0)
        self.settings = replace(settings, **changes)
        self.app = create_app(self.settings)
        # Cheap hashes: the tests are not about how long a guess takes.
        hashing = PasswordHashing(time_cost=1, memory_kib=64)
        self.people = open_people(self.settings, self.app.state.database, hashing)
        for name in ("accounts", "sessions", "api_tokens", "passkeys", "classes", "limits", "data"):
            object.__setattr__(self.app.state.people, name, getattr(self.people, name))
        self.database = self.app.state.database

    def close(self):
        self.database.close()

    def browser(self, **options):
        """Return a browser that nobody has signed in with."""
        return Browser(self.app, **options)

    def person(self, name, role="learner"):
        """Create an account; return its browser, signed in."""
        person = self.people.accounts.create(name, PASSWORD, role=role)
        browser = self.browser()
        response = browser.sign_in(name)
        assert response.status_code == 303, response.text
        browser.person = person
        return browser

    def store(self, browser):
        """Return the practice store of a person."""
        return PersonPracticeStore(self.database, self.settings.data_folder, browser.person.id)

    def submit(self, browser, problem="shard-map-psum", code="AC", kind="submit"):
        """Store a submission with its judgement; return its number."""
        store = self.store(browser)
        source = f"# of {browser.person.name}\n".encode()
        number = store.add_submission(problem, 1, source, kind=kind, seed=5)
        if code:
            store.save_judgement(number, judgement(code, kind))
        return number

    def make_class(self, teacher, *members, title="Class"):
        """Create a class with members; return its id."""
        class_id = self.people.classes.create(teacher.person, title)
        token = self.people.classes.join_token(class_id)
        for member in members:
            self.people.classes.join(token, member.person)
        return class_id


def judgement(code="AC", kind="submit"):
    case = CaseResult(
        name="data=2",
        part=1,
        mesh="data=2",
        seed=7,
        verdicts=(Verdict(code=code, what="The values are off by 2."),),
    )
    return Judgement(
        problem="shard-map-psum", content_version=1, level="A", seed=5, kind=kind, cases=(case,)
    )


class Browser:
    """Keeps cookies, and sends the CSRF token that pages of the server show it."""

    def __init__(self, app, *, raises=True, base_url=HOST):
        self.client = TestClient(
            app, base_url=base_url, follow_redirects=False, raise_server_exceptions=raises
        )
        self.person = None

    def get(self, path, **options):
        return self.client.get(path, **options)

    def csrf_token(self):
        """Return the token as a page shows it."""
        # Who must choose a password of their own is sent from every page to that of the account.
        response = self.client.get("/")
        path = response.headers.get("location", "/")
        return _CSRF.search(response.text if path == "/" else self.client.get(path).text)[1]

    def post(self, path, data=None, *, token=None, **options):
        """Send a form."""
        fields = {"csrf_token": self.csrf_token() if token is None else token, **(data or {})}
        return self.client.post(path, data=fields, **options)

    def send_json(self, method, path, body=None, **options):
        """Send what a script of a page sends."""
        headers = {"x-csrf-token": self.csrf_token(), **options.pop("headers", {})}
        return self.client.request(method, path, json=body, headers=headers, **options)

    def sign_in(self, name, password=PASSWORD, next_path="/"):
        fields = {"name": name, "password": password, "next": next_path}
        return self.post("/sign-in", fields)

    def sign_up(self, name, password=PASSWORD, next_path="/"):
        return self.post("/sign-up", {"name": name, "password": password, "next": next_path})


def routes_of(router):
    """Yield each method and path of an application or a router."""
    for route in router.routes:
        included = getattr(route, "original_router", None)  # FastAPI 0.16x nests routers
        if included is not None:
            yield from routes_of(included)
        elif isinstance(route, APIRoute):
            for method in route.methods - {"HEAD"}:
                yield method, route.path_format
        else:
            assert route.path in OWN_CHECK, f"{route.path} is checked by nobody"
            assert isinstance(route, Mount) or route.path.endswith("openapi.json")
