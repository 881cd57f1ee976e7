"""Catalogues of teachers: upload, versions, classes, and who sees what. Nothing is judged here."""

from __future__ import annotations

import io
import json
import shutil
import zipfile

import pytest
from catalogue_files import small_catalogue, small_zip, zip_bytes
from people_server import judgement

from shardlab.course.problem_lint import lint_problem
from shardlab.server.catalogue_archive import read_archive
from shardlab.server.jobs.sql_queue import SqlJobQueue
from shardlab.server.people import catalogues as catalogues_module
from shardlab.server.people.catalogues import AuditFault
from shardlab.server.person_practice_store import PersonPracticeStore
from shardlab.server.uploaded_catalogue import load_untrusted

SLUG = "take-the-largest"


def upload(browser, data=None, title="Lecture 5"):
    """Upload a catalogue through the API; return its version."""
    response = browser.client.post(
        "/api/v1/catalogues",
        params={"title": title},
        content=small_zip() if data is None else data,
        headers={"x-csrf-token": browser.csrf_token(), "content-type": "application/zip"},
    )
    assert response.status_code == 201, response.text
    return response.json()


def upload_form(browser, path, data, **fields):
    return browser.client.post(
        path,
        data={"csrf_token": browser.csrf_token(), **fields},
        files={"file": ("catalogue.zip", data, "application/zip")},
    )


def pass_audit(server, version):
    server.people.catalogues.finish_audit(version["id"], [])
    return version["catalogue"]


@pytest.fixture
def school(server):
    """A teacher with a class of Ada, and a catalogue that passed and is assigned."""
    teacher, ada = server.person("Teacher", "teacher"), server.person("Ada")
    class_id = server.make_class(teacher, ada)
    catalogue = pass_audit(server, upload(teacher))
    response = teacher.send_json("PUT", f"/api/v1/classes/{class_id}/catalogues/{catalogue}")
    assert response.status_code == 204, response.text
    return teacher, ada, class_id, catalogue


def submit(server, browser, catalogue, code="AC"):
    version = server.people.catalogues.open_current(catalogue).version
    store = PersonPracticeStore(
        server.database,
        server.settings.data_folder,
        browser.person.id,
        f"catalogue:{catalogue}",
        version,
    )
    number = store.add_submission(SLUG, 1, b"x = 1\n", kind="submit", seed=3)
    store.save_judgement(number, judgement(code))
    return number


# ------------------------------------------------------------------------------------- uploads


def test_an_upload_is_stored_and_its_audit_is_queued(server):
    teacher = server.person("Teacher", "teacher")
    version = upload(teacher)
    assert version["state"] == "waiting"
    assert version["n_problems"] == 1
    assert version["job"]["kind"] == "audit_catalogue"
    assert version["job"]["state"] == "queued"
    claim = SqlJobQueue(server.database).claim("test")
    assert claim.payload == {"version": version["id"]}
    (row,) = teacher.get("/api/v1/catalogues").json()
    assert row["title"] == "Lecture 5"
    page = teacher.get(f"/catalogues/{version['catalogue']}").text
    assert "audit runs" in page
    assert "No version has passed" in page


def test_the_pages_do_what_the_api_does(server):
    teacher = server.person("Teacher", "teacher")
    assert "You have no catalogue yet" in teacher.get("/catalogues").text
    response = upload_form(teacher, "/catalogues", small_zip(), title="Mine")
    assert response.status_code == 303, response.text
    path = response.headers["location"]
    (row,) = teacher.get("/api/v1/catalogues").json()
    server.people.catalogues.finish_audit(
        row["versions"][0]["id"],
        [AuditFault(problem=SLUG, rule="page.title", message="The <b>heading</b> is wrong.")],
    )
    page = teacher.get(path).text
    assert "The &lt;b&gt;heading&lt;/b&gt; is wrong." in page
    assert "1 fault" in page
    second = zip_bytes({**small_catalogue(), "lecture-5/take-the-largest/audit.toml": b""})
    assert upload_form(teacher, f"{path}/versions", second).status_code == 303
    assert "Version 2" in teacher.get(path).text
    assert teacher.post(f"{path}/rename", {"title": "Renamed"}).status_code == 303
    assert "Renamed" in teacher.get("/catalogues").text
    assert teacher.post(f"{path}/delete").status_code == 303
    assert teacher.get(path).status_code == 404


