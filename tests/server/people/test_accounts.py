"""Accounts: names, passwords, what a wrong sign-in reveals, rate limits, roles."""

from __future__ import annotations

import re
import statistics
import time

import pytest
from people_server import PASSWORD

from shardlab.server.database.people_tables import PersonRow
from shardlab.server.people.accounts import WRONG_SIGN_IN, Accounts, clean_name
from shardlab.server.people.passwords import MAX_BYTES, PasswordHashing, check_password_rules
from shardlab.server.people.rate_limits import (
    COMMENTS,
    SIGN_IN_NAME_AT_ADDRESS,
    SUBMISSIONS,
    RateLimit,
    RateLimits,
    TooManyRequests,
    person_subject,
)
from shardlab.server.people.refusals import Refusal


def test_somebody_signs_up_and_is_signed_in(server):
    browser = server.browser()
    response = browser.sign_up("  Ada   Lovelace ", next_path="/account")
    assert (response.status_code, response.headers["location"]) == (303, "/account")
    assert "Ada Lovelace" in browser.get("/account").text
    assert browser.get("/api/v1/account").json() == {
        "id": 1,
        "name": "Ada Lovelace",
        "role": "learner",
    }


@pytest.mark.parametrize(
    "name",
    ["", "a", "x" * 41, "<script>", "a/b", "=1+1", "-x", "a\u202eb", "\x00\x00", "ab\ud800"],
)
def test_names_are_plain(server, name):
    with pytest.raises(Refusal):
        clean_name(name)


@pytest.mark.parametrize("name", ["देवकी नन्दन", "น้ำผึ้ง", "Nguyễn Thị", "مُحَمَّد", "דוד"])
def test_a_name_in_any_script_is_a_name(name):
    assert clean_name(name)


def test_a_name_is_not_covered_with_marks():
    with pytest.raises(Refusal, match="letters"):
        clean_name("Ze" + "\u0301" * 9)  # NFKC composes the first one alone


def test_two_names_that_look_alike_are_one(server):
    assert server.browser().sign_up("Straße").status_code == 303
    for name in ("STRASSE", "strasse ", "Ｓtraße"):
        response = server.browser().sign_up(name)
        assert response.status_code == 422
        assert "This name is taken." in response.text


@pytest.mark.parametrize(
    ("password", "reason"),
    [
        ("short", "at least 10"),
        ("x" * (MAX_BYTES + 1), "at most 512 bytes"),
        ("é" * 300, "at most 512 bytes"),
        ("1234567890", "first that an attacker tries"),
        ("Password123!", "first that an attacker tries"),
        ("aaaaaaaaaaaa", "first that an attacker tries"),
        ("grace hopper", "must not be the name"),
        ("Grace Hopper1", "must not be the name"),
    ],
)
def test_passwords_that_are_guessed_first_are_refused(server, password, reason):
    with pytest.raises(Refusal, match=reason):
        check_password_rules(password, "Grace Hopper")
    response = server.browser().sign_up("Grace Hopper", password)
    assert response.status_code == 422
    assert server.people.accounts.find("Grace Hopper") is None
    assert password not in response.text


def test_passwords_are_hashed_with_argon2id_and_compared_in_one_unicode_form(server):
    browser = server.person("Ada")
    with server.database.read() as session:
        password_hash = session.get(PersonRow, browser.person.id).password_hash
    assert password_hash.startswith("$argon2id$v=19$")
    hashing = PasswordHashing(time_cost=1, memory_kib=64)
    assert hashing.is_correct(hashing.hash("cafe\u0301 cafe\u0301"), "caf\u00e9 caf\u00e9")
    assert not hashing.is_correct(hashing.hash("a"), "b")
    assert not hashing.is_correct("no hash at all", "b")
    assert not hashing.is_correct(None, "the password of nobody")


def test_a_hash_with_old_parameters_is_replaced_at_the_next_sign_in(server):
    old = PasswordHashing(time_cost=1, memory_kib=32)
    limits = RateLimits(server.database)
    person = Accounts(server.database, limits, old).create("Ada", PASSWORD, role="learner")

    def stored_hash():
        with server.database.read() as session:
            return session.get(PersonRow, person.id).password_hash

    assert "m=32," in stored_hash()
    server.browser().sign_in("Ada", "wrong password")
    assert "m=32," in stored_hash()
    assert server.browser().sign_in("Ada").status_code == 303
    assert "m=64," in stored_hash()
    assert server.browser().sign_in("Ada").status_code == 303


# --------------------------------------------------------------------------- no enumeration


