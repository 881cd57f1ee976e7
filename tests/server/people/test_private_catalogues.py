"""A teacher's catalogue after others have read it: the cache and other classes show nothing."""

from __future__ import annotations

import pytest
from catalogue_files import small_catalogue, small_zip, zip_bytes

from shardlab.server.catalogue_archive import read_archive
from shardlab.server.catalogue_keys import catalogue_key
from shardlab.server.person_practice_store import PersonPracticeStore

SLUG = "take-the-largest"


class Private:
    """A class with a catalogue of its teacher, and a learner who is in another class too."""

    def __init__(self, server):
        self.server = server
        self.teacher, self.other = server.person("Tom", "teacher"), server.person("Eve", "teacher")
        self.ada, self.stranger = server.person("Ada"), server.person("Sam")
        self.class_id = server.make_class(self.teacher, self.ada, title="Lecture")
        self.other_class = server.make_class(self.other, self.ada, self.stranger, title="Seminar")
        self.catalogue = self.add_catalogue(self.teacher, self.class_id, "Exam of June")
        key = catalogue_key(self.catalogue)
        folder = server.settings.data_folder
        store = PersonPracticeStore(server.database, folder, self.ada.person.id, key)
        self.number = store.add_submission(SLUG, 1, b"secret = 1\n", kind="submit", seed=5)
        server.people.classes.add_comment(self.number, self.teacher.person, "a private remark")

    def add_catalogue(self, teacher, class_id, title):
        catalogues = self.server.people.catalogues
        version = catalogues.create(teacher.person, title, read_archive(small_zip(SLUG)))
        catalogues.finish_audit(version.id, [])
        catalogues.assign(class_id, version.catalogue)
        return version.catalogue

    @property
    def paths(self):
        pages, api = (
            f"{prefix}/catalogues/{self.catalogue}/practice" for prefix in ("", "/api/v1")
        )
        panels = [f"{pages}/{SLUG}?panel={name}" for name in ("lesson", "hints", "solution")]
        return (pages, f"{pages}?q=largest", *panels, f"{api}/problems", f"{api}/problems/{SLUG}")


@pytest.fixture
def private(server):
    return Private(server)


def test_what_members_have_read_is_not_there_for_others(private):
    parts = {"hx-request": "true", "hx-target": "div#problems"}
    for path in private.paths:
        assert private.ada.get(path).status_code == 200, path
        assert private.ada.get(path, headers=parts).status_code == 200
    for browser in (private.stranger, private.other):
        for path in private.paths:
            assert browser.get(path).status_code == 404, path
            assert browser.get(path, headers=parts).status_code == 404
        for path in ("/practice", "/practice?q=largest"):
            assert "Exam of June" not in browser.get(path).text
            assert SLUG not in browser.get(path).text
        assert browser.get(f"/practice/{SLUG}").status_code == 404
    assert "Exam of June" in private.ada.get("/practice").text
    private.server.people.classes.remove_member(private.class_id, private.ada.person.id)
    assert {private.ada.get(path).status_code for path in private.paths} == {404}
    assert "Exam of June" not in private.ada.get("/practice").text


def test_equal_files_of_two_teachers_are_two_catalogues(private):
    other = private.add_catalogue(private.other, private.other_class, "Problems of Eve")
    texts = [private.ada.get(path).text for path in private.paths[:5]]
    assert "Exam of June" in texts[0]
    for path in private.paths[:5]:
        path = path.replace(f"/{private.catalogue}/", f"/{other}/")
        text = private.stranger.get(path).text
        assert "Exam of June" not in text
        assert f"/catalogues/{private.catalogue}/" not in text
        assert f"/catalogues/{other}/practice" in text


def test_another_teacher_of_the_same_learner_sees_nothing_of_it(private):
    member = f"members/{private.ada.person.id}"
    own, foreign = (f"/classes/{number}" for number in (private.class_id, private.other_class))
    assert "a private remark" in private.teacher.get(f"{own}/{member}").text
    assert "secret" in private.teacher.get(f"{own}/submissions/{private.number}").text
    column = f"{private.catalogue}/{SLUG}"
    assert column in private.teacher.get(f"{own}/matrix.csv").text
    for path in (foreign, f"{foreign}/{member}", f"{foreign}/matrix.csv"):
        response = private.other.get(path)
        assert response.status_code == 200
        for text in ("a private remark", SLUG, column, f"submissions/{private.number}"):
            assert text not in response.text, (path, text)
    members = private.other.get(f"/api/v1{foreign}/members").json()
    assert [row["problems"] for row in members] == [[], []]
    for class_path in (own, foreign):
        submission = f"{class_path}/submissions/{private.number}"
        assert private.other.get(submission).status_code == 404
        assert private.other.get(f"/api/v1{submission}").status_code == 404
        assert private.other.post(f"{submission}/comments", {"text": "x"}).status_code == 404


def test_a_new_version_with_other_tags_shows_them(private):
    page = f"/catalogues/{private.catalogue}/practice/{SLUG}"
    assert ">pmax</a>" in private.ada.get(page).text
    files = {
        name: content.replace(b'"pmax"]', b'"largest"]')
        for name, content in small_catalogue(SLUG).items()
    }
    catalogues = private.server.people.catalogues
    version = catalogues.add_version(private.catalogue, read_archive(zip_bytes(files)))
    assert ">pmax</a>" in private.ada.get(page).text  # until its audit has passed
    catalogues.finish_audit(version.id, [])
    text = private.ada.get(page).text
    assert ">largest</a>" in text
    assert ">pmax</a>" not in text
