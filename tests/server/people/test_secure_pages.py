"""What every page of a server with accounts sends: headers, no inline code, no internals."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest
from people_server import PeopleServer

from shardlab import server as server_package
from shardlab.server.page_rendering import template_environment
from shardlab.server.practice.statement_html import render_statement

PACKAGE = Path(server_package.__file__).parent
TEMPLATES = sorted((PACKAGE / "templates").rglob("*.html"))
# A page of each kind: read, refused, missing, sent elsewhere, as data.
PATHS = ("/", "/sign-in", "/admin", "/nowhere", "/account", "/api/v1/account", "/join/1-x")


def test_every_response_has_a_policy_without_inline_code_or_eval(server):
    browser = server.person("Ada")
    for client in (browser, server.browser()):
        for path in PATHS:
            policy = client.get(path).headers["content-security-policy"]
            directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
            assert directives["default-src"] == "'none'"
            assert re.fullmatch(r"'self' 'nonce-[\w-]{22}'", directives["script-src"])
            assert directives["style-src"] == "'self'"
            assert directives["frame-ancestors"] == directives["base-uri"] == "'none'"
            assert directives["form-action"] == "'self'"
            assert "unsafe" not in policy
            assert "http" not in policy


def test_the_nonce_differs_in_every_response_and_is_that_of_the_page(server):
    nonces = []
    for _ in range(2):
        response = server.browser().get("/sign-in")
        nonce = re.search("'nonce-([^']+)'", response.headers["content-security-policy"])[1]
        assert f'<script nonce="{nonce}"' in response.text
        nonces.append(nonce)
    assert nonces[0] != nonces[1]


# What htmx or its extension for streams acts on; the other attributes only say how.
_HTMX_ACTION = re.compile(
    r"<[^<>]*\s(?:data-)?hx-(?:get|post|put|patch|delete|action|boost|sse:connect|on)\b"
)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_element_of_htmx_has_the_nonce_of_its_response(path):
    # Tags of Jinja inside of an element have characters that end an element.
    text = re.sub(r"{%.*?%}", "", path.read_text("utf-8"))
    for element in _HTMX_ACTION.findall(text):
        assert 'hx-nonce="{{ hx_nonce }}"' in element, "without it hx-csp strips the element"


def test_pages_of_a_person_are_in_no_cache(server):
    browser = server.person("Ada")
    for path in ("/", "/account", "/classes", "/api/v1/account", "/account/export.zip"):
        response = browser.get(path)
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "same-origin"  # of a join link, too


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_inline_code_or_unescaped_text(path):
    text = path.read_text("utf-8")
    assert not re.search(r"<style|\sstyle\s*=", text, re.IGNORECASE)
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", text, re.IGNORECASE)
    assert "javascript:" not in text
    for attributes, content in re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL):
        # JSON for a script is data, and no code.
        assert "src=" in attributes or 'type="application/json"' in attributes
        assert "src=" not in attributes or not content.strip()
    assert not re.search(r"(src|href|action)=\"(https?:)?//", text)
    for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", text, re.DOTALL):
        assert 'name="csrf_token"' in form, form[:200]


def test_templates_escape_by_default():
    environment = template_environment()
    assert environment.autoescape is True
    assert environment.from_string("{{ x }}").render(x="<b>'\"&") == "&lt;b&gt;&#39;&#34;&amp;"


def test_names_titles_and_comments_are_shown_as_text(server):
    teacher = server.person("Tess", "teacher")
    attack = "<img src=x onerror=alert(1)>"
    class_id = server.make_class(teacher, title=attack)
    token = server.people.classes.join_token(class_id)
    for path in ("/classes", f"/classes/{class_id}", f"/join/{token}"):
        page = teacher.get(path).text
        assert attack not in page
        assert "&lt;img src=x" in page
    page = server.browser().post("/sign-in", {"name": attack, "password": "x"}).text
    assert attack not in page


def test_statements_of_a_foreign_catalogue_are_sanitised():
    statement = """# Title

## The task

<script>alert(1)</script> <img src=x onerror=alert(1)> **bold**

[click](javascript:alert(1)) [data](data:text/html;base64,xx) ![image](https://evil.example/x.png)
[fine](https://example.org/)
"""
    blocks = render_statement(statement, "/pictures").blocks
    html = "".join(str(block) for block in blocks)
    assert "<strong>bold</strong>" in html
    assert 'href="https://example.org/"' in html
    for wrong in ("<script", "<img", 'href="javascript', 'href="data'):
        assert wrong not in html.lower()


def test_an_error_shows_nothing_of_the_inside_and_is_in_the_log(tmp_path, caplog, monkeypatch):
    server = PeopleServer(tmp_path)
    browser = server.person("Ada")
    strict = browser.client

    def fail(*_):
        raise RuntimeError("the password is /srv/secret")

    monkeypatch.setattr(server.people.sessions, "list_sessions", fail)
    for path in ("/account", "/api/v1/account/sessions"):
        with caplog.at_level(logging.ERROR, "shardlab.server"):
            response = strict.get(path)
        assert response.status_code == 500
        for inside in (
            "RuntimeError",
            "Traceback",
            "/srv/secret",
            "sqlite",
            "site-packages",
            ".py",
        ):
            assert inside not in response.text
        assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "the password is /srv/secret" in caplog.text
    # Also where nobody knows yet who sends the request.
    monkeypatch.setattr(server.people.sessions, "find", fail)
    response = strict.get("/")
    assert response.status_code == 500
    assert "/srv/secret" not in response.text
    server.close()


def test_bodies_and_fields_above_their_limit_are_refused(server):
    browser = server.person("Ada", "teacher")
    token = browser.csrf_token()
    response = browser.client.post(
        "/classes", content=b"x" * (5 << 20), headers={"x-csrf-token": token}
    )
    assert response.status_code == 413

    def chunks():  # without a Content-Length
        for _ in range(80):
            yield b"x" * (1 << 16)

    headers = {"x-csrf-token": token, "content-type": "application/json"}
    response = browser.client.post("/api/v1/classes", content=chunks(), headers=headers)
    assert response.status_code == 413
    for name, value in (("title", "x" * 3000), ("password", "x" * 3000)):
        path = {"title": "/classes", "password": "/sign-in"}[name]
        assert browser.post(path, {name: value}).status_code == 422
    assert browser.send_json("POST", "/api/v1/classes", {"title": "x" * 81}).status_code == 422
    cookie = {"cookie": "shardlab_session=" + "x" * 5000}
    assert server.browser().client.get("/account", headers=cookie).status_code == 303


def test_secrets_are_compared_in_constant_time():
    # A token is looked up by its hash, or compared with compare_digest; never with ==.
    words = re.compile("token|digest|secret|password|csrf")
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
                text = ast.unparse(node)
                is_query = "Row." in text or "file_digest" in text  # by the database; no secret
                is_named = bool(words.search(text.lower()))
                assert not is_named or is_query, f"{path.name}:{node.lineno}: {text}"
    assert "compare_digest" in (PACKAGE / "request_guard.py").read_text()
    assert "compare_digest" in (PACKAGE / "people" / "classes.py").read_text()
