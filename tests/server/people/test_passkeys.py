"""Passkeys: added, used and removed by their person alone; everything else is refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile

import pytest
from people_server import HOST, PASSWORD, PeopleServer
from software_authenticator import (
    BACKED_UP,
    BACKUP_ELIGIBLE,
    USER_PRESENT,
    USER_VERIFIED,
    VERIFIED,
    SoftwareAuthenticator,
    from_base64,
    to_base64,
)
from sqlalchemy import func, select

from shardlab.server.database.people_tables import PasskeyChallengeRow, PasskeyRow
from shardlab.server.people.passkeys import (
    CHALLENGE_SECONDS,
    MAX_PASSKEYS,
    OLD_CHALLENGE,
    UNUSABLE_PASSKEY,
    WRONG_PASSKEY,
    Passkeys,
)
from shardlab.server.people.rate_limits import PASSKEY_CHALLENGES, SIGN_IN_ADDRESS
from shardlab.server.people.refusals import Refusal
from shardlab.server.people.relying_party import relying_party
from shardlab.server.settings import ServerSettings

PASSKEYS = "/api/v1/account/passkeys"
SIGN_IN = "/api/v1/sign-in/passkey"


def start_adding(browser, password=PASSWORD):
    body = {"current_password": password}
    return browser.send_json("POST", f"{PASSKEYS}/challenge", body)


def add_passkey(browser, authenticator=None, **changes):
    """Add a passkey; return its authenticator and the response."""
    authenticator = authenticator or SoftwareAuthenticator(HOST)
    body = authenticator.create(start_adding(browser).json(), **changes)
    return authenticator, browser.send_json("POST", PASSKEYS, body)


def start_sign_in(browser):
    response = browser.send_json("POST", f"{SIGN_IN}/challenge")
    assert response.status_code == 200, response.text
    return response.json()


def sign_in(browser, authenticator, **changes):
    body = authenticator.sign(start_sign_in(browser), **changes)
    return browser.send_json("POST", SIGN_IN, body)


def message_of(response):
    return response.json()["error"]["message"]


def name_of(browser):
    """Return who is signed in."""
    response = browser.get("/api/v1/account")
    return response.json()["name"] if response.status_code == 200 else None


def set_clock(server, clock):
    passkeys = Passkeys(server.database, server.people.limits, b"secret", clock)
    object.__setattr__(server.app.state.people, "passkeys", passkeys)


@pytest.mark.parametrize("algorithm", [-7, -8], ids=["ES256", "EdDSA"])
def test_a_passkey_is_added_and_signs_in_without_a_name(server, algorithm):
    ada = server.person("Ada")
    authenticator = SoftwareAuthenticator(HOST, algorithm=algorithm)
    _, response = add_passkey(ada, authenticator)
    assert response.status_code == 201, response.text
    (passkey,) = ada.get(PASSKEYS).json()
    assert (passkey["label"], passkey["host"], passkey["last_used"]) == (
        "laptop",
        "localhost",
        None,
    )

    browser = server.browser()
    response = sign_in(browser, authenticator)
    assert response.status_code == 200, response.text
    assert response.json() == {"next": "/practice"}
    assert name_of(browser) == "Ada"
    assert ada.get(PASSKEYS).json()[0]["last_used"] is not None
    assert "laptop" in ada.get("/account").text


def test_a_sign_in_starts_a_new_session_in_a_safe_cookie(server):
    ada = server.person("Ada")
    authenticator, _ = add_passkey(ada)
    before = ada.client.cookies["shardlab_session"]
    response = sign_in(ada, authenticator)
    assert response.status_code == 200
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    assert ada.client.cookies["shardlab_session"] != before
    assert server.people.sessions.find(before) is None


def test_after_the_sign_in_the_browser_stays_on_this_server(server):
    authenticator, _ = add_passkey(server.person("Ada"))
    browser = server.browser()
    for target, expected in (("/classes", "/classes"), ("//evil.example/", "/practice")):
        body = authenticator.sign(start_sign_in(browser))
        response = browser.send_json("POST", SIGN_IN, {**body, "next": target})
        assert response.json() == {"next": expected}


# --------------------------------------------------------------------------------- refusals

# What an authenticator would never send for this server, or must not have done.
WRONG = {
    "another origin": {"origin": "http://localhost:9999"},
    "a subdomain": {"origin": "http://evil.localhost:8765"},
    "HTTPS where there is none": {"origin": "https://localhost:8765"},
    "another host name": {"rp_id": "evil.example"},
    "a frame of another site": {"crossOrigin": True},
    "no user verification": {"flags": USER_PRESENT},
    "nobody present": {"flags": USER_VERIFIED},
    "another challenge": {"challenge": to_base64(b"x" * 32)},
    "no challenge": {"challenge": ""},
    "another kind of request": {"type": "payment.get"},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_a_sign_in_is_refused(server, changes):
    authenticator, _ = add_passkey(server.person("Ada"))
    browser = server.browser()
    response = sign_in(browser, authenticator, **changes)
    assert response.status_code == 422
    expected = OLD_CHALLENGE if "challenge" in changes else WRONG_PASSKEY
    assert message_of(response) == expected
    assert "shardlab_session" not in browser.client.cookies
    assert sign_in(browser, authenticator).status_code == 200  # the passkey itself is fine


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_adding_is_refused(server, changes):
    ada = server.person("Ada")
    _, response = add_passkey(ada, **changes)
    assert response.status_code == 422
    expected = OLD_CHALLENGE if "challenge" in changes else UNUSABLE_PASSKEY
    assert message_of(response) == expected
    assert ada.get(PASSKEYS).json() == []


def test_a_challenge_is_used_once(server):
    ada = server.person("Ada")
    authenticator = SoftwareAuthenticator(HOST)
    body = authenticator.create(start_adding(ada).json())
    assert ada.send_json("POST", PASSKEYS, body).status_code == 201
    assert message_of(ada.send_json("POST", PASSKEYS, body)) == OLD_CHALLENGE

    browser = server.browser()
    signed = authenticator.sign(start_sign_in(browser))
    assert browser.send_json("POST", SIGN_IN, signed).status_code == 200
    browser.client.cookies.pop("shardlab_session")
    assert message_of(browser.send_json("POST", SIGN_IN, signed)) == OLD_CHALLENGE
    assert name_of(browser) is None


def test_a_refused_request_has_used_its_challenge_too(server):
    authenticator, _ = add_passkey(server.person("Ada"))
    browser = server.browser()
    options = start_sign_in(browser)
    wrong = authenticator.sign(options, flags=USER_PRESENT)
    assert message_of(browser.send_json("POST", SIGN_IN, wrong)) == WRONG_PASSKEY
    right = authenticator.sign(options)
    assert message_of(browser.send_json("POST", SIGN_IN, right)) == OLD_CHALLENGE


def test_a_challenge_expires_and_is_deleted(server):
    now = 1_800_000_000.0
    set_clock(server, lambda: now)
    ada = server.person("Ada")
    authenticator, _ = add_passkey(ada)
    browser = server.browser()
    options, adding = start_sign_in(browser), start_adding(ada).json()
    now += CHALLENGE_SECONDS + 1
    response = browser.send_json("POST", SIGN_IN, authenticator.sign(options))
    assert message_of(response) == OLD_CHALLENGE
    body = SoftwareAuthenticator(HOST).create(adding)
    assert message_of(ada.send_json("POST", PASSKEYS, body)) == OLD_CHALLENGE
    for _ in range(3):
        start_sign_in(browser)
    now += CHALLENGE_SECONDS + 1
    start_sign_in(browser)
    with server.database.read() as session:
        assert session.scalar(select(func.count()).select_from(PasskeyChallengeRow)) == 1


def test_a_challenge_belongs_to_one_browser_session_and_purpose(server):
    ada = server.person("Ada")
    authenticator, _ = add_passkey(ada)
    first, second = server.browser(), server.browser()
    signed = authenticator.sign(start_sign_in(first))
    assert message_of(second.send_json("POST", SIGN_IN, signed)) == OLD_CHALLENGE

    # Signed in after the challenge was issued: another session in the same browser.
    signed = authenticator.sign(start_sign_in(first))
    first.sign_in("Ada")
    assert message_of(first.send_json("POST", SIGN_IN, signed)) == OLD_CHALLENGE

    # A challenge to add a passkey signs nobody in, and the other way round.
    signed = authenticator.sign(start_adding(ada).json())
    assert message_of(ada.send_json("POST", SIGN_IN, signed)) == OLD_CHALLENGE
    options = {**start_sign_in(ada), "user_handle": ""}
    body = SoftwareAuthenticator(HOST).create(options)
    assert message_of(ada.send_json("POST", PASSKEYS, body)) == OLD_CHALLENGE


def test_only_the_hash_of_a_challenge_is_stored(server):
    challenge = from_base64(start_sign_in(server.browser())["challenge"])
    with server.database.read() as session:
        (row,) = session.scalars(select(PasskeyChallengeRow)).all()
    assert challenge.hex() not in (row.challenge_hash, row.binding_hash)


def test_a_counter_that_goes_back_is_refused_and_shown_to_the_person(server):
    ada = server.person("Ada")
    authenticator, _ = add_passkey(ada, SoftwareAuthenticator(HOST, counter=5))
    browser = server.browser()
    assert sign_in(browser, authenticator, counter=9).status_code == 200
    for counter in (9, 8, 0):
        other = server.browser()
        response = sign_in(other, authenticator, counter=counter)
        assert message_of(response) == WRONG_PASSKEY
        assert name_of(other) is None
    assert ada.get(PASSKEYS).json()[0]["refused"] is not None
    assert "There may be a copy of it" in ada.get("/account").text
    assert sign_in(server.browser(), authenticator, counter=10).status_code == 200


def test_a_passkey_that_does_not_count_signs_in_again(server):
    authenticator, _ = add_passkey(server.person("Ada"))
    for _ in range(2):
        assert sign_in(server.browser(), authenticator, counter=0).status_code == 200


def test_a_synchronized_passkey_is_named_so(server):
    ada = server.person("Ada")
    add_passkey(ada, flags=VERIFIED | BACKUP_ELIGIBLE | BACKED_UP)
    add_passkey(ada)
    assert [passkey["is_synced"] for passkey in ada.get(PASSKEYS).json()] == [True, False]
    assert ada.get("/account").text.count("synced</span>") == 1


def test_another_persons_key_handle_or_signature_signs_nobody_in(server):
    ada, bob = server.person("Ada"), server.person("Bob")
    adas, _ = add_passkey(ada)
    bobs, _ = add_passkey(bob)
    assert adas.user_handle != bobs.user_handle
    for field in ("credential_id", "user_handle", "signature"):
        browser = server.browser()
        options = start_sign_in(browser)
        body = {**adas.sign(options), field: bobs.sign(options)[field]}
        assert message_of(browser.send_json("POST", SIGN_IN, body)) == WRONG_PASSKEY
        assert name_of(browser) is None


def test_nobody_adds_a_credential_that_an_account_has(server):
    ada, bob = server.person("Ada"), server.person("Bob")
    adas, _ = add_passkey(ada)
    for browser in (ada, bob):
        thief = SoftwareAuthenticator(HOST, credential_id=adas.credential_id)
        _, response = add_passkey(browser, thief)
        assert message_of(response) == UNUSABLE_PASSKEY
    assert bob.get(PASSKEYS).json() == []
    browser = server.browser()
    sign_in(browser, adas)
    assert name_of(browser) == "Ada"


def test_nobody_removes_another_persons_passkey(server):
    ada, bob = server.person("Ada"), server.person("Bob")
    authenticator, response = add_passkey(ada)
    number = response.json()["id"]
    assert bob.send_json("DELETE", f"{PASSKEYS}/{number}").status_code == 404
    assert bob.post(f"/account/passkeys/{number}/remove").status_code == 404
    assert bob.get(PASSKEYS).json() == []
    assert sign_in(server.browser(), authenticator).status_code == 200


@pytest.mark.parametrize("way", ["page", "API"])
def test_a_removed_passkey_signs_nobody_in_and_the_password_still_does(server, way):
    ada = server.person("Ada")
    authenticator, response = add_passkey(ada)
    number = response.json()["id"]
    if way == "page":
        response = ada.post(f"/account/passkeys/{number}/remove")
        assert response.headers["location"] == "/account?done=passkey-removed"
    else:
        assert ada.send_json("DELETE", f"{PASSKEYS}/{number}").status_code == 204
    browser = server.browser()
    assert message_of(sign_in(browser, authenticator)) == WRONG_PASSKEY
    assert browser.sign_in("Ada").status_code == 303


def test_an_unknown_passkey_has_the_same_answer_as_a_wrong_one(server):
    known, _ = add_passkey(server.person("Ada"))
    unknown = SoftwareAuthenticator(HOST, user_handle=known.user_handle)
    browser = server.browser()
    first = start_sign_in(browser)
    second = start_sign_in(browser)
    assert set(first) == {"challenge", "rp_id", "timeout_ms"}  # names no account
    assert {**first, "challenge": ""} == {**second, "challenge": ""}
    responses = [sign_in(browser, unknown), sign_in(browser, known, flags=USER_PRESENT)]
    assert len({response.text for response in responses}) == 1


def test_adding_needs_the_password(server):
    ada = server.person("Ada")
    response = start_adding(ada, "a wrong password")
    assert response.status_code == 422
    assert message_of(response) == "The current password is wrong."
    assert start_adding(server.browser()).status_code == 401


def test_a_token_of_a_script_cannot_add_use_or_remove_a_passkey(server):
    ada = server.person("Ada")
    _, response = add_passkey(ada)
    token = server.people.api_tokens.create(ada.person, "script", can_submit=True)
    headers = {"authorization": f"Bearer {token}"}
    client = server.browser().client
    for method, path in (
        ("POST", f"{PASSKEYS}/challenge"),
        ("POST", PASSKEYS),
        ("DELETE", f"{PASSKEYS}/{response.json()['id']}"),
        ("POST", f"{SIGN_IN}/challenge"),
        ("POST", SIGN_IN),
    ):
        assert client.request(method, path, json={}, headers=headers).status_code == 403
    assert client.get(PASSKEYS, headers=headers).status_code == 200


@pytest.mark.parametrize("path", [f"{SIGN_IN}/challenge", SIGN_IN, PASSKEYS])
def test_a_request_of_another_site_is_refused(server, path):
    ada = server.person("Ada")
    response = ada.client.post(path, json={})
    assert (response.status_code, message_of(response)) == (403, "The CSRF token is missing.")
    headers = {"origin": "https://evil.example"}
    assert ada.send_json("POST", path, {}, headers=headers).status_code == 403


GARBAGE = [
    b"\x00",
    b"{}",
    b"\xff" * 50,
    b"\xa0",
    b"\xa3" * 300,
    b"\x81" * 3000,  # nested arrays
    b"[" * 9000,
    b'{"type":1,"challenge":2,"origin":3}',
]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_bytes_that_are_no_response_are_refused(server, content):
    ada = server.person("Ada")
    authenticator, _ = add_passkey(ada)
    for field in ("client_data", "authenticator_data", "signature", "user_handle"):
        body = authenticator.sign(start_sign_in(ada))
        body[field] = to_base64(content)
        assert ada.send_json("POST", SIGN_IN, body).status_code == 422
    for field in ("client_data", "attestation_object"):
        body = SoftwareAuthenticator(HOST).create(start_adding(ada).json())
        body[field] = to_base64(content)
        assert ada.send_json("POST", PASSKEYS, body).status_code == 422
    assert len(ada.get(PASSKEYS).json()) == 1


@pytest.mark.parametrize("algorithm", [-65535, -47, -999], ids=["RS1", "ES256K", "unknown"])
def test_an_algorithm_that_was_not_offered_is_refused(server, algorithm):
    ada = server.person("Ada")
    _, response = add_passkey(ada, SoftwareAuthenticator(HOST, algorithm=algorithm))
    assert message_of(response) == UNUSABLE_PASSKEY


@pytest.mark.parametrize("length", [0, 8, 1024])
def test_a_credential_id_has_16_to_1023_bytes(server, length):
    ada = server.person("Ada")
    authenticator = SoftwareAuthenticator(HOST, credential_id=bytes(length))
    _, response = add_passkey(ada, authenticator)
    assert message_of(response) == UNUSABLE_PASSKEY


@pytest.mark.parametrize("label", [" ", "a\x00b", "a\u202eb"])
def test_the_name_of_a_passkey_is_plain(server, label):
    ada = server.person("Ada")
    body = SoftwareAuthenticator(HOST).create(start_adding(ada).json())
    assert ada.send_json("POST", PASSKEYS, {**body, "label": label}).status_code == 422


def test_an_account_has_at_most_so_many_passkeys(server):
    ada = server.person("Ada")
    content = {"credential_data": b"", "user_handle": b"", "rp_id": "localhost"}
    with server.database.write() as session:
        for n in range(MAX_PASSKEYS):
            row = PasskeyRow(person=ada.person.id, label="x", credential_id=bytes([n]), **content)
            row.sign_count, row.is_backed_up, row.created = 0, False, 1.0
            session.add(row)
    _, response = add_passkey(ada)
    assert "Remove one first" in message_of(response)


def test_sign_ins_are_limited_per_address(server):
    authenticator, _ = add_passkey(server.person("Ada"))
    browser = server.browser()
    signed = authenticator.sign(start_sign_in(browser))
    for _ in range(SIGN_IN_ADDRESS.n_requests - 1):  # the person's own sign-in has counted too
        server.people.limits.count(SIGN_IN_ADDRESS, "testclient")
    response = browser.send_json("POST", SIGN_IN, signed)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    assert server.browser().sign_in("Ada").status_code == 429  # counted with passwords
    for _ in range(PASSKEY_CHALLENGES.n_requests - 1):
        server.people.limits.count(PASSKEY_CHALLENGES, "testclient")
    assert browser.send_json("POST", f"{SIGN_IN}/challenge").status_code == 429


# --------------------------------------------------------------------------- account and host


def test_the_authenticator_gets_no_personal_id_and_knows_what_it_has(server):
    ada = server.person("Ada")
    first, _ = add_passkey(ada)
    options = start_adding(ada).json()
    assert options["exclude_credentials"] == [to_base64(first.credential_id)]
    assert from_base64(options["user_handle"]) == first.user_handle
    assert len(first.user_handle) == 32
    assert options["user_name"] == "Ada"


def test_an_export_has_the_public_half_and_a_deletion_removes_it(server):
    ada = server.person("Ada")
    authenticator, _ = add_passkey(ada)
    content = ada.get("/account/export.zip").content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (row,) = json.loads(archive.read("account.json"))["tables"]["passkey"]
    assert (row["label"], row["rp_id"]) == ("laptop", "localhost")
    assert row["credential_id"]["base64"]
    assert "passkey_challenge" not in ada.get("/api/v1/account/export").json()["tables"]
    assert ada.post("/account/delete", {"current_password": PASSWORD}).status_code == 303
    with server.database.read() as session:
        assert session.scalars(select(PasskeyRow)).all() == []
    assert message_of(sign_in(server.browser(), authenticator)) == WRONG_PASSKEY


def test_a_password_that_an_admin_sets_is_the_only_way_in(server):
    ada, root = server.person("Ada"), server.person("Root", "admin")
    authenticator, _ = add_passkey(ada)
    roots, _ = add_passkey(root)
    page = root.post(f"/admin/people/{ada.person.id}/reset-password")
    assert page.status_code == 200
    assert message_of(sign_in(server.browser(), authenticator)) == WRONG_PASSKEY
    assert sign_in(server.browser(), roots).status_code == 200


def test_a_changed_password_leaves_passkeys_and_says_so(server):
    ada = server.person("Ada")
    fields = {"current_password": PASSWORD, "password": "another otter umbrella"}
    ada.post("/account/password", fields)
    assert "Passkeys still work" not in ada.get("/account?done=password").text
    fields = {"current_password": "another otter umbrella", "password": PASSWORD}
    authenticator = SoftwareAuthenticator(HOST)
    body = authenticator.create(start_adding(ada, "another otter umbrella").json())
    assert ada.send_json("POST", PASSKEYS, body).status_code == 201
    ada.post("/account/password", fields)
    assert "Passkeys still work" in ada.get("/account?done=password").text
    assert sign_in(server.browser(), authenticator).status_code == 200


def test_under_an_address_the_pages_say_where_passkeys_work(server):
    browser = server.browser(base_url="http://127.0.0.1:8765")
    for page in (browser.get("/sign-in"), browser.send_json("POST", f"{SIGN_IN}/challenge")):
        assert "127.0.0.1 is an address. Open http://localhost:8765 instead." in page.text
    browser.sign_up("Ada")
    assert "Open http://localhost:8765 instead." in browser.get("/account").text
    assert start_adding(browser).status_code == 422


def test_a_passkey_works_under_the_host_name_that_it_was_made_for(tmp_path):
    server = PeopleServer(tmp_path, public_hosts=("lab.example.org",), is_https=True)
    origin = "https://lab.example.org"
    ada = server.browser(base_url=origin)
    assert ada.sign_up("Ada").status_code == 303
    authenticator = SoftwareAuthenticator(origin, rp_id="lab.example.org")
    _, response = add_passkey(ada, authenticator)
    assert response.status_code == 201, response.text
    assert sign_in(server.browser(base_url=origin), authenticator).status_code == 200
    other = server.browser(base_url="https://localhost:8765")
    assert message_of(sign_in(other, authenticator)) == WRONG_PASSKEY
    server.close()


@pytest.mark.parametrize(
    ("host", "is_https", "expected"),
    [
        ("localhost:8765", False, ("localhost", "http://localhost:8765")),
        ("lab.example.org", True, ("lab.example.org", "https://lab.example.org")),
        ("lab.example.org:8443", True, ("lab.example.org", "https://lab.example.org:8443")),
        ("lab.example.org", False, "need HTTPS"),
        ("127.0.0.1:8765", False, "Open http://localhost:8765 instead"),
        ("[::1]:8765", False, "Open http://localhost:8765 instead"),
        ("192.0.2.7", True, "Open this server under its name"),
    ],
)
def test_passkeys_exist_for_host_names_in_secure_contexts(tmp_path, host, is_https, expected):
    settings = ServerSettings(data_folder=tmp_path, mode="accounts", is_https=is_https)
    if isinstance(expected, str):
        with pytest.raises(Refusal, match=expected):
            relying_party(settings, host)
    else:
        party = relying_party(settings, host)
        assert (party.id, party.origin) == expected


def test_local_mode_loads_no_library_for_passkeys(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from shardlab.server.application import create_app\n"
        "from shardlab.server.settings import ServerSettings\n"
        f"create_app(ServerSettings(data_folder=Path({str(tmp_path)!r}), n_workers=0))\n"
        "print(sorted({'fido2', 'cryptography'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
