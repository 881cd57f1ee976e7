"""A teacher's catalogue from upload to verdict, through the HTTP API, with the real judge."""

from __future__ import annotations

import re
import shutil

import pytest
from catalogue_files import small_catalogue, zip_bytes
from people_server import PeopleServer
from test_catalogues import SLUG, upload, upload_form

from shardlab.judge import confined_reference
from shardlab.judge.worker_pool import open_reference_pool, open_worker_pool
from shardlab.sandbox.process import ProcessLimits
from shardlab.server.confined.lab_pool import StagedPool, open_lab_pool
from shardlab.server.jobs.job_kinds import JobContext, run_job
from shardlab.server.jobs.sql_queue import SqlJobQueue

PROBLEM = f"lecture-5/{SLUG}"
FILES = small_catalogue()
SOLUTION = FILES[f"{PROBLEM}/solution.py"].decode()


class School(PeopleServer):
    """A server with accounts, and one worker that runs in this process."""

    def __init__(self, folder):
        super().__init__(folder)
        hidden = [folder]
        self.pool = StagedPool(open_lab_pool(hidden), lambda: open_reference_pool(hidden))
        self.pool.add_judge(open_worker_pool(None, hidden))
        self.teacher, self.ada = self.person("Teacher", "teacher"), self.person("Ada")
        self.class_id = self.make_class(self.teacher, self.ada)

    def run_jobs(self):
        """Run everything that is queued, as a worker does; return the outcomes."""
        queue, outcomes = SqlJobQueue(self.database), []
        while (claim := queue.claim("test")) is not None:
            context = JobContext(
                pool=self.pool,
                report_progress=lambda progress, claim=claim: queue.report_progress(
                    claim, progress
                ),
                database=self.database,
                data_folder=self.settings.data_folder,
                is_local=False,
                catalogue=None,
            )
            outcomes.append(run_job(claim, context))
            assert queue.finish(claim, outcomes[-1])
        return outcomes

    def audit(self, files, title="Lecture 5"):
        """Upload a catalogue, audit it, and return its version."""
        version = upload(self.teacher, zip_bytes(files), title)
        (outcome,) = self.run_jobs()
        assert outcome.state == "done", outcome
        path = f"/api/v1/catalogues/{version['catalogue']}"
        return self.teacher.get(path).json()["versions"][0]

    def assign(self, files=FILES, title="Lecture 5"):
        """Return the path of a catalogue that Ada's class sees."""
        version = self.audit(files, title)
        assert version["state"] == "passed", version["faults"]
        path = f"/api/v1/classes/{self.class_id}/catalogues/{version['catalogue']}"
        assert self.teacher.send_json("PUT", path).status_code == 204
        return f"/catalogues/{version['catalogue']}/practice"

    def submit(self, prefix, source, kind="submit"):
        path = f"/api/v1{prefix}/problems/{SLUG}/submissions"
        response = self.ada.send_json("POST", path, {"source": source, "kind": kind})
        assert response.status_code == 202, response.text
        self.run_jobs()
        number = response.json()["number"]
        return self.ada.get(f"/api/v1{prefix}/submissions/{number}").json()


@pytest.fixture(scope="module")
def school(tmp_path_factory, empty_database):
    folder = tmp_path_factory.mktemp("school")
    shutil.copy(empty_database, folder)
    school = School(folder)
    yield school
    school.pool.close()
    school.close()


def test_the_story_of_a_catalogue(school):
    prefix = school.assign()
    accepted = school.submit(prefix, SOLUTION)
    assert accepted["code"] == "AC", accepted
    assert accepted["counts"]
    example = school.submit(prefix, SOLUTION, kind="run")
    assert example["code"] == "AC"
    wrong = FILES[f"{PROBLEM}/wrong/own_largest.py"].decode()
    failed = school.submit(prefix, wrong)
    assert failed["code"] not in ("AC", "IE")
    page = school.ada.get(f"{prefix}/{SLUG}/submissions/{failed['number']}").text
    assert "counterexample" in page
    # The minimal failing case in the debugger, and one case replayed: both need the reference.
    number = failed["number"]
    response = school.ada.send_json("POST", f"/api/v1{prefix}/submissions/{number}/debug", {})
    assert response.status_code == 202
    (outcome,) = school.run_jobs()
    assert outcome.state == "done", outcome.error
    body = {"part": 1, "case": 0}
    school.ada.send_json("POST", f"/api/v1{prefix}/submissions/{number}/replay", body)
    (outcome,) = school.run_jobs()
    assert outcome.state == "done", outcome.error
    # The class sees it, with the teacher's comment.
    header, row = school.teacher.get(f"/classes/{school.class_id}/matrix.csv").text.splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    assert cells[f"{prefix.split('/')[2]}/{SLUG}"] == "solved"
    path = f"/api/v1/classes/{school.class_id}/submissions/{number}"
    school.teacher.send_json("POST", f"{path}/comments", {"text": "Look at the psum."})
    assert school.ada.get(path).json()["comments"][0]["text"] == "Look at the psum."