def test_a_wrong_name_and_a_wrong_password_have_the_same_answer(server):
    server.person("Ada")
    answers = {}
    for name in ("Ada", "Eve"):
        response = server.browser().sign_in(name, "wrong password")
        text = re.sub(r'nonce="[\w-]+"', "", response.text.replace(f'value="{name}"', ""))
        answers[name] = (response.status_code, text)
        assert WRONG_SIGN_IN in response.text
    # Only the CSRF tokens differ, which are those of two browsers.
    strip = "0123456789abcdef"
    (ada_status, ada), (eve_status, eve) = answers["Ada"], answers["Eve"]
    assert ada_status == eve_status == 422
    assert [text.strip(strip) for text in ada.split('"') if len(text) != 64] == [
        text.strip(strip) for text in eve.split('"') if len(text) != 64
    ]


def test_a_wrong_name_costs_as_much_work_as_a_wrong_password(tmp_path):
    # A hash is computed in both cases. Compared by processor time of many rounds in this process,
    # with a factor that a missing hash (a hundred times less work) cannot stay within.
    hashing = PasswordHashing(time_cost=2, memory_kib=4096)
    password_hash = hashing.hash("right")

    def cost(known_hash):
        times = []
        for _ in range(15):
            start = time.process_time()
            assert not hashing.is_correct(known_hash, "wrong")
            times.append(time.process_time() - start)
        return statistics.median(times)

    assert 1 / 3 < cost(None) / cost(password_hash) < 3


def test_a_password_of_megabytes_is_not_hashed(monkeypatch):
    hashing = PasswordHashing(time_cost=1, memory_kib=64)
    sizes = []
    verify = hashing._hasher.verify

    class Recorder:
        def verify(self, password_hash, password):
            sizes.append(len(password))
            return verify(password_hash, password)

    monkeypatch.setattr(hashing, "_hasher", Recorder())
    assert not hashing.is_correct(None, "x" * 10**6)
    assert sizes == [0]


# ------------------------------------------------------------------------------ rate limits


def test_guesses_are_limited_and_end_with_a_time_to_wait(server):
    server.person("Ada")
    browser = server.browser()
    statuses = [
        browser.sign_in("Ada", "wrong password").status_code
        for _ in range(SIGN_IN_NAME_AT_ADDRESS.n_requests + 2)
    ]
    assert statuses[: SIGN_IN_NAME_AT_ADDRESS.n_requests] == [422] * 10
    assert statuses[-2:] == [429, 429]
    response = browser.sign_in("Ada")  # the right password, now too late
    assert response.status_code == 429
    assert 0 < int(response.headers["retry-after"]) <= SIGN_IN_NAME_AT_ADDRESS.seconds
    assert browser.sign_in("Bob", "wrong password").status_code == 422  # another name still can


def test_a_success_starts_the_count_anew(server):
    server.person("Ada")
    for _ in range(3):
        for _ in range(SIGN_IN_NAME_AT_ADDRESS.n_requests - 1):
            assert server.browser().sign_in("Ada", "wrong password").status_code == 422
        assert server.browser().sign_in("Ada").status_code == 303


def test_the_count_is_shared_by_all_web_processes_and_starts_anew_in_the_next_window(server):
    now = 1_800_000_000.0
    limit = RateLimit(name="example", n_requests=3, seconds=60)
    first = RateLimits(server.database, clock=lambda: now)
    second = RateLimits(server.database, clock=lambda: now)
    first.count(limit, "a")
    second.count(limit, "a")
    first.count(limit, "a")
    with pytest.raises(TooManyRequests) as caught:
        second.count(limit, "a")
    assert caught.value.retry_after == 60
    first.count(limit, "b")
    now += 60
    first.count(limit, "a")


def test_submissions_are_limited_per_person(server):
    browser, other = server.person("Ada"), server.person("Bob")
    body = {"source": "x = 1", "mesh": "data=2"}
    token = browser.csrf_token()

    def submit(person, csrf):
        return person.client.post(
            "/api/v1/recordings", json=body, headers={"x-csrf-token": csrf}
        ).status_code

    statuses = {submit(browser, token) for _ in range(SUBMISSIONS.n_requests)}
    assert statuses <= {202, 429}  # 429: the queue itself takes no more of one person
    response = browser.client.post("/api/v1/recordings", json=body, headers={"x-csrf-token": token})
    assert response.status_code == 429
    assert "Try again in" in response.json()["error"]["message"]
    assert submit(other, other.csrf_token()) == 202


def test_comments_are_limited_per_person(server):
    teacher, ada = server.person("Tom", "teacher"), server.person("Ada")
    class_id, number = server.make_class(teacher, ada), server.submit(ada)
    path = f"/classes/{class_id}/submissions/{number}/comments"
    assert ada.post(path, {"text": "one"}).status_code == 303
    for _ in range(COMMENTS.n_requests - 1):
        server.people.limits.count(COMMENTS, person_subject(ada.person.id))
    assert ada.post(path, {"text": "two"}).status_code == 429
    assert teacher.post(path, {"text": "an answer"}).status_code == 303


