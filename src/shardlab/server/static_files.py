"""Static files, with headers that let browsers keep them."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from shardlab.server.page_rendering import STATIC_FOLDER, file_digest


class VersionedStaticFiles(StaticFiles):
    """Serves a file that is asked for with its digest (?v=) as one that never changes."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC_FOLDER)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        version = parse_qs(scope["query_string"].decode("latin-1")).get("v", [""])[0]
        is_current = bool(version) and version == file_digest(path)
        policy = "public, max-age=31536000, immutable" if is_current else "no-cache"
        response.headers["cache-control"] = policy
        return response
