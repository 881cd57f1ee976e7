"""Pictures in a notebook or page: the SVG in a figure that scrolls rather than shrinks."""

from __future__ import annotations

from shardlab.layouts.shards import Layout
from shardlab.render.svg import layout_svg


def layout_html(layout: Layout) -> str:
    """Return a layout's picture as an HTML fragment.

    >>> from shardlab.layouts.shards import layout
    >>> layout_html(layout((8, 6), "x", "x=2")).startswith('<figure')
    True
    """
    return f'<figure style="margin:0;overflow-x:auto">{layout_svg(layout)}</figure>'
