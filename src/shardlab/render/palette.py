"""The palette: one hue for each mesh axis, one shade for each coordinate along it.

A color means the same in every picture: the third device along `model` has the same shade in the
terminal, in the SVGs and on the pages (`web/src/shared/palette.ts` has the same numbers, and tests
compare both). Hues follow the order of the axes in the mesh. Along an axis the shade goes away from
the paper: coordinate 0 is the faintest, the last coordinate the strongest.

What is not a mesh axis has no hue: kinds of memory and operations are shades of slate. Red is
reserved for what is wrong. Color is never the only sign: each cell has a label, a texture or both.

>>> axis_shade(0, 0, 4).light, axis_shade(0, 3, 4).light, axis_shade(1, 3, 4).light
('#CCE0F9', '#4A91DD', '#CA7620')
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

# Hue, then chroma at both ends of the light ramp and of the dark ramp, in OKLCH (Ottosson 2020).
# All axes have the same lightness at the same fraction of the ramp, so none looks more important
# than another. The first four hues differ with every kind of color vision, as
# tests/render/test_palette.py proves; 27, the hue of red, is left out. The chroma is what sRGB can
# show at that hue and lightness.
AXIS_HUES = (
    (252, 0.040, 0.135, 0.060, 0.135),  # blue
    (60, 0.055, 0.140, 0.055, 0.115),  # orange
    (165, 0.070, 0.125, 0.050, 0.100),  # green
    (340, 0.055, 0.150, 0.070, 0.145),  # pink
    (105, 0.100, 0.125, 0.050, 0.100),  # yellow
    (215, 0.055, 0.105, 0.042, 0.085),  # cyan
    (300, 0.045, 0.150, 0.070, 0.145),  # violet
    (130, 0.090, 0.150, 0.060, 0.125),  # lime
)
_SLATE = (255, 0.006, 0.020, 0.010, 0.020)
# Lightness at both ends. Light shades have dark ink and dark ones light ink, with a contrast of at
# least 4.5 (WCAG 2, level AA) all along the ramp, so labels within a picture have one color.
LIGHT_RAMP, DARK_RAMP = (0.90, 0.645), (0.30, 0.525)


@dataclass(frozen=True)
class Color:
    """A color with its name and its values on light and on dark paper.

    The name is a CSS class. Equal names have equal values, so pictures on one page share them.
    """

    name: str
    light: str
    dark: str


PAPER = Color("paper", "#FFFFFF", "#14171C")
INK = Color("ink", "#14171C", "#F2F4F7")
FAINT = Color("faint", "#565C66", "#A9B0BB")
LINE = Color("line", "#C3C8D0", "#434A55")  # borders and grid lines
PANEL = Color("panel", "#F2F4F7", "#1E2229")  # behind groups and lanes
WRONG = Color("wrong", "#F2877B", "#93261E")  # copies that disagree, wrong values
ALARM = Color("alarm", "#B3261E", "#FF9C90")  # text and frames of what is wrong, on paper


@functools.cache
def axis_shade(axis: int, coordinate: int, size: int) -> Color:
    """Return the color of a coordinate along a mesh axis: the `axis`th of the mesh, of that size.

    A ninth axis has the hue of the first: a mesh has names along its edges, so it stays readable.
    """
    hue = AXIS_HUES[axis % len(AXIS_HUES)]
    return _ramp_color(f"a{axis % len(AXIS_HUES)}", hue, coordinate, size)


@functools.cache
def slate_shade(position: int, count: int) -> Color:
    """Return the color of the `position`th of `count` things that are not mesh axes."""
    return _ramp_color("s", _SLATE, position, count)


def _ramp_color(
    name: str, hue: tuple[float, float, float, float, float], position: int, count: int
) -> Color:
    # A single position is the middle of the ramp: neither the first nor the last of several.
    fraction = position / (count - 1) if count > 1 else 0.5
    light = _oklch_hex(_between(LIGHT_RAMP, fraction), _between(hue[1:3], fraction), hue[0])
    dark = _oklch_hex(_between(DARK_RAMP, fraction), _between(hue[3:5], fraction), hue[0])
    return Color(f"{name}-{position}-{count}", light, dark)


def _between(ends: tuple[float, ...], fraction: float) -> float:
    return ends[0] + (ends[1] - ends[0]) * fraction


def oklch_channels(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    """Return linear sRGB, each 0 to 1 if the screen can show the color (Ottosson 2020)."""
    a = chroma * math.cos(math.radians(hue))
    b = chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def _oklch_hex(lightness: float, chroma: float, hue: float) -> str:
    digits = []
    for value in oklch_channels(lightness, chroma, hue):
        level = min(max(value, 0.0), 1.0)
        level = 12.92 * level if level <= 0.0031308 else 1.055 * level ** (1 / 2.4) - 0.055
        digits.append(f"{math.floor(level * 255 + 0.5):02X}")
    return "#" + "".join(digits)


def contrast_ratio(color: str, background: str) -> float:
    """Return the contrast ratio of two colors as WCAG 2 defines it, from 1 to 21."""
    low, high = sorted((_luminance(color), _luminance(background)))
    return (high + 0.05) / (low + 0.05)


def rgb_channels(color: str) -> tuple[int, int, int]:
    """Return red, green and blue, each 0 to 255."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _luminance(color: str) -> float:
    # Relative luminance of WCAG 2: undo the sRGB transfer curve, then weight the channels.
    linear = []
    for value in rgb_channels(color):
        level = value / 255
        linear.append(level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4)
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
