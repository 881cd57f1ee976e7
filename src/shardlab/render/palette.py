"""The palette: fill colors that stay distinct with any color vision, and label colors for them.

The eight hues are those of Okabe and Ito (jfly.uni-koeln.de/color, 2008) with gray for black, so
that labels stay readable; higher numbers repeat them in two lighter tints. Color is never the only
carrier of information: a cell also shows its number.

>>> fill_color(0), fill_color(8), label_color(fill_color(0))
('#E69F00', '#F2CB75', '#111111')
"""

from __future__ import annotations

_HUES = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999")
_TINTS = (0.0, 0.46, 0.7)  # fraction of white mixed in
_DARK, _LIGHT = "#111111", "#FFFFFF"


def fill_color(number: int) -> str:
    """Return the color of a number; colors repeat after 24."""
    cycle, hue = divmod(number, len(_HUES))
    return _mix_with_white(_HUES[hue], _TINTS[cycle % len(_TINTS)])


def label_color(fill: str) -> str:
    """Return black or white, whichever has the higher contrast on `fill`."""
    return max(_DARK, _LIGHT, key=lambda label: contrast_ratio(label, fill))


def contrast_ratio(color: str, background: str) -> float:
    """Return the contrast ratio of two colors as WCAG 2 defines it, from 1 to 21."""
    low, high = sorted((_luminance(color), _luminance(background)))
    return (high + 0.05) / (low + 0.05)


def rgb_channels(color: str) -> tuple[int, int, int]:
    """Return red, green and blue, each 0 to 255."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _mix_with_white(color: str, fraction: float) -> str:
    mixed = (round(value + (255 - value) * fraction) for value in rgb_channels(color))
    return "#" + "".join(f"{value:02X}" for value in mixed)


def _luminance(color: str) -> float:
    # Relative luminance of WCAG 2: undo the sRGB transfer curve, then weight the channels.
    linear = []
    for value in rgb_channels(color):
        level = value / 255
        linear.append(level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4)
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
