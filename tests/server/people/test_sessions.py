"""Sessions: cookies, rotation, expiry, CSRF tokens, where the browser goes after the sign-in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from people_server import HOST, PASSWORD, Browser, PeopleServer
from sqlalchemy import select

from shardlab.server.database.people_tables import ApiTokenRow, SessionRow
from shardlab.server.people.sessions import (
    ABSOLUTE_SECONDS,
    IDLE_SECONDS,
    Sessions,
    describe_browser,
)
from shardlab.server.people.tokens import hash_token
from shardlab.server.session_cookie import local_path

COOKIE = "shardlab_session"


def cookie_of(response, name=COOKIE):
    return next(
        header
        for header in response.headers.get_list("set-cookie")
        if header.startswith(f"{name}=")
    )


def test_the_session_cookie_is_http_only_and_same_site(server):
    server.people.accounts.create("Ada", PASSWORD, role="learner")
    flags = cookie_of(server.browser().sign_in("Ada")).lower()
    assert "; httponly" in flags
    assert "; samesite=lax" in flags
    assert "; path=/" in flags
    assert "secure" not in flags  # plain HTTP on loopback
    assert "domain" not in flags


def test_behind_https_cookies_are_secure_and_of_this_host_only(tmp_path):
    server = PeopleServer(tmp_path, is_https=True, public_hosts=("lab.example.org",))
    server.people.accounts.create("Ada", PASSWORD, role="learner")
    browser = server.browser(base_url="https://lab.example.org")
    response = browser.get("/sign-in")
    assert "; Secure" in cookie_of(response, "__Host-shardlab_browser")
    assert "max-age=" in response.headers["strict-transport-security"]
    response = browser.sign_in("Ada")
    flags = cookie_of(response, "__Host-shardlab_session")
    assert "; Secure" in flags
    assert "; Path=/" in flags
    assert browser.get("/account").status_code == 200
    server.close()


def test_only_the_hash_of_a_token_is_stored(server):
    browser = server.person("Ada")
    token = browser.client.cookies[COOKIE]
    api_token = server.people.api_tokens.create(browser.person, "script", can_submit=False)
    with server.database.read() as session:
        assert session.scalars(select(SessionRow.token_hash)).all() == [hash_token(token)]
        assert session.scalars(select(ApiTokenRow.token_hash)).all() == [hash_token(api_token)]
    for path in Path(server.settings.data_folder).iterdir():
        assert token.encode() not in path.read_bytes()
        assert api_token.encode() not in path.read_bytes()


def test_a_sign_in_replaces_the_session(server):
    browser = server.person("Ada")
    before = browser.client.cookies[COOKIE]
    assert browser.sign_in("Ada").status_code == 303
    after = browser.client.cookies[COOKIE]
    assert before != after
    assert server.people.sessions.find(before) is None
    assert server.people.sessions.find(after).person.name == "Ada"


def test_a_session_that_somebody_planted_is_not_the_one_after_the_sign_in(server):
    server.people.accounts.create("Ada", PASSWORD, role="learner")
    browser = server.browser()
    browser.client.cookies.set(COOKIE, "planted-by-an-attacker", domain="localhost.local")
    browser.sign_in("Ada")
    thief = server.browser()
    thief.client.cookies.set(COOKIE, "planted-by-an-attacker", domain="localhost.local")
    assert thief.get("/account").status_code == 303
    assert browser.get("/account").status_code == 200


def test_a_sign_out_ends_the_session_on_the_server(server):
    browser = server.person("Ada")
    token = browser.client.cookies[COOKIE]
    response = browser.post("/sign-out")
    assert response.headers["location"] == "/"
    assert "max-age=0" in cookie_of(response).lower()
    assert server.people.sessions.find(token) is None


def test_a_session_ends_when_idle_and_at_the_latest_after_its_time(server):
    now = 1_800_000_000.0
    sessions = Sessions(server.database, clock=lambda: now)
    person = server.people.accounts.create("Ada", PASSWORD, role="learner")
    token = sessions.start(person, user_agent="")
    now += IDLE_SECONDS - 10
    assert sessions.find(token).person == person  # which counts as use
    now += IDLE_SECONDS - 10
    assert sessions.find(token) is not None
    now += IDLE_SECONDS + 10
    assert sessions.find(token) is None

    token, start = sessions.start(person, user_agent=""), now
    while now < start + ABSOLUTE_SECONDS - IDLE_SECONDS:
        now += IDLE_SECONDS / 2
        assert sessions.find(token) is not None
    now = start + ABSOLUTE_SECONDS + 1
    assert sessions.find(token) is None
    assert sessions.list_sessions(person) == ()


def test_a_changed_password_ends_every_other_session_and_replaces_this_one(server):
    browser, other = server.person("Ada"), server.browser()
    other.sign_in("Ada")
    before = browser.client.cookies[COOKIE]
    fields = {"current_password": PASSWORD, "password": "another otter umbrella"}
    assert browser.post("/account/password", fields).status_code == 303
    assert other.get("/account").status_code == 303
    assert server.people.sessions.find(before) is None
    assert browser.get("/account").status_code == 200
    assert server.browser().sign_in("Ada").status_code == 422
    assert server.browser().sign_in("Ada", "another otter umbrella").status_code == 303


def test_sessions_are_listed_and_ended_one_by_one(server):
    browser, other = server.person("Ada"), server.browser()
    other.sign_in("Ada")
    sessions = browser.get("/api/v1/account/sessions").json()
    assert len(sessions) == 2
    own = server.people.sessions.find(browser.client.cookies[COOKIE]).id
    (other_id,) = [session["id"] for session in sessions if session["id"] != own]
    assert f"/account/sessions/{other_id}/end" in browser.get("/account").text
    assert browser.post(f"/account/sessions/{other_id}/end").status_code == 303
    assert other.get("/account").status_code == 303
    assert browser.get("/account").status_code == 200


@pytest.mark.parametrize(
    ("user_agent", "expected"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0", "Firefox on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) Safari/604.1", "Safari on iOS"),
        ("<script>" * 50, "A browser"),
    ],
)
def test_a_browser_is_described_in_words_of_ours(user_agent, expected):
    assert describe_browser(user_agent) == expected


# -------------------------------------------------------------------------------------- CSRF

CHANGES = ("/account/password", "/account/delete", "/account/tokens", "/sign-out", "/classes")


@pytest.mark.parametrize("path", CHANGES)
def test_a_form_without_the_token_of_its_own_session_is_refused(server, path):
    browser, other = server.person("Ada", "teacher"), server.person("Bob", "teacher")
    missing = browser.client.post(path, data={"title": "x"})
    assert missing.status_code == 403
    assert browser.post(path, token="0" * 64).status_code == 403
    assert browser.post(path, token="é").status_code == 403
    assert browser.post(path, token=other.csrf_token()).status_code == 403
    assert server.people.accounts.find("Ada") is not None


def test_a_token_from_before_the_sign_in_is_worth_nothing_after_it(server):
    server.people.accounts.create("Ada", PASSWORD, role="learner")
    browser = server.browser()
    before = browser.csrf_token()
    browser.sign_in("Ada")
    assert browser.csrf_token() != before
    assert browser.post("/sign-out", token=before).status_code == 403
    # Nor that of an earlier session of the same browser.
    earlier = browser.csrf_token()
    browser.sign_in("Ada")
    assert browser.post("/sign-out", token=earlier).status_code == 403


def test_a_sign_in_needs_a_token_too(server):
    # Otherwise another site could sign a person in as somebody else, and read what they type.
    server.people.accounts.create("Ada", PASSWORD, role="learner")
    response = server.browser().client.post("/sign-in", data={"name": "Ada", "password": PASSWORD})
    assert response.status_code == 403
    assert "shardlab_session" not in str(response.headers.get_list("set-cookie"))


def test_json_needs_the_token_as_a_header(server):
    browser = server.person("Ada", "teacher")
    body = {"title": "Class"}
    assert browser.client.post("/api/v1/classes", json=body).status_code == 403
    # A form of another site can send JSON as plain text.
    text = browser.client.post(
        "/api/v1/classes", content='{"title": "x"}', headers={"content-type": "text/plain"}
    )
    assert text.status_code == 403
    wrong = {"x-csrf-token": "0" * 64}
    assert browser.client.post("/api/v1/classes", json=body, headers=wrong).status_code == 403
    assert browser.send_json("POST", "/api/v1/classes", body).status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_change_that_comes_from_another_site_is_refused_even_with_the_token(server, headers):
    browser = server.person("Ada")
    assert browser.post("/sign-out", headers=headers).status_code == 403
    assert browser.post("/sign-out", headers={"origin": HOST}).status_code == 303


def test_only_the_configured_hosts_are_served(tmp_path):
    server = PeopleServer(tmp_path, public_hosts=("lab.example.org",))
    for url, status in (
        ("http://lab.example.org", 200),
        ("http://localhost:8765", 200),
        ("http://evil.example", 421),
        ("http://localhost:9", 421),
    ):
        assert Browser(server.app, base_url=url).get("/").status_code == status
    server.close()


def test_a_request_with_a_token_never_has_the_rights_of_a_cookie(server):
    browser = server.person("Ada")
    headers = {"authorization": "Bearer shardlab_wrong"}
    assert browser.get("/api/v1/account", headers=headers).status_code == 401
    # Only a valid token replaces the CSRF token; an invalid one is refused before that.
    assert browser.client.post("/sign-out", headers=headers).status_code == 401
    assert browser.client.post("/sign-out").status_code == 403
    assert browser.get("/account").status_code == 200


# ------------------------------------------------------------------------- after the sign-in


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        "javascript:alert(1)",
        "evil",
        "",
        "/" + "a" * 1000,
        "/practice\r\nset-cookie: x=1",
    ],
)
def test_after_the_sign_in_the_browser_stays_on_this_server(server, target):
    assert local_path(target) == "/practice"
    server.people.accounts.create("Ada", PASSWORD, role="learner")
    browser = server.browser()
    response = browser.sign_in("Ada", next_path=target)
    assert response.headers["location"] == "/practice"
    # Signed in already: the same.
    response = browser.get("/sign-in", params={"next": target})
    assert response.headers["location"] == "/practice"


def test_after_the_sign_in_the_browser_goes_where_it_wanted_to(server):
    server.people.accounts.create("Ada", PASSWORD, role="learner")
    browser = server.browser()
    location = browser.get("/classes/7?x=1").headers["location"]
    assert location == "/sign-in?next=%2Fclasses%2F7%3Fx%3D1"
    page = browser.get(location).text
    assert re.search(r'name="next" value="([^"]+)"', page)[1] == "/classes/7?x=1"
    assert browser.sign_in("Ada", next_path="/classes/7?x=1").headers["location"] == (
        "/classes/7?x=1"
    )
