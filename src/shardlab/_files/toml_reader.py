"""TOML that somebody else wrote, read only where that takes a moment.

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

# Python's own reader takes the square of a key's parts in time. Where no part stands before, so
# that long texts without a dot are looked at once.
_LONG_KEY = re.compile(r"""(?<![\w"'.-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){30}""")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a text; `ValueError` or `RecursionError` where there is none."""
    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 30 parts between dots")
    return tomllib.loads(text)