@pytest.mark.parametrize("data", [b"", b"no zip", zip_bytes({"evil.py": b"x"})])
def test_a_refused_upload_says_why_and_stores_nothing(server, data):
    teacher = server.person("Teacher", "teacher")
    response = upload_form(teacher, "/catalogues", data, title="Mine <3")
    assert response.status_code == 422
    assert 'role="alert"' in response.text
    assert "Mine &lt;3" in response.text
    response = teacher.client.post(
        "/api/v1/catalogues?title=x", content=data, headers={"x-csrf-token": teacher.csrf_token()}
    )
    assert response.status_code == 422
    assert response.json()["error"]["message"]
    assert teacher.get("/api/v1/catalogues").json() == []


def test_an_upload_above_the_limit_of_requests_is_refused(server):
    teacher = server.person("Teacher", "teacher")
    response = upload_form(teacher, "/catalogues", bytes(5 << 20), title="Large")
    assert response.status_code == 413


def test_a_learner_uploads_nothing(server):
    ada = server.person("Ada")
    assert ada.get("/catalogues").status_code == 403
    assert upload_form(ada, "/catalogues", small_zip(), title="Mine").status_code == 403
    assert "Catalogues" not in ada.get("/practice").text


def test_numbers_of_catalogues_and_versions_are_limited(server, monkeypatch):
    monkeypatch.setattr(server.app.state.people.catalogues, "max_catalogues", 1)
    monkeypatch.setattr(catalogues_module, "MAX_VERSIONS", 2)
    teacher = server.person("Teacher", "teacher")
    catalogue = pass_audit(server, upload(teacher))
    assert "at most 1" in upload_form(teacher, "/catalogues", small_zip(), title="x").text
    name = "lecture-5/take-the-largest/audit.toml"
    for n in range(4):
        data = zip_bytes({**small_catalogue(), name: f"# {n}\n".encode()})
        server.people.catalogues.add_version(catalogue, read_archive(data))
    versions = teacher.get(f"/api/v1/catalogues/{catalogue}").json()["versions"]
    # The newest two, and the one that passed: classes see it.
    assert [version["state"] for version in versions] == ["waiting", "waiting", "passed"]
    folders = {path.name for path in (server.settings.data_folder / "catalogues").iterdir()}
    assert folders == {version["digest"] for version in versions}


def test_the_same_files_are_no_new_version(server):
    teacher = server.person("Teacher", "teacher")
    catalogue = upload(teacher)["catalogue"]
    response = upload_form(teacher, f"/catalogues/{catalogue}/versions", small_zip())
    assert response.status_code == 422
    assert "a version of this catalogue already" in response.text


def test_a_version_is_downloaded_again(server):
    teacher = server.person("Teacher", "teacher")
    version = upload(teacher)
    path = f"/catalogues/{version['catalogue']}/versions/{version['id']}/catalogue.zip"
    for prefix in ("", "/api/v1"):
        response = teacher.get(prefix + path)
        assert response.headers["content-type"] == "application/zip"
        assert dict(read_archive(response.content).files) == small_catalogue()
    # The version of another catalogue is not there.
    other = upload(teacher, title="Other")
    path = f"/catalogues/{other['catalogue']}/versions/{version['id']}/catalogue.zip"
    assert teacher.get(path).status_code == 404


def test_the_folder_on_disk_can_be_deleted_at_any_time(server, school):
    _, ada, _, catalogue = school
    shutil.rmtree(server.settings.data_folder / "catalogues")
    fresh = type(server.people.catalogues)(server.database, server.settings.data_folder)
    assert fresh.open_current(catalogue).catalogue.slugs == (SLUG,)
    assert ada.get(f"/catalogues/{catalogue}/practice/{SLUG}").status_code == 200


# ------------------------------------------------------------------------------------- classes


def test_only_what_passed_its_audit_is_seen(server):
    teacher, ada = server.person("Teacher", "teacher"), server.person("Ada")
    class_id = server.make_class(teacher, ada)
    version = upload(teacher)
    catalogue = version["catalogue"]
    path = f"/api/v1/classes/{class_id}/catalogues/{catalogue}"
    response = teacher.send_json("PUT", path)
    assert response.status_code == 422
    assert "passed its audit" in response.json()["error"]["message"]
    # Not even its teacher practices with it.
    assert teacher.get(f"/catalogues/{catalogue}/practice").status_code == 404
    server.people.catalogues.finish_audit(
        version["id"], [AuditFault(problem="", rule="problem", message="x")]
    )
    assert teacher.send_json("PUT", path).status_code == 422
    pass_audit(server, version)
    assert teacher.send_json("PUT", path).status_code == 204
    assert ada.get(f"/catalogues/{catalogue}/practice").status_code == 200


