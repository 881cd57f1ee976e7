"""The home page: what shardlab does, and where to begin."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from shardlab.server.page_rendering import render_page

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, kw_only=True)
class HomePage:
    """The context of home.html."""

    title: str = "shardlab"


@router.get("/")
async def show_home(request: Request) -> HTMLResponse:
    return render_page(request, "home.html", HomePage())
