"""The layout explorer: the page that a browser without scripts reads, computed from the URL.

With scripts `web/src/explorer` takes its place and computes the same in the browser.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from shardlab.errors import InvalidSize, LabError
from shardlab.server.page_rendering import render_page
from shardlab.server.svg_image import svg_data_url
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.layout_picture import layout_picture
from shardlab.sharding.reshard import reshard, reshard_text
from shardlab.sharding.shape import parse_array

router = APIRouter(include_in_schema=False)

MAX_TEXT = 400  # characters of one field, as in web/src/explorer/state.ts
_LARGEST_ARRAY = 2**200  # elements: amounts of bytes stay printable
DEFAULT_MESH = "data=2,model=4"
DEFAULT_ARRAY = "bf16[4096, 16384]"
DEFAULT_SPEC = "None, model"


@dataclass(frozen=True, kw_only=True)
class LayoutPage:
    """The context of layout.html: the texts of the form and what follows from them."""

    mesh: str
    array: str
    spec: str
    to: str
    error: LabError | None = None
    facts: tuple[str, ...] = ()
    picture: str = ""  # an image as a data URL
    target_picture: str = ""
    alternative: str = ""
    reshard_text: str = ""
    python_code: str = ""
    title: str = "Layout explorer"


@router.get("/layout")
def show_layout(
    request: Request,
    mesh: Annotated[str | None, Query()] = None,
    array: Annotated[str | None, Query()] = None,
    spec: Annotated[str | None, Query()] = None,
    to: Annotated[str, Query()] = "",
) -> HTMLResponse:
    is_fresh = mesh is None and array is None and spec is None
    page = make_layout_page(
        mesh=DEFAULT_MESH if mesh is None else mesh,
        array=DEFAULT_ARRAY if array is None else array,
        spec=spec or (DEFAULT_SPEC if is_fresh else ""),
        to=to,
    )
    return render_page(request, "layout.html", page)


def make_layout_page(*, mesh: str, array: str, spec: str, to: str) -> LayoutPage:
    """Return the page of four texts; an invalid text becomes the page's error."""
    mesh, array, spec, to = (text[:MAX_TEXT] for text in (mesh, array, spec, to))
    page = LayoutPage(mesh=mesh, array=array, spec=spec, to=to)
    try:
        shape, dtype = parse_array(array)
        if prod(shape) >= _LARGEST_ARRAY:
            raise InvalidSize(
                "The array has 2**200 elements or more.",
                fix="a smaller shape, such as 4096x16384:bf16.",
            )
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