def test_members_see_the_catalogue_and_nobody_else(server, school):
    teacher, ada, class_id, catalogue = school
    stranger = server.person("Stranger")
    other_teacher = server.person("Other Teacher", "teacher")
    server.make_class(other_teacher, server.person("Bob"))
    path = f"/catalogues/{catalogue}/practice"
    for browser in (ada, teacher):
        assert "Take the largest" in browser.get(path).text
        assert "Lecture 5" in browser.get("/practice").text
    for browser in (stranger, other_teacher):
        assert browser.get(path).status_code == 404
        assert browser.get(f"{path}/{SLUG}").status_code == 404
        assert browser.get(f"/api/v1{path}/problems").status_code == 404
        assert browser.get(f"/catalogues/{catalogue}").status_code in (403, 404)
        assert "Lecture 5" not in browser.get("/practice").text
    assert server.browser().get(path).status_code == 303
    # Removed from the class, or the catalogue from it: it is gone.
    teacher.send_json("DELETE", f"/api/v1/classes/{class_id}/catalogues/{catalogue}")
    assert ada.get(path).status_code == 404
    assert teacher.get(path).status_code == 200  # it is the teacher's own
    teacher.send_json("PUT", f"/api/v1/classes/{class_id}/catalogues/{catalogue}")
    assert ada.get(path).status_code == 200
    ada.post(f"/classes/{class_id}/leave")
    assert ada.get(path).status_code == 404


def test_a_teacher_assigns_own_catalogues_to_own_classes_only(server, school):
    teacher, _, class_id, catalogue = school
    other = server.person("Other", "teacher")
    other_class = server.make_class(other)
    other_catalogue = pass_audit(server, upload(other, title="Other's"))
    path = "/api/v1/classes/{}/catalogues/{}"
    assert other.send_json("PUT", path.format(other_class, catalogue)).status_code == 404
    assert other.send_json("PUT", path.format(class_id, other_catalogue)).status_code == 404
    assert teacher.send_json("PUT", path.format(class_id, other_catalogue)).status_code == 404
    assert other.post(
        f"/classes/{other_class}/catalogues", {"catalogue": catalogue}
    ).status_code == (404)


def test_the_links_of_a_catalogues_pages_stay_within_it(server, school):
    _, ada, _, catalogue = school
    prefix = f"/catalogues/{catalogue}/practice"
    page = ada.get(f"{prefix}/{SLUG}").text
    assert f'action="{prefix}/{SLUG}/run"' in page
    assert f"/api/v1{prefix}/problems/{SLUG}/draft" in page
    assert f'"/practice/{SLUG}' not in page
    response = ada.post(f"{prefix}/{SLUG}/draft", {"source": "x = 1\n"})
    assert response.headers["location"] == f"{prefix}/{SLUG}#code"
    assert "x = 1" in ada.get(f"{prefix}/{SLUG}").text
    # Drafts, hints and progress are those of this catalogue.
    assert ada.get(f"/api/v1{prefix}/problems/{SLUG}/draft").json()["source"] == "x = 1\n"
    hints = ada.send_json("POST", f"/api/v1{prefix}/problems/{SLUG}/hints").json()
    assert len(hints["hints"]) == 1
    solution = f"/api/v1{prefix}/problems/{SLUG}/solution"
    assert ada.send_json("POST", solution).json()["source"] is None
    assert "shard_map" in ada.send_json("POST", solution).json()["source"]
    assert ada.get(f"/practice/{SLUG}").status_code == 404


def test_a_submission_that_is_no_python_needs_no_reference(server, school):
    """The web process judges it at once; a reference.py must not be executed there."""
    _, ada, _, catalogue = school
    path = f"/api/v1/catalogues/{catalogue}/practice/problems/{SLUG}/submissions"
    response = ada.send_json("POST", path, {"source": "x = '\x00'"})
    assert response.status_code == 202, response.text
    assert response.json()["code"] == "CE"


