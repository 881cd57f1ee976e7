"""How a request of the API proves who sends it, as part of the OpenAPI schema."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from shardlab.server.access import ACCESS
from shardlab.server.identity import session_cookie_name
from shardlab.server.local_token import TOKEN_FILE
from shardlab.server.settings import ServerSettings

_METHODS = ("get", "post", "put", "patch", "delete")


def describe_security(app: FastAPI) -> None:
    """Add the token of scripts and the session of browsers to the schema of an application."""
    make_schema = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = make_schema()
            _add_security(schema, app.state.settings)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend a schema


def _add_security(schema: dict[str, Any], settings: ServerSettings) -> None:
    schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["token"] = {
        "type": "http",
        "scheme": "bearer",
        "description": _token_description(settings),
    }
    if settings.is_local:
        schema["security"] = [{"token": []}, {}]  # a page of the server needs none
        return
    schemes["session"] = {
        "type": "apiKey",
        "in": "cookie",
        "name": session_cookie_name(settings),
        "description": "Of a signed-in browser. A request that changes something also has the "
        "header X-CSRF-Token, from the meta element csrf-token of a page.",
    }
    for path, operations in schema["paths"].items():
        for method in _METHODS:
            if method in operations:
                access = ACCESS[f"{method.upper()} {path}"]
                session: list[dict[str, list[str]]] = [{"session": []}]
                token: list[dict[str, list[str]]] = [{"token": []}]
                schemes_of_route = session if access.scope == "browser" else [*token, *session]
                is_open = access.who == "everyone"
                operations[method]["security"] = [*schemes_of_route, *([{}] if is_open else [])]


def _token_description(settings: ServerSettings) -> str:
    if settings.is_local:
        return f"The content of the file {TOKEN_FILE} in the data folder of shardlab."
    return "An API token from the page of the account: it can read, or read and submit."