def test_a_password_cannot_be_guessed_through_the_account_either(server):
    browser = server.person("Ada")
    fields = {"current_password": "wrong password", "password": "another otter umbrella"}
    statuses = [browser.post("/account/password", fields).status_code for _ in range(12)]
    assert statuses == [422] * 10 + [429] * 2


# ------------------------------------------------------------------------------------ roles


def test_only_an_admin_changes_roles_and_the_last_admin_stays(server):
    admin, learner = server.person("Root", "admin"), server.person("Ada")
    path = f"/admin/people/{learner.person.id}/role"
    assert learner.post(path, {"role": "admin"}).status_code == 403
    assert admin.post(path, {"role": "teacher"}).status_code == 303
    assert server.people.accounts.get(learner.person.id).role == "teacher"
    assert admin.post(path, {"role": "king"}).status_code == 422
    response = admin.post(f"/admin/people/{admin.person.id}/role", {"role": "learner"})
    assert response.status_code == 422
    assert "The last admin stays" in response.text
    assert admin.post("/account/delete", {"current_password": PASSWORD}).status_code == 422


def test_a_role_changes_in_sessions_that_exist(server):
    admin, teacher = server.person("Root", "admin"), server.person("Ada", "teacher")
    assert teacher.post("/classes", {"title": "One"}).status_code == 303
    admin.post(f"/admin/people/{teacher.person.id}/role", {"role": "learner"})
    assert teacher.post("/classes", {"title": "Two"}).status_code == 403


def test_who_is_no_longer_a_teacher_sees_nothing_of_their_classes(server):
    admin, teacher = server.person("Root", "admin"), server.person("Tom", "teacher")
    ada = server.person("Ada")
    class_id = server.make_class(teacher, ada, title="Lecture")
    number = server.submit(ada)
    member, submission = f"members/{ada.person.id}", f"submissions/{number}"
    paths = [
        f"{prefix}/classes/{class_id}{path}"
        for prefix, path in (
            *(("", ""), ("", f"/{member}"), ("", f"/{submission}")),
            *(("/api/v1", ""), ("/api/v1", f"/{submission}")),
        )
    ]
    assert {teacher.get(path).status_code for path in paths} == {200}
    admin.post(f"/admin/people/{teacher.person.id}/role", {"role": "learner"})
    assert {teacher.get(path).status_code for path in paths} == {404}
    assert teacher.post(f"{paths[2]}/comments", {"text": "still here"}).status_code == 404
    assert teacher.send_json("DELETE", f"/api/v1/classes/{class_id}/{member}").status_code == 404
    assert "Lecture" not in teacher.get("/classes").text
    assert {admin.get(path).status_code for path in paths} == {200}
    admin.post(f"/admin/people/{teacher.person.id}/role", {"role": "teacher"})
    assert {teacher.get(path).status_code for path in paths} == {200}


def test_an_admin_sets_a_password_once_and_the_person_replaces_it(server):
    admin, learner = server.person("Root", "admin"), server.person("Ada")
    page = admin.post(f"/admin/people/{learner.person.id}/reset-password").text
    password = page.split('class="secret"><code>')[1].split("<")[0]
    assert learner.get("/account").status_code == 303  # signed out
    assert server.browser().sign_in("Ada").status_code == 422
    browser = server.browser()
    assert browser.sign_in("Ada", password).status_code == 303
    assert browser.get("/classes").headers["location"] == "/account"
    assert "Choose your own" in browser.get("/account").text
    assert password not in admin.get("/admin").text


def test_a_password_that_an_admin_sets_ends_the_tokens_of_scripts(server):
    admin, ada, bob = server.person("Root", "admin"), server.person("Ada"), server.person("Bob")
    headers = {}
    for browser in (ada, bob):
        token = server.people.api_tokens.create(browser.person, "script", can_submit=True)
        headers[browser.person.name] = {"authorization": f"Bearer {token}"}
    client = server.browser().client
    assert client.get("/api/v1/account", headers=headers["Ada"]).status_code == 200
    admin.post(f"/admin/people/{ada.person.id}/reset-password")
    assert client.get("/api/v1/account", headers=headers["Ada"]).status_code == 401
    assert client.get("/api/v1/account", headers=headers["Bob"]).status_code == 200


def test_the_admin_deletes_a_person_only_by_typing_the_name(server):
    admin, learner = server.person("Root", "admin"), server.person("Ada")
    path = f"/admin/people/{learner.person.id}/delete"
    assert admin.post(path, {"confirmed_name": "ada"}).status_code == 422
    assert admin.post(path, {"confirmed_name": "Ada"}).status_code == 303
    assert server.people.accounts.find("Ada") is None