def test_matrix_and_csv_have_the_problems_of_the_catalogue(server, school):
    teacher, ada, class_id, catalogue = school
    number = submit(server, ada, catalogue)
    own = server.submit(ada, code="WA")
    page = teacher.get(f"/classes/{class_id}").text
    assert f'href="/catalogues/{catalogue}/practice/{SLUG}"' in page
    assert f'/classes/{class_id}/submissions/{number}"' in page
    assert f'/classes/{class_id}/submissions/{own}"' in page
    header, row = teacher.get(f"/classes/{class_id}/matrix.csv").text.splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    assert cells[f"{catalogue}/{SLUG}"] == "solved"
    assert cells["shard-map-psum"] == "tried"
    (member,) = teacher.get(f"/api/v1/classes/{class_id}/members").json()
    assert {cell["problem"] for cell in member["problems"]} == {
        f"{catalogue}/{SLUG}",
        "shard-map-psum",
    }
    assert "Take the largest" in teacher.get(f"/classes/{class_id}/submissions/{number}").text


def test_the_teacher_of_another_class_does_not_see_submissions_to_the_catalogue(server, school):
    teacher, ada, class_id, catalogue = school
    other = server.person("Other", "teacher")
    other_class = server.make_class(other, ada)
    number = submit(server, ada, catalogue)
    assert teacher.get(f"/classes/{class_id}/submissions/{number}").status_code == 200
    assert other.get(f"/classes/{other_class}/submissions/{number}").status_code == 404
    assert other.get(f"/classes/{other_class}/submissions/{server.submit(ada)}").status_code == 200


def test_submissions_of_one_catalogue_are_unknown_in_another(server, school):
    _, ada, _, catalogue = school
    number, own = submit(server, ada, catalogue), server.submit(ada)
    prefix = f"/api/v1/catalogues/{catalogue}/practice/submissions"
    assert ada.get(f"{prefix}/{number}").status_code == 200
    assert ada.get(f"{prefix}/{own}").status_code == 404
    assert ada.get(f"/api/v1/practice/submissions/{number}").status_code == 404


def test_a_new_version_takes_over_when_it_has_passed(server, school):
    teacher, ada, _, catalogue = school
    number = submit(server, ada, catalogue)
    old = server.people.catalogues.open_current(catalogue).version
    files = small_catalogue()
    name = "lecture-5/take-the-largest/problem.toml"
    files[name] = files[name].replace(b"Take the largest", b"Take the very largest")
    page = "lecture-5/take-the-largest/statement.md"
    files[page] = files[page].replace(b"Take the largest", b"Take the very largest", 1)
    response = upload_form(teacher, f"/catalogues/{catalogue}/versions", zip_bytes(files))
    assert response.status_code == 303
    path = f"/catalogues/{catalogue}/practice/{SLUG}"
    assert "very largest" not in ada.get(path).text
    newest = teacher.get(f"/api/v1/catalogues/{catalogue}").json()["versions"][0]
    pass_audit(server, newest)
    assert "very largest" in ada.get(path).text
    # Progress goes on, and the submission remembers its version.
    assert ada.get(f"/api/v1{path.rpartition('/')[0]}/submissions/{number}").status_code == 200
    opened = server.people.catalogues.open_for_submission(catalogue, old)
    assert opened.version == old
    assert opened.catalogue.problems[SLUG].title == "Take the largest"


def test_a_deleted_catalogue_leaves_the_submissions_of_learners(server, school):
    teacher, ada, class_id, catalogue = school
    submit(server, ada, catalogue)
    assert teacher.send_json("DELETE", f"/api/v1/catalogues/{catalogue}").status_code == 204
    assert ada.get(f"/catalogues/{catalogue}/practice").status_code == 404
    assert teacher.get(f"/classes/{class_id}").status_code == 200
    assert not list((server.settings.data_folder / "catalogues").iterdir())
    export = ada.get("/api/v1/account/export").json()
    assert export["tables"]["submission"][0]["catalogue"] == f"catalogue:{catalogue}"


# ------------------------------------------------------------------------- export and deletion


def test_the_export_of_an_account_has_its_catalogues(server, school):
    teacher, *_ = school
    body = teacher.get("/account/export.zip").content
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        (name,) = [name for name in archive.namelist() if name.startswith("catalogues/")]
        assert dict(read_archive(archive.read(name)).files) == small_catalogue()
        tables = json.loads(archive.read("account.json"))["tables"]
    assert [row["title"] for row in tables["catalogue"]] == ["Lecture 5"]
    assert len(tables["catalogue_version"]) == 1


