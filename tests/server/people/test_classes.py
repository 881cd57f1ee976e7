"""Classes: join links, members, who solved what, submissions with comments, CSV."""

from __future__ import annotations

import csv
import io
import re

import pytest
from people_server import PASSWORD

from shardlab.server.people.class_records import Member, matrix_csv, safe_cell


@pytest.fixture
def teacher(server):
    return server.person("Tess", "teacher")


def join_path(browser, class_id):
    return browser.get(f"/api/v1/classes/{class_id}/join-link").json()["path"]


def test_a_class_from_its_creation_to_a_comment(server, teacher):
    location = teacher.post("/classes", {"title": " Sharding  101 "}).headers["location"]
    class_id = int(location.rsplit("/", 1)[1])
    page = teacher.get(location).text
    assert "Sharding 101" in page
    path = re.search(r'value="http://localhost:8765(/join/[^"]+)"', page)[1]

    # A newcomer follows the link, signs up, and comes back to it.
    learner = server.browser()
    page = learner.get(path).text
    assert "Sharding 101" in page
    assert "Tess" in page
    assert f"/sign-up?next={path}" in page
    assert learner.sign_up("Ada", next_path=path).headers["location"] == path
    assert learner.post(path).headers["location"] == location
    learner.person = server.people.accounts.find("Ada")
    assert learner.get(path).headers["location"] == location  # joined already

    number = server.submit(learner, code="WA")
    page = teacher.get(location).text
    assert f"{location}/submissions/{number}" in page
    page = teacher.get(f"{location}/submissions/{number}").text
    assert "# of Ada" in page
    assert "The values are off by 2." in page
    comments = f"{location}/submissions/{number}/comments"
    assert teacher.post(comments, {"text": "Look at <b>psum</b>.\r\nTwice."}).status_code == 303

    page = learner.get(f"{location}/submissions/{number}").text
    assert "Look at &lt;b&gt;psum&lt;/b&gt;.\nTwice." in page
    assert learner.post(comments, {"text": "Thank you"}).status_code == 303
    submission = teacher.get(f"/api/v1/classes/{class_id}/submissions/{number}").json()
    assert [(item["author"], item["is_mine"]) for item in submission["comments"]] == [
        ("Tess", True),
        ("Ada", False),
    ]


def test_a_renewed_link_ends_the_old_one_and_a_closed_one_has_no_successor(server, teacher):
    class_id = server.make_class(teacher)
    learner = server.person("Ada")
    first = join_path(teacher, class_id)
    teacher.post(f"/classes/{class_id}/join-link", {"change": "renew"})
    second = join_path(teacher, class_id)
    assert first != second
    assert learner.get(first).status_code == learner.post(first).status_code == 404
    teacher.post(f"/classes/{class_id}/join-link", {"change": "close"})
    assert join_path(teacher, class_id) is None
    assert learner.get(second).status_code == learner.post(second).status_code == 404
    assert "nobody can join" in teacher.get(f"/classes/{class_id}").text
    teacher.post(f"/classes/{class_id}/join-link", {"change": "renew"})
    assert learner.post(join_path(teacher, class_id)).status_code == 303


@pytest.mark.parametrize("change", ["other class", "cut", "longer", "empty digest", "text", "huge"])
def test_a_link_that_was_changed_leads_nowhere(server, teacher, change):
    class_id, other_id = server.make_class(teacher), server.make_class(teacher)
    path = join_path(teacher, class_id)
    token = path.removeprefix("/join/")
    digest = token.partition("-")[2]
    wrong = {
        "other class": f"{other_id}-{digest}",
        "cut": token[:-1],
        "longer": token + "0",
        "empty digest": f"{class_id}-",
        "text": "é-é",
        "huge": "9" * 70,
    }[change]
    learner = server.person("Ada")
    assert learner.get(f"/join/{wrong}").status_code == 404
    assert learner.post(f"/join/{wrong}").status_code == 404
    assert learner.get("/api/v1/classes").json() == []


def test_a_link_is_not_in_the_database(server, teacher):
    class_id = server.make_class(teacher)
    token = join_path(teacher, class_id).removeprefix("/join/").partition("-")[2]
    for path in server.settings.data_folder.iterdir():
        assert token.encode() not in path.read_bytes()


def test_the_matrix_shows_who_solved_what(server, teacher):
    ada, bob = server.person("Ada"), server.person("Bob")
    stranger = server.person("Eve")
    class_id = server.make_class(teacher, ada, bob)
    solved = server.submit(ada, code="AC")
    server.submit(ada, code="WA")  # after the pass: it stays solved
    server.submit(ada, problem="shard-map-basics", code="")  # not judged yet
    server.submit(bob, code="WA")
    tried = server.submit(bob, code="IE")
    server.submit(bob, problem="shard-map-basics", kind="run")  # a test run is not a submission
    server.submit(stranger)
    members = {
        row["name"]: row for row in teacher.get(f"/api/v1/classes/{class_id}/members").json()
    }
    assert set(members) == {"Ada", "Bob"}
    cells = {cell["problem"]: cell for cell in members["Ada"]["problems"]}
    assert cells["shard-map-psum"] == {
        "problem": "shard-map-psum",
        "status": "solved",
        "n_submissions": 2,
        "submission": solved,
    }
    assert cells["shard-map-basics"]["status"] == "tried"
    assert (members["Ada"]["n_solved"], members["Bob"]["n_solved"]) == (1, 0)
    assert [(cell["status"], cell["submission"]) for cell in members["Bob"]["problems"]] == [
        ("tried", tried)
    ]


