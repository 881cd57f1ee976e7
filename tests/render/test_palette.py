"""Palette: labels can be read on every colour, and neighbours differ for every eye."""

from __future__ import annotations

from itertools import combinations

import pytest

from shardlab.render.palette import channels, contrast, fill_color, label_color

# How a person without red, green or blue cones sees linear red, green and blue
# (Machado, Oliveira and Fernandes 2009, severity 1).
SIGHTS = {
    "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritan": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def linear(colour):
    return [(value / 255) ** 2.2 for value in channels(colour)]


def seen(colour, sight):
    return [sum(w * v for w, v in zip(row, linear(colour), strict=True)) for row in SIGHTS[sight]]


@pytest.mark.parametrize("shard", range(24))
def test_the_label_stands_out_from_its_colour(shard):
    fill = fill_color(shard)
    assert contrast(label_color(fill), fill) >= 4.5  # WCAG 2, level AA


@pytest.mark.parametrize("sight", sorted(SIGHTS))
def test_the_eight_hues_differ_for_every_kind_of_colour_vision(sight):
    for one, other in combinations(range(8), 2):
        a, b = seen(fill_color(one), sight), seen(fill_color(other), sight)
        assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 0.05, (one, other)


def test_twenty_four_slices_have_colours_of_their_own():
    assert len({fill_color(shard) for shard in range(24)}) == 24
    assert fill_color(24) == fill_color(0)


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
