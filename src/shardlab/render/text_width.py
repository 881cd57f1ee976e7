"""Widths of proportional text, estimated so that text does not leave its box in any usual font.

A picture does not know which font the reader has. The widths are those of DejaVu Sans, the widest
of the fonts that `system-ui` and `sans-serif` commonly stand for (Arial takes 12 % less).

>>> round(text_width("all-gather")), round(text_width("all-gather", is_code=True))
(59, 73)
"""

from __future__ import annotations

import functools

TEXT_SIZE = 12.0  # pixels
# Hundredths of the text size; characters that are not listed are as wide as high.
_WIDTHS = {
    **dict.fromkeys("'ijlIJ", 29),
    **dict.fromkeys(" ,./:;\\|-f·", 36),
    **dict.fromkeys("()[]!tr", 41),
    **dict.fromkeys('"*_`sz?', 53),
    **dict.fromkeys("cLFkvxyPTYaoe", 62),
    **dict.fromkeys("ESbdghnpqu0123456789${}µ", 64),
    **dict.fromkeys("KAVBRXZCU", 73),
    **dict.fromkeys("HNDG&OQw", 82),
    **dict.fromkeys("#+<=>^~×→≠↓÷M", 86),
}
_BOLD = 1.1
_CODE = 0.605  # every character of a monospace font; Menlo and DejaVu Sans Mono have 0.602


@functools.lru_cache(maxsize=4096)
def text_width(
    text: str, size: float = TEXT_SIZE, *, is_bold: bool = False, is_code: bool = False
) -> float:
    """Return how many pixels a line of text takes at most."""
    if is_code:
        return len(text) * _CODE * size
    return (
        sum(_WIDTHS.get(character, 100) for character in text)
        * size
        / 100
        * (_BOLD if is_bold else 1.0)
    )


def wrap_to_width(text: str, width: float, size: float = TEXT_SIZE) -> list[str]:
    """Return text in lines of at most that many pixels; a longer word has a line of its own.

    >>> wrap_to_width("each device sends 12 MB", 80)
    ['each device', 'sends 12 MB']
    """
    lines: list[str] = []
    for word in text.split():
        extended = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(extended, size) <= width:
            lines[-1] = extended
        else:
            lines.append(word)
    return lines
