"""The weight of a page: the compressed bytes of all files that a browser loads to show it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit


def page_weight(url: str, fetch: Callable[[str], bytes]) -> int:
    """Return the compressed bytes of a page with its styles, fonts, scripts and their imports."""
    sizes: dict[str, int] = {}
    pending = [url]
    while pending:
        address = pending.pop()
        if address in sizes or urlsplit(address).netloc != urlsplit(url).netloc:
            continue
        body = fetch(address)
        path = urlsplit(address).path
        # Fonts are compressed already.
        is_font = path.endswith(".woff2")
        sizes[address] = len(body) if is_font else len(gzip.compress(body, 9))
        if is_font or path.endswith(".svg"):
            continue
        text = body.decode("utf-8", "replace")
        pending += [urljoin(address, link) for link in _links(path, text)]
    return sum(sizes.values())


def _links(path: str, text: str) -> list[str]:
    if path.endswith(".css"):
        return re.findall(r'url\("([^"]+)"\)', text)
    if path.endswith(".js"):
        return re.findall(r'(?:from|import)\s*\(?"(\./[^"]+\.js)"', text)
    return re.findall(r'<(?:script|link|img)[^>]*?(?:src|href)="([^"]+)"', text)
