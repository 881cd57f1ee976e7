"""TOML of unknown origin, parsed in bounded time.

>>> parse_toml("a.b = 1")
{'a': {'b': 1}}
>>> parse_toml("a" + ".a" * 50_000 + " = 1")
Traceback (most recent call last):
    ...
ValueError: a key has more than 30 parts between dots
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

# `tomllib` takes quadratic time in the number of parts of a dotted key. The lookbehind anchors the
# match at the first part, so that a long text without a dot is scanned once, not once per letter.
_LONG_KEY = re.compile(r"""(?<![\w"'.-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){30}""")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text; raises `ValueError` or `RecursionError` if it is invalid."""
    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 30 parts between dots")
    return tomllib.loads(text)
