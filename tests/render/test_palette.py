"""Palette: a shade for each coordinate, readable labels, one table for Python, TypeScript, CSS."""

from __future__ import annotations

import json
import math
import re
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from shardlab.render import palette
from shardlab.render.palette import (
    ALARM,
    AXIS_HUES,
    DARK_RAMP,
    FAINT,
    INK,
    LIGHT_RAMP,
    LINE,
    PANEL,
    PAPER,
    WRONG,
    axis_shade,
    contrast_ratio,
    oklch_channels,
    rgb_channels,
    slate_shade,
)

ROOT = Path(__file__).parent.parent.parent
SAMPLES = json.loads(Path(__file__).with_name("palette_samples.json").read_text("utf-8"))
STYLE_SHEET = (ROOT / "src/shardlab/server/static/visual.css").read_text("utf-8")
SURFACES = (PAPER, INK, FAINT, LINE, PANEL, WRONG, ALARM)
N_AXES = len(AXIS_HUES)
THEMES = ("light", "dark")

# Linear red, green and blue as seen without red, green or blue cones
# (Machado, Oliveira and Fernandes 2009, severity 1).
SIGHTS = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritan": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def perceived(color, sight):
    """Return a color in OKLab as seen with a kind of color vision."""
    linear = [(value / 255) ** 2.2 for value in rgb_channels(color)]
    red, green, blue = (
        max(sum(w * v for w, v in zip(row, linear, strict=True)), 0) for row in SIGHTS[sight]
    )
    cones = (
        (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3),
        (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3),
        (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3),
    )
    rows = (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    return [sum(w * v for w, v in zip(row, cones, strict=True)) for row in rows]


def difference(first, second, sight="usual"):
    return math.dist(perceived(first, sight), perceived(second, sight))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("axis", [*range(N_AXES), None])
def test_labels_are_readable_on_every_shade(axis, theme):
    for position in range(65):
        color = slate_shade(position, 65) if axis is None else axis_shade(axis, position, 65)
        assert contrast_ratio(getattr(INK, theme), getattr(color, theme)) >= 4.5  # WCAG 2, AA


@pytest.mark.parametrize("theme", THEMES)
def test_text_is_readable_on_paper_and_on_what_is_wrong(theme):
    for ink, ground in ((INK, PAPER), (FAINT, PAPER), (ALARM, PAPER), (FAINT, PANEL), (INK, WRONG)):
        assert contrast_ratio(getattr(ink, theme), getattr(ground, theme)) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", [2, 3, 5, 16, 24, 25, 33, 64])
def test_no_two_coordinates_along_an_axis_have_the_same_color(size, theme):
    for axis in range(N_AXES):
        shades = {getattr(axis_shade(axis, i, size), theme) for i in range(size)}
        assert len(shades) == size


@pytest.mark.parametrize("theme", THEMES)
def test_no_two_axes_share_a_color(theme):
    colors = [getattr(axis_shade(a, i, 64), theme) for a in range(N_AXES) for i in range(64)]
    assert len(set(colors)) == len(colors)
    assert axis_shade(N_AXES, 1, 4) == axis_shade(0, 1, 4)  # then hues repeat


@pytest.mark.parametrize("sight", sorted(SIGHTS))
@pytest.mark.parametrize("theme", THEMES)
def test_the_first_four_hues_differ_with_every_kind_of_color_vision(sight, theme):
    for first, second in combinations(range(4), 2):
        pair = [getattr(axis_shade(axis, 3, 4), theme) for axis in (first, second)]
        assert difference(*pair, sight) > 0.025, (first, second)  # 0.02 is a just noticeable step


@pytest.mark.parametrize("sight", sorted(SIGHTS))
@pytest.mark.parametrize("theme", THEMES)
def test_the_shades_along_an_axis_are_even_steps_with_every_kind_of_color_vision(sight, theme):
    for axis in range(N_AXES):
        shades = [getattr(axis_shade(axis, i, 5), theme) for i in range(5)]
        steps = [difference(a, b, sight) for a, b in pairwise(shades)]
        assert min(steps) > 0.04
        assert max(steps) < 1.6 * min(steps)


def test_red_is_no_axis():
    for axis in range(N_AXES):
        assert min(abs(AXIS_HUES[axis][0] - red) for red in (27, 387)) >= 33


@pytest.mark.parametrize("axis", range(N_AXES))
def test_a_screen_can_show_every_shade_without_clipping(axis):
    hue, *chroma = AXIS_HUES[axis]
    for ramp, ends in ((LIGHT_RAMP, chroma[:2]), (DARK_RAMP, chroma[2:])):
        for step in range(33):
            lightness, saturation = (a + (b - a) * step / 32 for a, b in (ramp, ends))
            for channel in oklch_channels(lightness, saturation, hue):
                assert -0.001 <= channel <= 1.001


def test_the_samples_that_typescript_is_compared_with_are_our_colors():
    assert {color.name: [color.light, color.dark] for color in SURFACES} == SAMPLES["surfaces"]
    for sample in SAMPLES["shades"]:
        position = sample["coordinate"], sample["size"]
        axis = sample["axis"]
        color = slate_shade(*position) if axis is None else axis_shade(axis, *position)
        assert (color.light, color.dark) == (sample["light"], sample["dark"])
    assert {sample["axis"] for sample in SAMPLES["shades"]} == {*range(N_AXES + 1), None}


def test_the_style_sheet_of_the_pages_has_our_colors():
    light, dark, chosen_dark = (
        dict(re.findall(r"--([\w-]+): (#\w+);", block))
        for block in re.findall(r":root[^{]*\{([^}]*)\}", STYLE_SHEET)
    )
    assert dark == chosen_dark
    named = {"cell-ink": INK, "cell-line": LINE, "wrong": WRONG, "alarm": ALARM}
    named |= {"slate": slate_shade(0, 2)}
    for axis in range(N_AXES):
        named |= {f"axis-{axis}": axis_shade(axis, 3, 4)}
        named |= {f"axis-{axis}-faint": axis_shade(axis, 0, 4)}
    assert light == {name: color.light for name, color in named.items()}
    assert dark == {name: color.dark for name, color in named.items()}


def test_the_typescript_palette_has_our_ramps():
    source = (ROOT / "web/src/shared/palette.ts").read_text("utf-8")
    rows = re.findall(r"^  \[([\d., ]+)\], //", source, re.MULTILINE)
    assert [tuple(map(float, row.split(", "))) for row in rows] == [*AXIS_HUES]
    (slate,) = re.findall(r"SLATE: Ramp = \[([\d., ]+)\]", source)
    assert tuple(map(float, slate.split(", "))) == palette._SLATE


def test_a_single_position_is_the_middle_of_the_ramp():
    assert axis_shade(0, 0, 1).light == axis_shade(0, 1, 3).light


def test_the_contrast_ratio_is_that_of_wcag():
    assert contrast_ratio("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast_ratio("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