def test_the_audit_names_what_is_wrong(school):
    files = dict(FILES)
    files[f"{PROBLEM}/solution.py"] = FILES[f"{PROBLEM}/wrong/own_largest.py"]
    files[f"{PROBLEM}/starter.py"] = FILES[f"{PROBLEM}/solution.py"]
    files[f"{PROBLEM}/statement.md"] = FILES[f"{PROBLEM}/statement.md"].replace(b"# ", b"# x ", 1)
    version = school.audit(files, "Faulty")
    assert version["state"] == "failed"
    rules = {fault["rule"] for fault in version["faults"]}
    assert {"solution.fails", "starter.passes", "page.title"} <= rules
    text = school.teacher.get(f"/catalogues/{version['catalogue']}").text
    assert "The solution fails." in text
    assert str(school.settings.data_folder) not in text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import os; os._exit(3)", "ended by itself"),
        ("import socket; socket.socket()", "PermissionError|OSError"),
        ("while True: pass", "time limit"),
        ("open('/etc/passwd').read()", "Error"),
    ],
)
def test_a_hostile_reference_fails_the_audit(school, monkeypatch, line, reason):
    monkeypatch.setattr(confined_reference, "LIMITS", ProcessLimits(cpu_seconds=2.0))
    files = dict(FILES)
    name = f"{PROBLEM}/reference.py"
    files[name] = FILES[name].replace(b"    return x - np.max(x)", f"    {line}\n".encode())
    assert files[name] != FILES[name]
    version = school.audit(files, f"Hostile {len(line)}")
    assert version["state"] == "failed"
    assert any(re.search(reason, fault["message"]) for fault in version["faults"]), version


def test_a_reference_that_fails_later_is_nobodys_fault(school):
    """It behaves in the audit, whose seed is known, and fails for submissions."""
    files = dict(FILES)
    name = f"{PROBLEM}/reference.py"
    files[name] = FILES[name].replace(
        b"    return x - np.max(x)",
        b"    if x.size and x.flat[0] not in SEEN: raise RuntimeError('not now')\n"
        b"    return x - np.max(x)",
    )
    # What it has seen is what it drew itself: always everything, so that the audit passes.
    files[name] = files[name].replace(
        b"def expected",
        b"class Everything:\n    def __contains__(self, x):\n"
        b"        return True\n\n\nSEEN = Everything()\n\n\ndef expected",
    )
    prefix = school.assign(files, "Later")
    catalogue = int(prefix.split("/")[2])
    version = school.people.catalogues.open_current(catalogue)
    path = version.catalogue.problems[SLUG].folder / "reference.py"
    path.write_bytes(path.read_bytes().replace(b"return True", b"return False"))
    result = school.submit(prefix, SOLUTION)
    assert result["code"] == "IE"
    assert not result["counts"]
    text = str(result["judgement"])
    assert "reference.py failed" in text
    assert "RuntimeError: not now" in text
    assert "tell the teacher" in text
    path.write_bytes(path.read_bytes().replace(b"return False", b"return True"))


def test_an_old_submission_is_judged_with_its_version(school):
    prefix = school.assign(title="Versions")
    catalogue = int(prefix.split("/")[2])
    path = f"/api/v1{prefix}/problems/{SLUG}/submissions"
    waiting = school.ada.send_json("POST", path, {"source": SOLUTION}).json()
    assert waiting["state"] == "queued"
    # Meanwhile the task changes to the smallest: the old solution would be wrong.
    files = dict(FILES)
    for name in (f"{PROBLEM}/reference.py", f"{PROBLEM}/solution.py"):
        files[name] = files[name].replace(b"np.max(x)", b"np.min(x)").replace(b"pmax", b"pmin")
    data = zip_bytes(files)
    upload_form(school.teacher, f"/catalogues/{catalogue}/versions", data)
    newest = school.teacher.get(f"/api/v1/catalogues/{catalogue}").json()["versions"][0]
    school.people.catalogues.finish_audit(newest["id"], [])
    assert school.people.catalogues.open_current(catalogue).version == newest["id"]
    school.run_jobs()
    result = school.ada.get(f"/api/v1{prefix}/submissions/{waiting['number']}").json()
    assert result["code"] == "AC", result["judgement"]


def test_a_catalogue_deleted_while_its_audit_waits_ends_the_job(school):
    version = upload(school.teacher, zip_bytes(FILES), "Deleted")
    school.teacher.send_json("DELETE", f"/api/v1/catalogues/{version['catalogue']}")
    (outcome,) = school.run_jobs()
    assert outcome.state == "cancelled"