def test_a_learner_sees_their_own_row_only(server, teacher):
    ada, bob = server.person("Ada"), server.person("Bob")
    class_id = server.make_class(teacher, ada, bob)
    page = ada.get(f"/classes/{class_id}").text
    assert "Bob" not in page
    assert "/join/" not in page
    assert "Your progress" in page
    assert ada.get(f"/api/v1/classes/{class_id}/members").status_code == 403
    assert ada.get(f"/classes/{class_id}/matrix.csv").status_code == 403


def test_a_member_who_left_or_was_removed_is_no_longer_seen(server, teacher):
    ada, bob = server.person("Ada"), server.person("Bob")
    class_id = server.make_class(teacher, ada, bob)
    number = server.submit(ada)
    path = f"/classes/{class_id}/submissions/{number}"
    assert teacher.get(path).status_code == 200
    assert ada.post(f"/classes/{class_id}/leave").status_code == 303
    assert teacher.get(path).status_code == 404
    assert ada.get(f"/classes/{class_id}").status_code == 404
    remove = f"/classes/{class_id}/members/{bob.person.id}/remove"
    assert teacher.post(remove).status_code == 303
    assert bob.get(f"/classes/{class_id}").status_code == 404
    assert len(server.store(ada).list_submissions()) == 1  # what they did stays theirs


def test_test_runs_and_drafts_stay_with_the_learner(server, teacher):
    ada = server.person("Ada")
    class_id = server.make_class(teacher, ada)
    number = server.submit(ada, kind="run")
    assert teacher.get(f"/classes/{class_id}/submissions/{number}").status_code == 404


def test_nobody_deletes_the_comment_of_another_person(server, teacher):
    ada = server.person("Ada")
    class_id = server.make_class(teacher, ada)
    number = server.submit(ada)
    comment = server.people.classes.add_comment(number, teacher.person, "Good.")
    path = f"/classes/{class_id}/submissions/{number}/comments/{comment}/delete"
    assert ada.post(path).status_code == 404
    assert teacher.post(path).status_code == 303


def test_sizes_of_titles_and_comments_are_capped(server, teacher):
    ada = server.person("Ada")
    class_id = server.make_class(teacher, ada)
    number = server.submit(ada)
    assert teacher.post("/classes", {"title": "x" * 81}).status_code == 422
    assert teacher.post("/classes", {"title": " "}).status_code == 422
    assert teacher.post("/classes", {"title": "a\u202eb"}).status_code == 422
    path = f"/classes/{class_id}/submissions/{number}/comments"
    assert ada.post(path, {"text": "x" * 4001}).status_code == 422
    assert ada.post(path, {"text": "   "}).status_code == 422
    assert ada.post(path, {"text": "x" * 10**6}).status_code == 422
    assert ada.post(path, {"text": "x" * 5_000_000}).status_code == 413


def test_the_csv_has_a_row_per_member(server, teacher):
    ada = server.person("Ada")
    class_id = server.make_class(teacher, ada)
    server.submit(ada)
    response = teacher.get(f"/classes/{class_id}/matrix.csv")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in response.headers["content-disposition"]
    header, row = csv.reader(io.StringIO(response.text))
    assert row[:2] == ["Ada", "1"]
    assert row[header.index("shard-map-psum")] == "solved"


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", '=HYPERLINK("http://x")']
)
def test_no_cell_of_the_csv_is_a_formula(text):
    assert safe_cell(text) == f"'{text}"
    member = Member(id=1, name=text, joined=0.0, cells={})
    rows = list(csv.reader(io.StringIO(matrix_csv([member], [text]), newline="")))
    cells = [cell for row in rows for cell in row]
    assert not any(cell.lstrip()[:1] in ("=", "+", "-", "@") for cell in cells if cell)


def test_the_teacher_is_no_member_and_a_deleted_class_leaves_the_submissions(server, teacher):
    ada = server.person("Ada")
    class_id = server.make_class(teacher, ada)
    server.submit(ada)
    response = teacher.post(join_path(teacher, class_id))
    assert response.status_code == 422
    assert "You are the teacher" in response.text
    assert teacher.post(f"/classes/{class_id}/delete").status_code == 303
    assert teacher.get(f"/classes/{class_id}").status_code == 404
    assert len(server.store(ada).list_submissions()) == 1


def test_a_class_ends_with_its_teachers_account(server, teacher):
    ada = server.person("Ada")
    class_id = server.make_class(teacher, ada)
    assert teacher.post("/account/delete", {"current_password": PASSWORD}).status_code == 303
    assert ada.get(f"/classes/{class_id}").status_code == 404
    assert ada.get("/account").status_code == 200
