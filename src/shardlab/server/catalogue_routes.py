"""The practice routes once more, for each catalogue of a teacher.

The handlers are the same: `workbook_of` reads the catalogue from the path. Each route is added with
its full path, because the access table is looked up by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Depends, Path
from fastapi.routing import APIRoute

from shardlab.server.access import catalogue_path


def _check_catalogue_id(catalogue_id: Annotated[int, Path(ge=1, le=2**53 - 1)]) -> None:
    """Declare the parameter, which the handlers do not take themselves."""


def catalogue_practice_router(routers: Iterable[APIRouter]) -> APIRouter:
    """Return all practice routes below /catalogues/{catalogue_id}."""
    copies = APIRouter()
    for router in routers:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            path = catalogue_path(route.path_format)
            assert path is not None, route.path_format
            copies.add_api_route(
                path,
                route.endpoint,
                methods=sorted(route.methods or ()),
                status_code=route.status_code,
                tags=list(route.tags),
                responses=dict(route.responses),
                response_class=route.response_class,
                include_in_schema=route.include_in_schema,
                dependencies=[Depends(_check_catalogue_id), *route.dependencies],
            )
    return copies
