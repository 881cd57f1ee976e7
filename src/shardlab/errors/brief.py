"""Values and texts as errors show them: never long, never failing, and moving no cursor.

>>> brief([1, "two"]), brief("x" * 200, 8), brief(10**5000)
("[1, 'two']", "'xxxxxxx", 'a whole number of 16,610 bits')
"""

from __future__ import annotations

import re

# What a terminal obeys, what turns the reading direction, and halves of characters, which no
# terminal can be sent; lines and tabs are ours.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def brief(value: object, most: int = 80) -> str:
    """Return how Python writes a value, cut off; in words where it cannot write it.

    Python refuses whole numbers of thousands of digits and lists a thousand deep, and what
    a person's class says of itself may raise anything.
    """
    if isinstance(value, (str, bytes)):
        value = value[:most]
    try:
        return seen(repr(value)[:most])
    except Exception:
        if isinstance(value, int):
            return f"a whole number of {int(value).bit_length():,} bits"
        return f"a {type(value).__name__} that cannot be shown"


def seen(text: str) -> str:
    """Return text with an escape in place of each character that nobody would see.

    >>> seen("a\\x1b[31mb\\u202e")
    'a\\\\x1b[31mb\\\\u202e'
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
