"""The palette: colours that people with any colour vision can tell apart, and labels on them.

The eight hues are those of Okabe and Ito (jfly.uni-koeln.de/color, 2008) with grey for black, so
that labels stay readable; further slices repeat them in two lighter tints. Colour never says
anything alone: every cell also carries its slice's number.

>>> fill_color(0), fill_color(8), label_color(fill_color(0))
('#E69F00', '#F2CB75', '#111111')
"""

from __future__ import annotations

_HUES = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999")
_TINTS = (0.0, 0.46, 0.7)  # how far towards white
_DARK, _LIGHT = "#111111", "#FFFFFF"


def fill_color(shard: int) -> str:
    """Return the colour of a slice by its number; slices repeat after 24."""
    cycle, hue = divmod(shard, len(_HUES))
    return _lighter(_HUES[hue], _TINTS[cycle % len(_TINTS)])


def label_color(fill: str) -> str:
    """Return black or white, whichever stands out more on `fill`."""
    return max(_DARK, _LIGHT, key=lambda label: contrast(label, fill))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it, from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue, each 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _lighter(colour: str, share: float) -> str:
    mixed = (round(value + (255 - value) * share) for value in channels(colour))
    return "#" + "".join(f"{value:02X}" for value in mixed)


def _luminance(colour: str) -> float:
    linear = []
    for value in channels(colour):
        share = value / 255
        linear.append(share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
