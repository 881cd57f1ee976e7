"""Scripts: the token of local mode, layouts as JSON, HEAD, and the schema's security."""

from __future__ import annotations

import json
import stat

import pytest
from click.testing import CliRunner

from server.asgi_client import TestClient
from shardlab.cli import main
from shardlab.server.application import create_app
from shardlab.server.local_token import TOKEN_FILE, read_local_token
from shardlab.server.settings import ServerSettings

URL = "http://127.0.0.1:8765"
LAYOUT = {"array": "f32[512,512]", "mesh": "data=8", "spec": "data", "to": "None,data"}


@pytest.fixture
def app(tmp_path):
    app = create_app(ServerSettings(data_folder=tmp_path))  # without a lifespan: no worker
    yield app
    app.state.database.close()


@pytest.fixture
def script(app, tmp_path):
    """A client that has only what the file says: no cookie, no page."""
    token = (tmp_path / TOKEN_FILE).read_text().strip()
    return TestClient(app, base_url=URL, headers={"authorization": f"Bearer {token}"})


def test_the_local_token_is_readable_by_its_owner_only_and_stays(tmp_path):
    token = read_local_token(tmp_path)
    path = tmp_path / TOKEN_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_local_token(tmp_path) == token
    assert [file.name for file in tmp_path.iterdir()] == [TOKEN_FILE]
    # What others could read is not used any more.
    path.chmod(0o644)
    assert read_local_token(tmp_path) != token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("guess")
    assert len(read_local_token(tmp_path)) > 40


def test_a_script_with_the_local_token_needs_no_csrf_token(script):
    job = script.post("/api/v1/recordings", json={"source": "x = 1", "mesh": "data=2"})
    assert (job.status_code, job.json()["state"]) == (202, "queued")


@pytest.mark.parametrize("value", ["Bearer wrong", "Bearer ", "Basic eDp5", "Bearer \xe9"])
def test_another_token_is_refused(app, value):
    client = TestClient(app, base_url=URL, headers={"authorization": value.encode("latin-1")})
    response = client.post("/api/v1/layouts", json=LAYOUT)
    assert response.status_code == 401


def test_without_a_token_the_csrf_token_is_still_needed(app):
    assert TestClient(app, base_url=URL).post("/api/v1/layouts", json=LAYOUT).status_code == 403


def test_a_layout_is_what_the_command_writes(script):
    command = ["layout", LAYOUT["array"], "--mesh", LAYOUT["mesh"], "--spec", LAYOUT["spec"]]
    command += ["--json", "-"]
    plain = {key: LAYOUT[key] for key in ("array", "mesh", "spec")}
    expected = json.loads(CliRunner().invoke(main, command).stdout)
    assert script.post("/api/v1/layouts", json=plain).json() == expected
    options = ["--to", LAYOUT["to"], "--device", "3"]
    expected = json.loads(CliRunner().invoke(main, [*command, *options]).stdout)
    data = script.post("/api/v1/layouts", json={**LAYOUT, "device": "3"}).json()
    assert data == expected
    assert data["to"]["shard_shape"] == [512, 64]
    assert [step["kind"] for step in data["reshard"]] == ["all_to_all"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"spec": "rows"}, "layout.unknown_axis"),
        ({"array": "f32[510,512]"}, "layout.indivisible"),
        ({"array": f"f32[{2**63},{2**63},{2**63},{2**63}]"}, "layout.invalid_size"),
        ({"device": "8"}, "layout.unknown_device"),
    ],
)
def test_an_invalid_layout_is_an_error_with_its_code(script, change, code):
    response = script.post("/api/v1/layouts", json={**LAYOUT, **change})
    assert (response.status_code, response.json()["error"]["code"]) == (422, code)
    assert response.json()["error"]["fix"]


@pytest.mark.parametrize(
    "path", ["/", "/lab", "/layout", "/practice", "/health", "/api/v1/gallery", "/static/site.css"]
)
def test_head_has_the_headers_of_get_and_no_body(app, path):
    # Uncompressed: every page has a nonce of its own, which compresses to another length.
    client = TestClient(app, base_url=URL, headers={"accept-encoding": "identity"})
    get, head = client.get(path), client.head(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    for name in ("content-type", "content-length", "x-frame-options"):
        assert head.headers.get(name) == get.headers.get(name)


def test_head_finds_no_page_where_get_finds_none(app):
    client = TestClient(app, base_url=URL)
    assert client.head("/nowhere").status_code == 404
    assert client.head("/api/v1/layouts").status_code == 405


def test_the_schema_describes_the_token(script):
    schema = script.get("/api/v1/openapi.json").json()
    scheme = schema["components"]["securitySchemes"]["token"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert TOKEN_FILE in scheme["description"]
    assert {"token": []} in schema["security"]
