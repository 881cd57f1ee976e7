"""Palette: labels are readable on every color, and hues differ with every color vision."""

from __future__ import annotations

from itertools import combinations

import pytest

from shardlab.render.palette import contrast_ratio, fill_color, label_color, rgb_channels

# Linear red, green and blue as seen without red, green or blue cones
# (Machado, Oliveira and Fernandes 2009, severity 1).
SIGHTS = {
    "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritan": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def linear(color):
    return [(value / 255) ** 2.2 for value in rgb_channels(color)]


def perceived(color, sight):
    return [sum(w * v for w, v in zip(row, linear(color), strict=True)) for row in SIGHTS[sight]]


@pytest.mark.parametrize("number", range(24))
def test_the_label_contrasts_with_its_fill(number):
    fill = fill_color(number)
    assert contrast_ratio(label_color(fill), fill) >= 4.5  # WCAG 2, level AA


@pytest.mark.parametrize("sight", sorted(SIGHTS))
def test_the_eight_hues_differ_for_every_kind_of_color_vision(sight):
    for first, second in combinations(range(8), 2):
        a, b = perceived(fill_color(first), sight), perceived(fill_color(second), sight)
        assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 0.05, (first, second)


def test_twenty_four_numbers_have_different_colors():
    assert len({fill_color(number) for number in range(24)}) == 24
    assert fill_color(24) == fill_color(0)


def test_the_contrast_ratio_is_that_of_wcag():
    assert contrast_ratio("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast_ratio("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