def test_deleting_the_account_deletes_the_catalogues(server, school):
    teacher, ada, _, catalogue = school
    other = server.person("Other", "teacher")
    same = pass_audit(server, upload(other))  # the same files, of somebody else
    server.people.delete_account(teacher.person)
    assert ada.get(f"/catalogues/{catalogue}/practice").status_code == 404
    assert other.get(f"/catalogues/{same}/practice").status_code == 200
    server.people.delete_account(other.person)
    assert not list((server.settings.data_folder / "catalogues").iterdir())


# ------------------------------------------------------------------------------ hostile content


def test_a_hostile_statement_is_shown_as_text(server):
    teacher = server.person("Teacher", "teacher")
    files = small_catalogue()
    name = "lecture-5/take-the-largest/{}"
    attack = (
        b"\n\n<script>alert(1)</script>\n\n<img src=x onerror=alert(2)>\n\n"
        b"[click](javascript:alert(3)) ![p](https://evil.example/x.png)\n\n"
        b'<iframe src="https://evil.example"></iframe>\n\n{{ 7 * 7 }} {% raw %}\n\n'
        b"[file](file:///etc/passwd) <a href='data:text/html,x'>d</a>\n\n"
        b"<style>*{display:none}</style>\n"
    )
    for file in ("statement.md", "hints.md"):
        files[name.format(file)] += attack
    toml = files[name.format("problem.toml")].decode()
    title = '<script>alert("t")</script>'
    files[name.format("problem.toml")] = toml.replace(
        'title = "Take the largest"', f"title = '{title}'"
    ).encode()
    files["tracks.toml"] = files["tracks.toml"].replace(b"Lecture 5", b"<img src=x onerror=1>")
    catalogue = pass_audit(server, upload(teacher, zip_bytes(files), title="<b>x</b>"))
    prefix = f"/catalogues/{catalogue}/practice"
    teacher.send_json("POST", f"/api/v1{prefix}/problems/{SLUG}/hints")
    class_id = server.make_class(teacher, server.person("Ada"))
    teacher.send_json("PUT", f"/api/v1/classes/{class_id}/catalogues/{catalogue}")
    pages = [
        prefix,
        f"{prefix}/{SLUG}",
        f"{prefix}/{SLUG}?panel=hints",
        f"/catalogues/{catalogue}",
        "/catalogues",
        "/practice",
        f"/classes/{class_id}",
    ]
    for path in pages:
        response = teacher.get(path)
        assert response.status_code == 200, path
        text = response.text
        for part in ("<script>alert", "<img src=x", "<iframe", 'href="javascript:', "<style>*"):
            assert part not in text, (path, part)
        assert 'src="https://evil' not in text
        assert 'href="file:' not in text
        assert 'href="data:' not in text
        assert "<b>x</b>" not in text
        assert "script-src 'self'" in response.headers["content-security-policy"]


def test_links_of_a_page_do_not_say_which_files_the_server_has(tmp_path):
    (tmp_path / "server.db").write_text("")
    files = small_catalogue()
    name = "lecture-5/take-the-largest/statement.md"
    targets = ("../../../server.db", "../../../no.db", "/etc/hostname", str(tmp_path / "server.db"))
    files[name] += "".join(f"\n[x]({target})\n" for target in targets).encode()
    archive = read_archive(zip_bytes(files))
    archive.write_folder(tmp_path / "catalogues" / "x")
    (problem,) = load_untrusted(tmp_path / "catalogues" / "x").problems.values()
    missing = [fault.message for fault in lint_problem(problem) if fault.rule == "page.link"]
    assert missing == [f"The link target {target} does not exist." for target in targets]


def test_no_page_of_a_catalogue_shows_where_the_server_keeps_it(server, school):
    teacher, ada, _, catalogue = school
    prefix = f"/catalogues/{catalogue}/practice"
    folder = str(server.settings.data_folder)
    number = submit(server, ada, catalogue)
    paths = [
        f"{prefix}/no-such-problem",
        f"/api/v1{prefix}/problems/zzz",
        f"/api/v1{prefix}/problems/take-the-larges",
        f"/api/v1{prefix}/submissions/99999",
        f"/api/v1{prefix}/submissions/{number}",
        f"{prefix}/{SLUG}/submissions/{number}",
        f"/api/v1{prefix}/export",
    ]
    for path in paths:
        assert folder not in ada.get(path).text, path
    assert folder not in teacher.get("/account/export.zip").text
