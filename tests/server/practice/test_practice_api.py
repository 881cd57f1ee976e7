"""Practice as JSON, and pages of a catalogue that somebody else has written."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from plain_browser import PlainBrowser, add_submission

from shardlab.server.application import create_app
from shardlab.server.settings import ServerSettings

API = "/api/v1/practice"
SLUG = "shard-map-psum"


@pytest.fixture
def api(browser):
    """Return a client that sends the token of the page as a header, as the scripts do."""
    token = re.search(r'name="csrf-token" content="(\w+)"', browser.read("/practice"))[1]
    browser.client.headers["x-csrf-token"] = token
    return browser.client


def test_problems_are_listed_and_filtered(api):
    assert len(api.get(f"{API}/problems").json()) == 37
    rows = api.get(f"{API}/problems", params={"q": "shard_map_double"}).json()
    assert [(row["slug"], row["difficulty"]) for row in rows] == [("shard-map-basics", "easy")]


def test_a_problem_has_its_texts_but_not_its_solution(api):
    problem = api.get(f"{API}/problems/{SLUG}").json()
    assert problem["title"] == "shard_map with psum Collective"
    assert [part["call"] for part in problem["parts"]] == [
        "shard_map_psum(x)",
        "shard_map_psum(x, mesh)",
    ]
    assert problem["source"] == problem["starter"]
    assert problem["hints"] == []
    assert "per_shard" not in str(problem)


def test_a_draft_is_put_read_and_deleted(api):
    assert api.get(f"{API}/problems/{SLUG}/draft").status_code == 404
    assert api.put(f"{API}/problems/{SLUG}/draft", json={"source": "x = 1\n"}).status_code == 200
    assert api.get(f"{API}/problems/{SLUG}/draft").json()["source"] == "x = 1\n"
    assert api.get(f"{API}/problems/{SLUG}").json()["source"] == "x = 1\n"
    assert api.delete(f"{API}/problems/{SLUG}/draft").status_code == 204
    assert api.get(f"{API}/problems/{SLUG}/draft").status_code == 404


def test_a_submission_is_stored_and_listed(api, store):
    response = api.post(f"{API}/problems/{SLUG}/submissions", json={"source": "x = 1\n"})
    assert response.status_code == 202
    submission = response.json()
    assert (submission["state"], submission["code"]) == ("queued", "")
    assert submission["job"]["position"] == 1
    assert store.load_source(submission["number"]) == b"x = 1\n"
    assert [row["number"] for row in api.get(f"{API}/submissions").json()] == [submission["number"]]
    detail = api.get(f"{API}/submissions/{submission['number']}").json()
    assert detail["source"] == "x = 1\n"
    assert detail["judgement"] is None


def test_a_judged_submission_has_the_results_of_the_terminal(api, store):
    number = add_submission(store, "WA")
    detail = api.get(f"{API}/submissions/{number}").json()
    assert (detail["state"], detail["code"], detail["passed"]) == ("judged", "WA", False)
    assert detail["judgement"]["status"] == "fail"
    assert api.post(f"{API}/submissions/{number}/judge").status_code == 409


def test_hints_and_solution_follow_the_rules_of_the_terminal(api):
    assert api.get(f"{API}/problems/{SLUG}/hints").json() == {"hints": [], "n_hints": 3}
    assert len(api.post(f"{API}/problems/{SLUG}/hints").json()["hints"]) == 1
    assert api.post(f"{API}/problems/{SLUG}/solution").json()["source"] is None
    assert "per_shard" in api.post(f"{API}/problems/{SLUG}/solution").json()["source"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/problems/nope", None, 404),
        ("GET", "/problems/Not%20a%20slug", None, 422),
        ("GET", "/submissions/77", None, 404),
        ("GET", "/submissions/0", None, 422),
        ("POST", f"/problems/{SLUG}/submissions", {"source": "x" * 300_000}, 422),
        ("POST", f"/problems/{SLUG}/submissions", {"source": "x", "kind": "cheat"}, 422),
        ("POST", f"/problems/{SLUG}/submissions", {"source": "x", "seed": 1}, 422),
        ("POST", f"/problems/{SLUG}/submissions", {"source": "\ud800"}, 422),
        ("POST", "/submissions/77/replay", {"part": 1, "case": 1}, 404),
        ("POST", "/submissions/77/debug", {}, 404),
    ],
)
def test_what_cannot_be_answered_is_an_error_in_one_shape(api, method, path, body, status):
    if body and "\ud800" in body.get("source", ""):
        response = api.request(
            method,
            f"{API}{path}",
            content='{"source": "\\ud800"}',
            headers={"content-type": "application/json"},
        )
        # Half of a surrogate pair is either refused or stored as a replacement, never a crash.
        assert response.status_code in (202, 422)
        return
    response = api.request(method, f"{API}{path}", json=body)
    assert response.status_code == status
    assert response.json()["error"]["message"]


def test_the_api_needs_the_token_of_the_page(browser, store):
    response = browser.client.put(f"{API}/problems/{SLUG}/draft", json={"source": "x"})
    assert response.status_code == 403
    assert store.load_draft(SLUG) is None


# ----------------------------------------------------------------------- somebody else's catalogue


def test_a_foreign_catalogue_cannot_run_anything_in_the_page(tmp_path):
    folder = tmp_path / "theirs"
    command = [sys.executable, "-m", "shardlab", "catalogue", "new", "bad-page"]
    subprocess.run(
        [*command, "--track", "basics", "--catalogue", str(folder)],
        check=True,
        capture_output=True,
    )
    problem = folder / "basics" / "bad-page"
    for name in ("statement.md", "hints.md"):
        text = (problem / name).read_text()
        evil = "\n<script>alert(1)</script> [x](javascript:alert(1)) <img src=x onerror=y>\n"
        (problem / name).write_text(text + evil)
    toml = problem / "problem.toml"
    toml.write_text(re.sub(r"title = .*", 'title = "<script>t</script>"', toml.read_text()))
    starter = problem / "starter.py"
    starter.write_text(starter.read_text() + "# </textarea><script>s</script>\n")
    settings = ServerSettings(data_folder=tmp_path / "data", catalogue=str(folder))
    from fastapi.testclient import TestClient

    app = create_app(settings)
    browser = PlainBrowser(TestClient(app, base_url="http://127.0.0.1:8765"))
    pages = [
        browser.read("/practice"),
        browser.read("/practice/bad-page"),
        browser.post("/practice/bad-page/hint").text,
        *(browser.post("/practice/bad-page/hint").text for _ in range(3)),
    ]
    for page in pages:
        own = re.findall(r"<script[^>]*>", page)
        assert all('src="/static/' in tag for tag in own)
        assert "onerror=y>" not in page.replace("&gt;", "")
        assert 'href="javascript' not in page
        assert page.count("</textarea>") <= 1
    app.state.database.close()


def test_the_pages_never_import_jax(tmp_path):
    script = f"""
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from fastapi.testclient import TestClient
from shardlab.server.application import create_app
from shardlab.server.settings import ServerSettings
app = create_app(ServerSettings(data_folder=Path({str(tmp_path / "data")!r})))
client = TestClient(app, base_url="http://127.0.0.1:8765")
for slug in app.state.catalogue.slugs:
    assert client.get(f"/practice/{{slug}}").status_code == 200
assert client.get("/practice/bytes-on-each-chip/pictures/1.svg").status_code == 200
token = client.get("/practice").text.split('csrf-token" content="')[1].split('"')[0]
data = {{"csrf_token": token, "source": "x = 1"}}
assert client.post("/practice/shard-map-psum/submit", data=data).status_code == 200
print("jax" in sys.modules)
"""
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"
