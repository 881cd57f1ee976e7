"""The layout explorer: the page that a browser without scripts reads, computed from the URL.

With scripts `web/src/explorer` takes its place and computes the same in the browser.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from shardlab.errors import LabError
from shardlab.server.html_cache import html_cache
from shardlab.server.layout_requests import MAX_TEXT, parse_limited_array
from shardlab.server.page_rendering import render_page, render_part
from shardlab.server.svg_image import svg_data_url
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.layout_picture import layout_picture
from shardlab.sharding.reshard import reshard, reshard_text

router = APIRouter(include_in_schema=False)

DEFAULT_MESH = "data=2,model=4"
DEFAULT_ARRAY = "bf16[4096, 16384]"
DEFAULT_SPEC = "None, model"


@dataclass(frozen=True, kw_only=True)
class LayoutTexts:
    """The texts of the form. Everything on the page follows from them."""

    mesh: str
    array: str
    spec: str
    to: str


@dataclass(frozen=True, kw_only=True)
class LayoutFrame:
    """The context of layout.html."""

    content: Markup
    title: str = "Layout explorer"


@dataclass(frozen=True, kw_only=True)
class LayoutPage(LayoutTexts):
    """The context of _layout.html: the texts of the form and what follows from them."""

    error: LabError | None = None
    facts: tuple[str, ...] = ()
    picture: str = ""  # an image as a data URL
    target_picture: str = ""
    alternative: str = ""
    reshard_text: str = ""
    python_code: str = ""


@router.get("/layout")
def show_layout(
    request: Request,
    mesh: Annotated[str | None, Query()] = None,
    array: Annotated[str | None, Query()] = None,
    spec: Annotated[str | None, Query()] = None,
    to: Annotated[str, Query()] = "",
) -> HTMLResponse:
    is_fresh = mesh is None and array is None and spec is None
    texts = LayoutTexts(
        mesh=(DEFAULT_MESH if mesh is None else mesh)[:MAX_TEXT],
        array=(DEFAULT_ARRAY if array is None else array)[:MAX_TEXT],
        spec=(spec or (DEFAULT_SPEC if is_fresh else ""))[:MAX_TEXT],
        to=to[:MAX_TEXT],
    )
    content = html_cache(request).find_or_render(
        texts, lambda: render_part("_layout.html", make_layout_page(texts))
    )
    return render_page(request, "layout.html", LayoutFrame(content=content))


def make_layout_page(texts: LayoutTexts) -> LayoutPage:
    """Return the page of four texts; an invalid text becomes the page's error."""
    mesh, array, spec, to = texts.mesh, texts.array, texts.spec, texts.to
    page = LayoutPage(mesh=mesh, array=array, spec=spec, to=to)
    try:
        shape, dtype = parse_limited_array(array)
        source = layout(shape, spec, mesh, dtype)
        target = layout(shape, to, source.mesh, dtype) if to else None
        picture = layout_picture(source)
    except LabError as error:
        return replace(page, error=error)
    return replace(
        page,
        facts=picture.facts,
        picture=svg_data_url(source.svg()),
        target_picture="" if target is None else svg_data_url(target.svg()),
        alternative=picture.alternative,
        reshard_text="" if target is None else _reshard_text(source, target),
        python_code=layout_code(source, target),
    )


def _reshard_text(source: Layout, target: Layout) -> str:
    return reshard_text(source, target, reshard(source, target))


def layout_code(source: Layout, target: Layout | None = None) -> str:
    """Return a program that creates the array with this sharding, then reshards it.

    The same text as web/src/explorer/python_code.ts makes; tests/web/test_layout_port.py compares.
    """
    is_key = source.dtype.name.startswith("key<")
    array = f"jnp.zeros({source.shape}, {source.dtype.name!r})"
    if is_key:
        array = f"jax.random.split(jax.random.key(0), {source.shape})"
    mesh = source.mesh
    lines = [
        "import jax",
        *([] if is_key else ["import jax.numpy as jnp"]),
        "from jax.sharding import NamedSharding, PartitionSpec as P",
        "",
        f"mesh = jax.make_mesh({mesh.axis_sizes}, {mesh.axis_names})",
        f"sharding = NamedSharding(mesh, {source.spec})",
        f"x = jax.device_put({array}, sharding)",
    ]
    if target is not None:
        lines.append(f"y = jax.device_put(x, NamedSharding(mesh, {target.spec}))")
    return "\n".join(lines) + "\n"
