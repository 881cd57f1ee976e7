"""The guard: another site in the person's browser cannot drive the server, and sizes are capped."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from fastapi import Form, Request

from server.asgi_client import TestClient
from shardlab.server.application import create_app
from shardlab.server.page_rendering import STATIC_FOLDER, file_digest
from shardlab.server.request_guard import MAX_BODY_BYTES
from shardlab.server.settings import ServerSettings

HOST = "127.0.0.1:8765"
URL = f"http://{HOST}"
JOB = {"source": "x = 1", "mesh": "data=2"}


@pytest.fixture
def app(tmp_path):
    # Without a lifespan no worker starts: jobs stay in the queue.
    app = create_app(ServerSettings(data_folder=tmp_path))

    @app.post("/test/form")
    async def read_form(name: str = Form()) -> dict[str, str]:
        return {"name": name}

    @app.post("/test/body")
    async def read_body(request: Request) -> dict[str, int]:
        return {"n_bytes": len(await request.body())}

    @app.get("/test/fault")
    def fail() -> None:
        raise ZeroDivisionError("secret detail")

    @app.get("/api/v1/test-fault")
    def fail_in_api() -> None:
        raise ZeroDivisionError("secret detail")

    yield app
    app.state.database.close()


@pytest.fixture
def client(app):
    """A browser that has opened a page: it has the cookie and knows the token."""
    client = TestClient(app, base_url=URL)
    page = client.get("/")
    client.token = re.search(r'csrf-token" content="(\w+)"', page.text)[1]
    client.csrf = {"x-csrf-token": client.token}
    return client


def create(client, **headers):
    return client.post("/api/v1/recordings", json=JOB, headers=headers)


# ----------------------------------------------------------------------------- host and origin


@pytest.mark.parametrize("host", [HOST, "localhost:8765", "[::1]:8765"])
def test_loopback_names_are_served(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1", "127.0.0.1:80", "", "localhost"]
)
def test_another_host_name_is_refused_before_anything_else(client, host):
    response = client.get("/api/v1/gallery", headers={"host": host})
    assert response.status_code == 421
    assert "host name" in response.json()["error"]["message"]


def test_the_port_may_be_left_out_if_it_is_the_one_of_http(tmp_path):
    settings = ServerSettings(data_folder=tmp_path, port=80)
    assert {"localhost", "127.0.0.1", "localhost:80"} <= settings.allowed_hosts
    assert "localhost" not in ServerSettings(data_folder=tmp_path).allowed_hosts


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "https://127.0.0.1:8765"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8765.evil.example"},
        {"origin": "http://127.0.0.1:8765@evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_request_from_another_site_changes_nothing_even_with_the_token(client, headers):
    assert create(client, **client.csrf, **headers).status_code == 403


@pytest.mark.parametrize(
    "headers", [{}, {"origin": URL}, {"sec-fetch-site": "same-origin", "origin": URL}]
)
def test_a_request_of_our_own_page_is_served(client, headers):
    assert create(client, **client.csrf, **headers).status_code == 202


# ---------------------------------------------------------------------------------- CSRF token


def test_a_request_without_the_token_is_refused(client):
    response = create(client)
    assert response.status_code == 403
    assert response.json()["error"]["message"] == "The CSRF token is missing."


@pytest.mark.parametrize("token", ["", "0" * 64, "x", "\u00e9".encode("latin-1").decode("latin-1")])
def test_a_wrong_token_is_refused(client, token):
    assert create(client, **{"x-csrf-token": token.encode("latin-1")}).status_code == 403


def test_the_token_of_another_browser_is_refused(app, client):
    other = TestClient(app, base_url=URL)
    other.get("/")
    assert create(other, **client.csrf).status_code == 403


def test_a_form_carries_the_token_as_a_field(client):
    accepted = client.post("/test/form", data={"name": "ada", "csrf_token": client.token})
    assert accepted.json() == {"name": "ada"}
    for data in ({"name": "ada"}, {"name": "ada", "csrf_token": "0" * 64}):
        assert client.post("/test/form", data=data).status_code == 403


def test_a_form_with_files_carries_the_token_as_a_field(client):
    fields = {"name": (None, "ada"), "csrf_token": (None, client.token)}
    assert client.post("/test/form", files=fields).json() == {"name": "ada"}
    assert client.post("/test/form", files={"name": (None, "ada")}).status_code == 403
    as_file = {"name": (None, "ada"), "csrf_token": ("a.txt", client.token)}
    assert client.post("/test/form", files=as_file).status_code == 403


def test_a_form_that_cannot_be_read_is_a_sentence(client):
    response = client.post(
        "/test/form", content=b"no form", headers={"content-type": "multipart/form-data"}
    )
    assert response.status_code == 400


def test_a_form_cannot_reach_the_api(client):
    # A page of another site can send forms; the API takes no field for the token.
    job_id = create(client, **client.csrf).json()["id"]
    data = {"csrf_token": client.token}
    assert client.post(f"/api/v1/jobs/{job_id}/cancel", data=data).status_code == 403
    assert client.get(f"/api/v1/jobs/{job_id}").json()["state"] == "queued"


@pytest.mark.parametrize(
    "authorization", ["Bearer x", "Bearer ", "Basic eDp4", "bearer 0", "Digest"]
)
def test_an_authorization_header_replaces_no_csrf_token(client, authorization):
    assert create(client, authorization=authorization).status_code in (401, 403)


# ---------------------------------------------------------------------------------------- size


def test_a_body_above_the_limit_is_refused(client):
    content = b"x" * (MAX_BODY_BYTES + 1)
    response = client.post("/test/body", content=content, headers=client.csrf)
    assert response.status_code == 413
    exact = client.post("/test/body", content=content[:-1], headers=client.csrf)
    assert exact.json() == {"n_bytes": MAX_BODY_BYTES}


@pytest.mark.parametrize("path", ["/test/body", "/api/v1/recordings", "/test/form"])
def test_a_body_without_a_length_is_refused_at_the_limit(client, path):
    def chunks():
        for _ in range(MAX_BODY_BYTES // 2**16 + 1):
            yield b"x" * 2**16

    kind = "application/x-www-form-urlencoded" if path == "/test/form" else "application/json"
    headers = {"content-type": kind, **({} if path == "/test/form" else client.csrf)}
    assert client.post(path, content=chunks(), headers=headers).status_code == 413


@pytest.mark.parametrize("length", ["-1", "1e3", "x", "99999999999999999999", "\u00b2"])
def test_a_length_that_is_no_number_or_too_large_is_refused(client, length):
    headers = {**client.csrf, "content-length": length.encode("latin-1")}
    response = client.post("/test/body", content=b"", headers=headers)
    assert response.status_code == 413


# ------------------------------------------------------------------------------------- headers


@pytest.mark.parametrize(
    "path", ["/", "/nowhere", "/test/fault", "/api/v1/test-fault", "/static/site.css", "/health"]
)
def test_every_response_has_the_security_headers(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_an_internal_error_shows_no_internals(client):
    page, body = client.get("/test/fault"), client.get("/api/v1/test-fault")
    assert page.status_code == body.status_code == 500
    for text in (page.text, body.text):
        assert "secret detail" not in text
        assert "ZeroDivisionError" not in text
        assert "in the log" in text
    assert body.json()["error"]["status"] == 500


def test_the_cookie_of_a_browser_is_for_this_server_alone(app):
    cookie = TestClient(app, base_url=URL).get("/").headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))


def test_a_cookie_that_is_known_is_not_set_again(client):
    assert "set-cookie" not in client.get("/").headers


def test_pages_are_not_stored_and_static_files_are_kept(client):
    assert client.get("/").headers["cache-control"] == "no-store"
    name = "site.css"
    kept = client.get(f"/static/{name}?v={file_digest(name)}")
    assert kept.content == (STATIC_FOLDER / name).read_bytes()
    assert "immutable" in kept.headers["cache-control"]
    for version in ("", "?v=old", "?v="):
        headers = client.get(f"/static/{name}{version}").headers
        assert headers["cache-control"] == "no-cache"
        assert headers["etag"]


@pytest.mark.parametrize("path", ["/static/../settings.py", "/static/%2e%2e/settings.py"])
def test_static_files_end_at_their_folder(client, path):
    assert client.get(path).status_code == 404


def test_large_responses_are_compressed(client):
    response = client.get("/api/v1/openapi.json", headers={"accept-encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"
    assert json.loads(response.content)["info"]["title"] == "shardlab"


# ------------------------------------------------------------------------------ errors as JSON


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "source"),
        ({"source": ""}, "source"),
        ({"source": "x" * (256 * 1024 + 1)}, "source"),
        ({"source": "x", "mesh": "m" * 201}, "mesh"),
        ({"source": "x", "target": "t" * 201}, "target"),
        ({"source": "x", "edit": "e" * 201}, "edit"),
        ({"source": 3}, "source"),
        ({"source": "x", "unknown": 1}, "unknown"),
    ],
)
def test_a_body_that_is_not_valid_names_its_field(client, body, field):
    response = client.post("/api/v1/recordings", json=body, headers=client.csrf)
    error = response.json()["error"]
    assert (response.status_code, error["status"]) == (422, 422)
    # "source: ...", or a sentence with what people call it: "The program is missing."
    titles = {"source": "the program", "mesh": "the mesh", "target": "the name of the function"}
    assert error["message"].lower().startswith((field, titles.get(field, field)))
    assert error["fields"][0]["field"] == field


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"nul"])
def test_a_body_that_is_no_json_object_is_an_error_of_the_same_shape(client, content):
    headers = {**client.csrf, "content-type": "application/json"}
    response = client.post("/api/v1/recordings", content=content, headers=headers)
    assert response.status_code in (400, 422)
    assert response.json()["error"]["message"]


def test_a_mesh_or_chip_that_is_not_known_is_refused_with_a_fix(client):
    for options in ({"mesh": "data=0"}, {"mesh": "no mesh"}, {"hardware": "tpu-v99"}):
        body = {"source": "x = 1", **options}
        response = client.post("/api/v1/recordings", json=body, headers=client.csrf)
        assert response.status_code == 422, options
        assert response.json()["error"]["code"]


def test_a_chip_is_a_name_and_never_a_file(client, tmp_path):
    file = tmp_path / "chip.toml"
    file.write_text("secret = 1")
    body = {"source": "x = 1", "hardware": str(file)[-60:]}
    response = client.post("/api/v1/recordings", json=body, headers=client.csrf)
    assert response.status_code == 422
    assert "secret" not in response.text


@pytest.mark.parametrize(
    "path", ["/api/v1/jobs/none", "/api/v1/recordings/none", "/api/v1/recordings/none.html"]
)
def test_what_does_not_exist_is_404_of_the_same_shape(client, path):
    response = client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["status"] == 404


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no recording",
        b"{}",
        b'{"format": "shardlab-recording", "version": 1}',
        b'{"format": "shardlab-recording", "version": 99}',
        b"\x1f\x8b broken",
        gzip.compress(b"{}", mtime=0),
        gzip.compress(b" " * (65 * 2**20), mtime=0),
        b"[" * 1_000_000,
    ],
)
def test_a_file_that_is_no_recording_is_refused(client, content):
    response = client.post("/api/v1/recordings/files", content=content, headers=client.csrf)
    assert response.status_code == 422
    assert "recording" in response.json()["error"]["message"].lower()
