"""An SVG of shardlab as an image in a page.

The pictures have a style element, which the Content-Security-Policy of the pages does not allow in
the page itself. An image is a document of its own: its styles stay inside, and it runs no scripts.
"""

from __future__ import annotations

from base64 import b64encode


def svg_data_url(svg: str) -> str:
    """Return the picture as a URL for the `src` of an image.

    >>> svg_data_url("<svg/>")
    'data:image/svg+xml;base64,PHN2Zy8+'
    """
    return "data:image/svg+xml;base64," + b64encode(svg.encode()).decode()
